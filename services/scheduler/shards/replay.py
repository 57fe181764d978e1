"""The decisions of a shard made again from its journal: whom it asked for what, and where units began.

What one level decided in the same journal, before there were two, is decided again as well.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

from meridian.codec import Envelope
from meridian.contracts.scheduler.v1 import scheduler_pb2
from services.scheduler.core.apart.dispatching import Dispatcher
from services.scheduler.core.apart.messages import Session
from services.scheduler.core.apart.shares import ShardShares
from services.scheduler.core.apart.turns import take_answers, turn
from services.scheduler.journal import Entry
from services.scheduler.replay import Replay, ReplayError, Report
from services.scheduler.shards.journal import taken_outcome, turn_outcome
from services.scheduler.shards.wire import answer_from, shares_from, summary_from


def replay(entries: Iterable[Entry], events: Mapping[str, Envelope]) -> Report:
    """Make all decisions of a shard again; see `services.scheduler.replay.replay`."""
    return ShardReplay(events).run(entries)


class ShardReplay(Replay):
    """A replay with a dispatcher; see the module."""

    def __init__(self, events: Mapping[str, Envelope]) -> None:
        super().__init__(events)
        self.steps.update({"session": self._session, "turn": self._turn, "answers": self._answers})
        self._dispatcher: Dispatcher | None = None
        self._ports = range(0)

    def begin(self, entry: Entry) -> None:
        """See `Replay.begin`; a session follows."""
        super().begin(entry)
        self._dispatcher = None

    def change(self, entry: Entry) -> None:
        """See `Replay.change`."""
        super().change(entry)
        if self._dispatcher is not None:
            self._dispatcher.use(self.policy)

    @property
    def dispatcher(self) -> Dispatcher:
        """That of the session; ReplayError before one has begun."""
        if self._dispatcher is None:
            raise ReplayError("the journal has a decision on two levels before a session with the domains")
        return self._dispatcher

    def _session(self, entry: Entry) -> None:
        body = entry.body
        told = [summary_from(item) for item in _summaries(body["told"])]
        self._ports = range(*body["ports"])
        self._dispatcher = Dispatcher(
            body["shard"],
            Session(*body["session"]),
            self.policy,
            {item.domain_id: item for item in told},
            {item.shard: item for item in _shares(body.get("shares", ()))},
            answer_limit_s=body["answer_limit_s"],
        )

    def _turn(self, entry: Entry) -> None:
        draft = self.book.draft()
        draft.at_s = entry.at_s
        told = [summary_from(item) for item in _summaries(entry.body["summaries"])]
        shares = _shares(entry.body.get("shares", ()))
        turned = turn(draft, self.dispatcher, told, shares, entry.at_s, self._ports)
        self.report.placements += len(turned.begun)
        self.compare(entry, entry.body["outcome"], turn_outcome(turned, self.policy, entry.at_s))
        if draft.changed:
            self.book.merge(draft)

    def _answers(self, entry: Entry) -> None:
        draft = self.book.draft()
        draft.at_s = entry.at_s
        messages = [scheduler_pb2.PlacementAnswer.FromString(base64.b64decode(item)) for item in entry.body["answers"]]
        replies = [answer_from(message) for message in messages]
        taken = take_answers(draft, self.dispatcher, replies, self.policy, entry.at_s, self.new_id, self._ports)
        self.report.placements += len(taken.runs)
        self.compare(entry, entry.body["outcome"], taken_outcome(taken, self.policy, entry.at_s))
        if draft.changed:
            self.book.merge(draft)


def _summaries(texts: Iterable[str]) -> list[scheduler_pb2.DomainSummary]:
    return [scheduler_pb2.DomainSummary.FromString(base64.b64decode(item)) for item in texts]


def _shares(texts: Iterable[str]) -> list[ShardShares]:
    return [shares_from(scheduler_pb2.ShardShares.FromString(base64.b64decode(item))) for item in texts]
