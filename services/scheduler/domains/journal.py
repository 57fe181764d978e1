"""What a decider of domains notes (journal.py), so that its grants can be made again.

| kind | body |
|---|---|
| ``begin`` | what was read from the database: the fleet, grants and sessions by domain; policy and term |
| ``fleet`` | names of events about its domains that were handled together, in order, and what shards were told |
| ``requests`` | requests that were handled together, in order, the answers, and nodes that were to be woken |
| ``rest`` | nodes that were told to sleep, and what shards were told |

Events about domains stay in the log of the bus; requests stand here, as their topic does not keep them as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meridian.contracts.scheduler.v1 import scheduler_pb2
from services.scheduler.core.apart.granted import Grant, ShardSession
from services.scheduler.core.apart.messages import Reply
from services.scheduler.core.apart.resting import Woken
from services.scheduler.core.effects import Sleep
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.policy import Policy
from services.scheduler.domains.store import grant_message, session_message
from services.scheduler.journal import JournalWriter, places, policy_json
from services.scheduler.shards.journal import digest
from services.scheduler.shards.wire import answer_message
from services.scheduler.store import Loaded


class DeciderJournal(JournalWriter):
    """See the module."""

    def begin(
        self,
        at_s: float,
        fleet: Fleet,
        policy: Policy,
        grants: Mapping[str, Sequence[Grant]],
        sessions: Mapping[str, Mapping[str, ShardSession]],
        counted: int,
    ) -> None:
        """Everything was read from the database, and nothing was done with it yet; ``counted`` as in `Deciding`."""
        self.begun_at_s = at_s
        body = {
            "fleet": Loaded(fleet, (), (), (), {}).as_json(),
            "policy": policy_json(policy),
            "term": self.term,
            "counted": counted,
            "grants": {name: [grant_message(name, item) for item in items] for name, items in grants.items()},
            "sessions": {
                name: [session_message(name, shard, item) for shard, item in items.items()]
                for name, items in sessions.items()
            },
        }
        self._add("begin", at_s, body)

    def fleet(self, at_s: float, names: Sequence[str], replies: Iterable[Reply], policy: Policy) -> None:
        """The fleet changed."""
        self._add("fleet", at_s, {"events": list(names), "outcome": outcome_of(replies, policy, at_s)})

    def requests(
        self,
        at_s: float,
        messages: Sequence[scheduler_pb2.PlacementRequest],
        replies: Iterable[Reply],
        policy: Policy,
        woken: Iterable[Woken] = (),
    ) -> None:
        """Requests were answered."""
        self._add("requests", at_s, {"requests": list(messages), "outcome": outcome_of(replies, policy, at_s, woken)})

    def rest(self, at_s: float, told: Iterable[Sleep], replies: Iterable[Reply], policy: Policy) -> None:
        """Idle nodes were told to sleep, or those that did not are used again."""
        self._add("rest", at_s, {"outcome": rest_outcome(told, replies, policy, at_s)})


def rest_outcome(told: Iterable[Sleep], replies: Iterable[Reply], policy: Policy, at_s: float) -> dict[str, Any]:
    """Which nodes were told to sleep, as JSON types, and the rest as in `outcome_of`."""
    return {"slept": [[item.domain_id, *item.node_ids] for item in told], **outcome_of(replies, policy, at_s)}


def outcome_of(replies: Iterable[Reply], policy: Policy, at_s: float, woken: Iterable[Woken] = ()) -> dict[str, Any]:
    """What shards were told, as JSON types: node by node what was granted, what was refused and why, the rest by its digest; and
    which nodes were woken for it."""
    return {
        "policy": policy.version,
        "woken": [[item.domain_id, f"{item.name.key}.{item.name.epoch}", *item.node_ids] for item in woken],
        "replies": [
            [
                item.shard,
                item.domain_id,
                item.round,
                [[f"{name.key}.{name.epoch}", places(ranks)] for name, ranks in item.placed],
                [[f"{name.key}.{name.epoch}", reason] for name, reason in item.refused],
                digest(answer_message(item, at_s)),
            ]
            for item in replies
        ],
    }
