"""What would have to be otherwise: the least change along each axis that flips a decision, found by deciding again.

Steps:
1. The cluster is copied, without what the last cycle remembered. A unit that runs is taken off in the copy and decided about
   alone, on what else runs now; a unit that waits is decided about among all that wait. Where it would start so (as others
   keep reservations that they would not get again), nothing is said.
2. For a placed unit, for each of the best other places: the price of its domain (bisection), the weight of each score (from
   the shown parts, where the sums meet), and nodes that are down (enumeration).
3. For a waiting unit: fewer accelerators, ranks or cpus, less memory or of a resource that users define, other domains and
   models, the end of one job, a higher priority, a shorter estimate (enumeration and bisection).
4. Each change is made on a fresh copy and decided by the same core; what does not flip the decision is not returned.
5. All of it is bounded (allowance.py), each kind of change by its part; which kinds were not tried to the end is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import GivenUpError
from services.scheduler.core.explaining.allowance import Allowance
from services.scheduler.core.explaining.counterfactual_waiting import for_waiting
from services.scheduler.core.explaining.decided_again import (
    SHOWN,
    TRIED,
    Change,
    Counterfactual,
    Outcome,
    Question,
    Remedy,
    greatest,
)
from services.scheduler.core.explaining.explanation import Candidate, Explanation
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import UnitKey

_RIVALS = 3
_DECIMALS = 1000.0


@dataclass(frozen=True, slots=True)
class Search:
    """What was found with so many ``decisions``. ``not_searched`` are the kinds of changes that were not tried, or not to the end,
    as the allowance was used up: one of which something was ``found`` may do with less than what is said."""

    found: tuple[Counterfactual, ...] = ()
    decisions: int = 0
    not_searched: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """How far it went, for people and programs."""
        return {
            "complete": not self.not_searched,
            "decisions": self.decisions,
            "not_searched": list(self.not_searched),
        }


def counterfactuals(cluster: Cluster, policy: Policy, key: UnitKey, now_s: float) -> tuple[Counterfactual, ...]:
    """What `search` finds with as many decisions as are allowed to it."""
    return search(cluster, policy, key, now_s).found


def search(cluster: Cluster, policy: Policy, key: UnitKey, now_s: float, allowance: Allowance | None = None) -> Search:
    """The least changes that flip the decision about a unit that waits or runs, as far as the allowance goes; the cluster is
    left as it is. KeyError when the unit does neither."""
    question = Question(cluster, policy, key, now_s, allowance)
    allowance = question.allowance
    found: list[Counterfactual] = []
    over: list[str] = []
    try:
        remedies = _remedies(question)
    except GivenUpError:
        return Search((), allowance.decisions, ("all",))
    for remedy in remedies:
        allowance.part(remedy.part)
        try:
            for item in remedy.find():
                found.append(item)  # noqa: PERF402 - what came before the end counts
        except GivenUpError:
            over.extend(remedy.fields)
    return Search(tuple(found), allowance.decisions, tuple(over))


def _remedies(question: Question) -> list[Remedy]:
    """What may be tried; nothing where deciding anew already says otherwise than what is asked about."""
    before = question.ask(Change())
    if question.waits:
        return list(for_waiting(question)) if before is None else []
    return [] if before is None else list(_for_placed(question, before))


def _for_placed(question: Question, before: Outcome) -> Iterator[Remedy]:
    explanation = question.explanation()
    level, rivals, is_at = _rivals(explanation, before)

    def prices() -> Iterator[Counterfactual]:
        return islice((item for rival in rivals for item in _cheaper(question, rival, is_at)), SHOWN)

    def weights() -> Iterator[Counterfactual]:
        for rival in rivals[:SHOWN]:
            found = list(_weighted_otherwise(question, explanation, level, rival, is_at))
            found.sort(key=lambda item: abs(item.new - item.old) / max(item.old, 1e-3))
            yield from found[:2]

    if level == "domain":
        yield Remedy(("price_micro_units",), 0.4, prices)
    yield Remedy(("policy.scores",), 0.7, weights)
    yield Remedy(("nodes.",), 1.0, partial(_woken, question, before))


def _rivals(
    explanation: Explanation, before: Outcome
) -> tuple[str, list[Candidate], Callable[[Outcome | None, str], bool]]:
    """Other domains with room, best first; when there is none, other nodes of the domain, for a unit on one node."""
    domains = explanation.domains
    at = [domains.places.index(before.place)] if before.place in domains.places else []
    found = [item for item in domains.top(_RIVALS + 1, at) if item.ranks_that_fit >= domains.ranks]
    if len(found) > 1 or not explanation.nodes or len(before.nodes) > 1:
        return "domain", found[1:], lambda outcome, place: outcome is not None and outcome.place == place
    nodes = explanation.nodes[0]
    top = nodes.ranking.top(_RIVALS + 1, [place for place, _ in nodes.chosen])
    others = [item for item in top[1:] if item.ranks_that_fit >= nodes.ranking.ranks]
    return "node", others, lambda outcome, place: outcome is not None and outcome.nodes == (place,)


def _cheaper(
    question: Question, rival: Candidate, is_at: Callable[[Outcome | None, str], bool]
) -> Iterator[Counterfactual]:
    table = question.base.table
    now = float(table.price[table.domain_ids.index(rival.place)])
    if not any(name == "price" and weight > 0 for name, weight in question.policy.scores) or not now > 1:
        return

    def at(price: float) -> Outcome | None:
        found = question.ask(Change(price=(rival.place, price)))
        return found if is_at(found, rival.place) else None

    found = greatest(at, 1.0, now, whole=True)
    if found is None:
        return
    price, outcome = found.value, found.outcome
    yield Counterfactual(
        f"domains.{rival.place}.price_micro_units",
        now,
        price,
        "at most",
        outcome,
        f"It would go to {rival.place} if an accelerator-hour there cost {price:.0f} micro-units instead of {now:.0f}",
        Change(price=(rival.place, price)),
    )
    if found.over:
        raise GivenUpError


def _weighted_otherwise(
    question: Question,
    explanation: Explanation,
    level: str,
    rival: Candidate,
    is_at: Callable[[Outcome | None, str], bool],
) -> Iterator[Counterfactual]:
    ranking = explanation.domains if level == "domain" else explanation.nodes[0].ranking
    place = ranking.places.index(explanation.chosen) if level == "domain" else explanation.nodes[0].chosen[0][0]
    other = ranking.places.index(rival.place)
    behind = float(ranking.totals[place] - ranking.totals[other])
    weights = dict(question.policy.scores)
    for number, name in enumerate(ranking.plugins):
        gain = float(ranking.parts[number][other] - ranking.parts[number][place])
        if abs(gain) < 1e-9:
            continue
        meets = weights[name] + behind / gain
        steps = math.floor(meets * _DECIMALS) + 1 if gain > 0 else math.ceil(meets * _DECIMALS) - 1
        new = steps / _DECIMALS
        if new < 0 or new == weights[name]:
            continue
        scores = tuple((key, new if key == name else weight) for key, weight in question.policy.scores)
        change = Change(policy=replace(question.policy, scores=scores))
        outcome = question.ask(change)
        if not is_at(outcome, rival.place):
            continue
        assert outcome is not None
        yield Counterfactual(
            f"policy.scores.{name}",
            weights[name],
            new,
            "at least" if gain > 0 else "at most",
            outcome,
            f"It would go to {rival.place} if the weight of {name} were {new:g} instead of {weights[name]:g}",
            change,
        )


def _woken(question: Question, before: Outcome) -> Iterator[Counterfactual]:
    """Nodes that are down and would be taken if they were not; one per domain is tried first."""
    view, table = question.base.view, question.base.table
    rows = np.flatnonzero(~view.up).tolist()
    first = {int(table.node_domain[row]): row for row in reversed(rows)}
    tried = dict.fromkeys([*first.values(), *rows])
    shown = 0
    for row in list(tried)[:TRIED]:
        name = table.nodes[row].node_id
        outcome = question.ask(Change(up=name))
        if outcome is None or shown >= SHOWN or name not in outcome.nodes:
            continue
        shown += 1
        where = outcome.place if outcome.place != before.place else name
        why = f" ({table.down[row]})" if table.down[row] else ""
        text = f"It would go to {where} if node {name} took work{why}"
        yield Counterfactual(f"nodes.{name}.up", False, True, "exactly", outcome, text, Change(up=name))
