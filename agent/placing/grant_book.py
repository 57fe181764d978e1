"""What the agent has given away, to whom, and what it has not said yet; kept in a journal so that ``kill -9`` loses nothing.

One request changes grants, the session, the position among the requests and the answer that is due in one record, so after a
crash a request was either handled, with its answer still to be sent, or it is read again.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agent.engines.own_scheduler import UnitName
from agent.journal import Journal, Record
from meridian.contracts.scheduler.v1 import scheduler_pb2

MOST_HANDLED = 4096
"""Names of requests that are kept. A sender that died may send what it had not noted as sent once more, at most a few batches."""

UnitKey = tuple[str, int]
"""(job id, unit index)"""


@dataclass(frozen=True, slots=True)
class Grant:
    """What a unit's run holds: the contract's words for it, and the shard that it was given to."""

    shard: str
    holding: scheduler_pb2.Holding

    @property
    def name(self) -> UnitName:
        """Unit and epoch."""
        name = self.holding.name
        return UnitName(name.job_id, name.unit_index, name.epoch)


@dataclass(slots=True)
class Session:
    """What is known of a shard: (term, number) of its session, its classes by number, whether it waits for room. ``told`` is
    the state of the domain that it was told last."""

    number: tuple[int, int]
    classes: dict[int, scheduler_pb2.Demand] = field(default_factory=dict)
    waiting: bool = False
    told: int = -1


class GrantBook:
    """A fold over the records of a journal file. Call ``open`` first."""

    def __init__(self, path: Path) -> None:
        self.grants: dict[UnitKey, Grant] = {}
        self.sessions: dict[str, Session] = {}
        self.positions: dict[int, int] = {}
        self.handled: dict[str, None] = {}
        self.unanswered: dict[int, scheduler_pb2.PlacementAnswer] = {}
        self._answers = 0
        self._journal = Journal(path, self._snapshot)

    def open(self) -> None:
        """Read the journal.

        :raises JournalDamagedError: when it cannot be trusted.
        """
        self._journal.open(self._replay)

    async def durable(self) -> None:
        """Wait until all that was written is on the disk."""
        await self._journal.durable()

    async def close(self) -> None:
        """Write what is left."""
        await self._journal.close()

    def write(self, changes: Iterable[Record]) -> None:
        """Apply changes and append them as one record: after a crash all of them stand, or none."""
        record = {"r": "step", "all": list(changes)}
        self._replay(record)
        self._journal.append(record)

    def next_answer(self) -> int:
        """The number of an answer that was not given before."""
        self._answers += 1
        return self._answers

    # -- changes, as records -------------------------------------------------------------------------------------------

    @staticmethod
    def given(grant: Grant) -> Record:
        """A unit holds this from now on."""
        return {"r": "grant", "shard": grant.shard, "body": _text(grant.holding.SerializeToString())}

    @staticmethod
    def ended(key: UnitKey) -> Record:
        """A unit holds nothing any more."""
        return {"r": "end", "job": key[0], "unit": key[1]}

    @staticmethod
    def session(shard: str, session: Session) -> Record:
        """A shard's session is this."""
        classes = {str(number): _text(demand.SerializeToString()) for number, demand in session.classes.items()}
        return {
            "r": "session",
            "shard": shard,
            "number": list(session.number),
            "waiting": session.waiting,
            "classes": classes,
        }

    @staticmethod
    def position(partition: int, offset: int) -> Record:
        """What stands up to this place was read."""
        return {"r": "position", "partition": partition, "offset": offset}

    @staticmethod
    def request(event: str) -> Record:
        """The request of this name was handled."""
        return {"r": "request", "event": event}

    @staticmethod
    def answer(number: int, message: scheduler_pb2.PlacementAnswer) -> Record:
        """This is to be said."""
        return {"r": "answer", "n": number, "body": _text(message.SerializeToString())}

    @staticmethod
    def answered(number: int) -> Record:
        """It was said."""
        return {"r": "answered", "n": number}

    # -- the fold ------------------------------------------------------------------------------------------------------

    def _replay(self, record: Record) -> None:
        kind = record["r"]
        if kind == "step":
            for item in record["all"]:
                self._replay(item)
        elif kind == "grant":
            grant = Grant(record["shard"], scheduler_pb2.Holding.FromString(_bytes(record["body"])))
            self.grants[grant.name.key] = grant
        elif kind == "end":
            self.grants.pop((record["job"], record["unit"]), None)
        elif kind == "session":
            self._keep_session(record)
        elif kind == "position":
            self.positions[record["partition"]] = record["offset"]
        elif kind == "request":
            self.handled[record["event"]] = None
            if len(self.handled) > MOST_HANDLED:
                del self.handled[next(iter(self.handled))]
        elif kind == "answer":
            self.unanswered[record["n"]] = scheduler_pb2.PlacementAnswer.FromString(_bytes(record["body"]))
            self._answers = max(self._answers, record["n"])
        elif kind == "answered":
            self.unanswered.pop(record["n"], None)
        elif kind == "numbers":
            self._answers = max(self._answers, record["answers"])
        else:
            raise ValueError(f"journal record of unknown kind {kind!r}")

    def _keep_session(self, record: Record) -> None:
        term, number = record["number"]
        classes = {int(name): scheduler_pb2.Demand.FromString(_bytes(body)) for name, body in record["classes"].items()}
        known = self.sessions.get(record["shard"])
        told = known.told if known is not None and known.number == (term, number) else -1
        self.sessions[record["shard"]] = Session((term, number), classes, record["waiting"], told)

    def _snapshot(self) -> Iterable[Record]:
        yield {"r": "numbers", "answers": self._answers}
        for grant in self.grants.values():
            yield self.given(grant)
        for shard, session in self.sessions.items():
            yield self.session(shard, session)
        for partition, offset in self.positions.items():
            yield self.position(partition, offset)
        for event in self.handled:
            yield self.request(event)
        for number, message in self.unanswered.items():
            yield self.answer(number, message)


def _text(body: bytes) -> str:
    return base64.b64encode(body).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
