"""The decisions of a decider of domains made again from its journal: what it granted, what it refused, whom it told of room.

Steps: 1. ``begin`` gives the fleet, grants and sessions; 2. events about domains and requests are handled in the order and at
the times of the journal, by the functions that the live decider calls; 3. every answer is compared with what was recorded.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

from meridian.codec import Envelope
from meridian.contracts.scheduler.v1 import scheduler_pb2
from services.scheduler.core.policy import policy_from_json
from services.scheduler.domains.deciding import Deciding
from services.scheduler.domains.journal import outcome_of, rest_outcome
from services.scheduler.domains.store import grant_from, session_from
from services.scheduler.journal import Entry
from services.scheduler.replay import Replay, Report
from services.scheduler.shards.wire import request_from
from services.scheduler.store import Loaded


def replay(entries: Iterable[Entry], events: Mapping[str, Envelope]) -> Report:
    """Make all decisions of a decider again; see `services.scheduler.replay.replay`."""
    return DeciderReplay(events).run(entries)


class DeciderReplay(Replay):
    """See the module."""

    def __init__(self, events: Mapping[str, Envelope]) -> None:
        super().__init__(events)
        self.steps = {"begin": self.begin, "fleet": self._fleet, "requests": self._requests, "rest": self._rest}
        self._deciding: Deciding | None = None

    @property
    def deciding(self) -> Deciding:
        """The domains as the last entry left them."""
        assert self._deciding is not None
        return self._deciding

    def begin(self, entry: Entry) -> None:
        """Everything was read from the database."""
        body = entry.body
        self.policy = policy_from_json(body["policy"])
        grants = {name: [grant_from(_request(item)) for item in items] for name, items in body["grants"].items()}
        sessions = {
            name: dict(session_from(_request(item)) for item in items) for name, items in body["sessions"].items()
        }
        fleet = Loaded.from_json(body["fleet"]).fleet
        self._deciding = Deciding(fleet, self.policy, body["term"], grants, sessions, body["counted"], entry.at_s)
        self.report.books += 1

    def _fleet(self, entry: Entry) -> None:
        found = self.deciding.learned(self.named(entry.body["events"]), entry.at_s)
        replies = found[0] if found is not None else []
        self.compare(entry, entry.body["outcome"], outcome_of(replies, self.policy, entry.at_s))

    def _requests(self, entry: Entry) -> None:
        requests = [request_from(_request(item)) for item in entry.body["requests"]]
        replies, _ = self.deciding.asked(requests, entry.at_s)
        self.report.placements += sum(len(reply.placed) for reply in replies)
        woken = self.deciding.take_woken()
        self.compare(entry, entry.body["outcome"], outcome_of(replies, self.policy, entry.at_s, woken))

    def _rest(self, entry: Entry) -> None:
        told, replies, _ = self.deciding.rest(entry.at_s)
        self.compare(entry, entry.body["outcome"], rest_outcome(told, replies, self.policy, entry.at_s))


def _request(text: str) -> scheduler_pb2.PlacementRequest:
    return scheduler_pb2.PlacementRequest.FromString(base64.b64decode(text))
