"""What domains granted becomes runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.scheduler.core import lifecycle
from services.scheduler.core.apart.explaining import placed_json
from services.scheduler.core.apart.rounds import Carried
from services.scheduler.core.book import Draft
from services.scheduler.core.effects import DecisionRecord
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Run


def carry_out(
    draft: Draft,
    carried: Iterable[Carried],
    policy: Policy,
    now_s: float,
    new_id: Callable[[], str],
    port_range: range = lifecycle.PORTS,
) -> list[Run]:
    """Place units on the nodes that their domains granted; ``new_id`` gives names for decisions."""
    begun = []
    for item in carried:
        decision_id = new_id()
        place = "+".join(dict.fromkeys(rank.domain_id for rank in item.ranks))
        reason = f"{place}: best of {item.considered} domains by what they told; the domain chose the nodes"
        run = lifecycle.place(
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
        body = placed_json(item, place, reason, policy.version)
        draft.record(DecisionRecord(decision_id, item.unit.key, "placed", now_s, policy.version, body))
        begun.append(run)
    return begun


def ports_of(shard: int, shards: int) -> range:
    """The ports that a shard may give out: shards do not see each other's runs."""
    return lifecycle.PORTS[shard::shards]
