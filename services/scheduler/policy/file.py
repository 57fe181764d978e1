"""Policies as people write them: YAML in two stages (which unit goes next, where it goes), checked with line numbers.

    name: night-shift
    extends: balanced                     # a shipped policy whose settings apply where this file says nothing
    selection:
      order: [boosted_priority, fair_share, {least_attained: {threshold_s: 7200}}, age]
      limits: [quota]
      discipline: easy
      reservations: {depth: 2, estimate: limit}
      preemption: [priority]
    allocation:
      filters: [up, domain, security, accelerator, capacity]
      scores: {price: 1.0, pack: 1.0, carbon: {weight: 0.5, options: {...}}}
      domains: {beijing: {scores: {pack: 3.0}}}
      one_accelerator_model_per_gang: true
    queues: [{name: org, nominal: {accelerators: 64}}, {name: team-a, parent: org, weight: 2, priority_boost: 10}]
    shares: {planned: {beijing: 3, shanghai: 1}}                             # promises.py
    service_levels: {team-a: [{kind: average_wait, target: 600, window_s: 3600}]}
    restarts: {backoff_s: 1.0}

The fields of `Policy` themselves are read too, at the top level, as `Policy.as_json` writes them. Nothing is guessed: what
is unknown, of the wrong type or out of range is a PolicyError that names each place by path and line.
"""

from __future__ import annotations

from pathlib import Path

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.stages import check
from services.scheduler.plans.catalogue import register_all
from services.scheduler.policy.document import Document
from services.scheduler.policy.marked_yaml import Problems, read
from services.scheduler.policy.values import unknown

SHIPPED = Path(__file__).parents[1] / "policies"


def parse(text: str, source: str = "") -> Policy:
    """The policy in a YAML or JSON document. PolicyError names every field that is wrong, with its line; ``source`` (a file
    name) stands before it."""
    return _parsed(text, source)[0]


def stored(text: str) -> tuple[Policy, tuple[str, ...]]:
    """A policy as it was stored when it came into force (its document, or a JSON object of the fields of `Policy`), and the fields
    that are left out of it: older releases took what has no effect beside a planner. PolicyError as from `parse`."""
    return _parsed(text, leave_out=True)


def _parsed(text: str, source: str = "", *, leave_out: bool = False) -> tuple[Policy, tuple[str, ...]]:
    register_all()
    problems = Problems(source)
    document = Document(read(text, source), problems, shipped)
    document.read()
    problems.raise_if_any()
    left_out: tuple[str, ...] = ()
    try:
        policy = policy_from_json(document.flat)
        if leave_out:
            left_out, policy = policy.unread, policy.without_unread()
        check(policy)
    except PolicyError as error:
        place, detail = document.place(error.detail)
        problems.add(place, detail)
    problems.raise_if_any()
    return policy, left_out


def shipped_names() -> tuple[str, ...]:
    """Names of the policies that come with the scheduler."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def shipped(name: str) -> Policy:
    """A policy that comes with the scheduler; PolicyError when there is none of this name."""
    if name not in shipped_names():
        raise PolicyError(unknown("shipped policy", name, shipped_names()))
    path = SHIPPED / f"{name}.yaml"
    return parse(path.read_text(encoding="utf-8"), path.name)
