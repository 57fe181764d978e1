"""What domains granted becomes runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from services.scheduler.core import binding, nominations
from services.scheduler.core.apart.explaining import placed_json
from services.scheduler.core.apart.rounds import Carried
from services.scheduler.core.book import Draft
from services.scheduler.core.cycle import WAKE_PATIENCE
from services.scheduler.core.effects import DecisionRecord
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Nomination, Run


def carry_out(
    draft: Draft,
    carried: Iterable[Carried],
    policy: Policy,
    now_s: float,
    new_id: Callable[[], str],
    port_range: range = binding.PORTS,
) -> list[Run]:
    """Place units on the nodes that their domains granted, or let them wait there while nodes wake; ``new_id`` gives names for
    decisions."""
    begun = []
    for item in carried:
        decision_id = new_id()
        place = "+".join(dict.fromkeys(rank.domain_id for rank in item.ranks))
        reason = f"{place}: best of {item.considered} domains by what they told; the domain chose the nodes"
        if item.wake_s:
            _nominate(draft, item, policy, now_s, decision_id, place, reason)
            continue
        run = binding.place(
            draft,
            item.unit.key,
            item.ranks,
            now_s,
            decision_id=decision_id,
            policy_version=policy.version,
            reason=reason,
            port_range=port_range,
        )
        assert run.epoch == item.epoch
        body = placed_json(item, place, reason, policy.version) | _passed_over(draft, item)
        draft.record(DecisionRecord(decision_id, item.unit.key, "placed", now_s, policy.version, body))
        begun.append(run)
    return begun


def _passed_over(draft: Draft, item: Carried) -> dict[str, Any]:
    """What the job asks for that its domains do not do, by field; nothing where there is none."""
    job = draft.job(item.unit.key.job_id)
    assert job is not None
    bounds = {"min_accelerator_milli": job.spec.least_milli, "max_accelerator_milli": job.spec.most_milli}
    own = sorted({rank.domain_id for rank in item.ranks if draft.fleet.schedules_itself(rank.domain_id)})
    why = f"a run keeps its part of an accelerator in {', '.join(own)}, which has a scheduler of its own"
    found = [{"field": f"resources.{field}", "why": why} for field, milli in bounds.items() if milli and own]
    return {"passed_over": found} if found else {}


def _nominate(
    draft: Draft, item: Carried, policy: Policy, now_s: float, decision_id: str, place: str, reason: str
) -> None:
    """Nodes of it are being woken by their domain: the unit waits with them, for some times as long as that takes."""
    until_s = now_s + policy.restarts.stop_timeout_s + WAKE_PATIENCE * item.wake_s
    kept = Nomination(item.ranks, frozenset(), until_s, decision_id, policy.version, reason)
    nominations.nominate(draft, item.unit.key, kept)
    body = placed_json(item, place, reason, policy.version) | _passed_over(draft, item)
    asleep = sorted({rank.node_id for rank in item.ranks if draft.fleet.sleeps(rank.node_id)})
    body["woken"] = {"nodes": asleep, "wake_s": item.wake_s}
    draft.record(DecisionRecord(decision_id, item.unit.key, "nominated", now_s, policy.version, body))


def ports_of(shard: int, shards: int) -> range:
    """The ports that a shard may give out: shards do not see each other's runs."""
    return binding.PORTS[shard::shards]
