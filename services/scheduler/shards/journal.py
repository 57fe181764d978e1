"""What a shard notes besides (journal.py): what domains told it and what followed, so that its decisions can be made again.

| kind | body |
|---|---|
| ``session`` | a session with the domains begins, after each ``begin``: its name, what was told before, its ports |
| ``turn`` | what domains and other shards told everybody since the last one; and what was done: who was asked for what |
| ``answers`` | what domains answered, together, and what began or was given back |

Answers and summaries stand in the journal themselves: their topics do not keep them as long as it does.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from meridian.contracts.scheduler.v1 import scheduler_pb2
from services.scheduler.core.apart.dispatching import Dispatcher
from services.scheduler.core.apart.messages import Request
from services.scheduler.core.apart.turns import Taken, Turn
from services.scheduler.core.policy import Policy
from services.scheduler.journal import Journal, places
from services.scheduler.shards.wire import request_message, shares_message, summary_message


@dataclass(slots=True)
class Heard:
    """What was told to everybody since the last turn."""

    summaries: list[scheduler_pb2.DomainSummary] = field(default_factory=list)
    shares: list[scheduler_pb2.ShardShares] = field(default_factory=list)


class ShardJournal(Journal):
    """See the module."""

    def session(self, at_s: float, dispatcher: Dispatcher, port_range: range, answer_limit_s: float) -> None:
        """A dispatcher begins that has not done anything yet."""
        body = {
            "shard": dispatcher.shard,
            "session": list(dispatcher.session),
            "told": [summary_message(item, 0, at_s) for item in dispatcher.told.values()],
            "shares": [shares_message(item) for item in dispatcher.others.values()],
            "ports": [port_range.start, port_range.stop, port_range.step],
            "answer_limit_s": answer_limit_s,
        }
        self._add("session", at_s, body)

    def turn(self, at_s: float, heard: Heard, turned: Turn, policy: Policy) -> None:
        """A turn was carried out."""
        outcome = turn_outcome(turned, policy, at_s)
        self._add("turn", at_s, {"summaries": heard.summaries, "shares": heard.shares, "outcome": outcome})

    def answers(
        self, at_s: float, messages: Sequence[scheduler_pb2.PlacementAnswer], taken: Taken, policy: Policy
    ) -> None:
        """Answers were handled."""
        self._add("answers", at_s, {"answers": list(messages), "outcome": taken_outcome(taken, policy, at_s)})


def turn_outcome(turned: Turn, policy: Policy, at_s: float) -> dict[str, Any]:
    """What a turn decided, as JSON types; ``waiting`` counts units by reason when all that wait were looked at."""
    waiting = turned.step.waiting
    return {
        "policy": policy.version,
        "given_up": [str(key) for key in turned.given_up],
        "begun": [[run.run_id, places(run.ranks)] for run in turned.begun],
        "requests": _requests(turned.step.requests, at_s),
        "waiting": None if waiting is None else [list(item) for item in sorted(Counter(waiting.values()).items())],
    }


def taken_outcome(taken: Taken, policy: Policy, at_s: float) -> dict[str, Any]:
    """What answers led to, as JSON types, node by node."""
    return {
        "policy": policy.version,
        "placed": [[run.run_id, places(run.ranks)] for run in taken.runs],
        "requests": _requests(taken.requests, at_s),
    }


def _requests(requests: Iterable[Request], at_s: float) -> list[list[Any]]:
    """Whom a shard asked in which round for which units, or what it gave back; all the rest of it by its digest."""
    return [
        [
            item.domain_id,
            item.round,
            [f"{wanted.name.key}.{wanted.name.epoch}" for wanted in item.wanted],
            [f"{name.key}.{name.epoch}" for name in item.released],
            digest(request_message(item, at_s)),
        ]
        for item in requests
    ]


def digest(message: Message) -> str:
    """The first 64 bits of the SHA-256 of a message: equal messages are equal decisions."""
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()[:16]
