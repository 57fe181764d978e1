"""The journal: what the live scheduler did in which order, so that every decision can be made again from the event log.

An entry is written when its transaction is certain, into memory; a task of its own puts entries into the database in chunks,
compressed. Nothing is added to the transactions of cycles. A crash loses at most the last second of the journal, never of
the state; the next leader begins a new book in it. A chunk has a number within its term and is written once: when the commit
of one is in doubt, the same chunk is offered again before anything that came after it.

| kind | body |
|---|---|
| ``begin`` | the state that was read from the database, the policy, what is known of run times |
| ``events`` | names of the events that were handled together, in order; jobs among them that were known before |
| ``tick`` | nothing: deadlines up to its time were carried out |
| ``policy`` | the policy from now on |
| ``steps`` | what was measured of programs' steps since it was told last |
| ``rest`` | nothing: idle nodes were told to sleep, or those that did not are used again |
| ``cycle`` | what was decided, and how many placements bounded it |

Every entry has its time in seconds. Events themselves stay in the log of the bus. What the parties of two levels note besides
stands in shards/journal.py and domains/journal.py.
"""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from meridian.database import Database
from services.scheduler import store, store_journal
from services.scheduler.core.cycle import Cycle
from services.scheduler.core.measured import News
from services.scheduler.core.policy import Policy
from services.scheduler.core.run_times import RunTimes
from services.scheduler.core.state import PlacedRank

KEPT_DAYS = 14
"""Chunks are kept so long."""
WHOLE_BOOK_EVERY_S = 86_400.0
"""So often the book is read from the database again, so that a replay need not begin with the start of the process."""
FLUSH_S = 1.0
_MOST_ENTRIES = 5_000


@dataclass(frozen=True, slots=True)
class Entry:
    """See the table of the module."""

    kind: str
    at_s: float
    body: Any


class JournalWriter:
    """Collects entries; `flush` writes them. One writer has a term for itself."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._entries: list[Entry] = []
        self.term = 0
        self.begun_at_s = 0.0
        self._flushing = asyncio.Lock()
        self._written = 0
        self._offered: dict[str, Any] | None = None

    @property
    def pending(self) -> int:
        """Entries that are not known to be written yet."""
        return len(self._entries) + (self._offered["entries"] if self._offered is not None else 0)

    def _add(self, kind: str, at_s: float, body: Any) -> None:
        self._entries.append(Entry(kind, at_s, body))

    async def flush(self) -> None:
        """Write what was collected until now. After an error the next call offers the same chunk first, so that one that was
        committed though nobody said so does not stand there twice."""
        async with self._flushing:
            left = self.pending
            while left > 0:
                row = self._offered = self._offered or await self._chunk()
                async with self._database.transaction() as connection:
                    await store_journal.add_journal_chunk(connection, row)
                self._offered = None
                self._written += 1
                left -= row["entries"]

    async def _chunk(self) -> dict[str, Any]:
        """The oldest entries as a row of their own; they are not collected any more."""
        entries = self._entries[:_MOST_ENTRIES]
        body = await asyncio.to_thread(packed, entries)
        del self._entries[: len(entries)]
        return {
            "term": self.term,
            "number": self._written + 1,
            "begins": any(entry.kind == "begin" for entry in entries),
            "first_at_s": entries[0].at_s,
            "last_at_s": entries[-1].at_s,
            "entries": len(entries),
            "body": body,
        }


class Journal(JournalWriter):
    """What a scheduler on one level notes; see the table of the module."""

    def begin(self, at_s: float, loaded: store.Loaded, policy: Policy, run_times: RunTimes) -> None:
        """The book was read from the database."""
        self.begun_at_s = at_s
        # The state changes with what is learned from now on; `loaded` does not.
        self._add("begin", at_s, (loaded, policy, run_times.state()))

    def events(self, at_s: float, names: Sequence[str], known: Iterable[str]) -> None:
        """Events were handled together."""
        self._add("events", at_s, {"events": list(names), "known": sorted(known)})

    def tick(self, at_s: float) -> None:
        """Deadlines were carried out."""
        self._add("tick", at_s, None)

    def policy(self, at_s: float, policy: Policy) -> None:
        """Another policy applies."""
        self._add("policy", at_s, policy)

    def rest(self, at_s: float) -> None:
        """Idle nodes were told to sleep."""
        self._add("rest", at_s, None)

    def steps(self, at_s: float, news: News) -> None:
        """Rates and steps done were told to the book."""
        self._add("steps", at_s, news.as_json())

    def cycle(self, at_s: float, cycle: Cycle) -> None:
        """A cycle was carried out."""
        self._add("cycle", at_s, outcome_of(cycle))


def outcome_of(cycle: Cycle) -> dict[str, Any]:
    """What a cycle decided, as JSON types: equal outcomes are equal decisions, node by node."""
    decisions = cycle.decisions
    return {
        "policy": decisions.policy_version,
        "placed": [[run.run_id, places(run.ranks)] for run in cycle.begun],
        "nominated": [
            [str(key), places(kept.ranks), sorted(kept.waits_for), kept.until_s] for key, kept in cycle.nominated
        ],
        "preempted": [
            [run.run_id, "" if item.beneficiary is None else str(item.beneficiary)] for run, item in cycle.preempted
        ],
        "reserved": [[str(item.key), item.start_s] for item in decisions.reservations],
        "waiting": sum(len(group.units) for group in decisions.blocked),
        "most": decisions.most,
    }


def places(ranks: Sequence[PlacedRank]) -> list[list[Any]]:
    """Nodes and devices of ranks, as JSON types."""
    return [[rank.node_id, *rank.devices] for rank in ranks]


def packed(entries: Sequence[Entry]) -> bytes:
    """A chunk of entries; messages of the contracts in them become text (base64)."""
    rows = [[entry.kind, entry.at_s, _plain(entry)] for entry in entries]
    return zlib.compress(json.dumps(rows, separators=(",", ":"), ensure_ascii=False, default=_text).encode(), 1)


def _text(value: object) -> str:
    if isinstance(value, Message):
        return base64.b64encode(value.SerializeToString()).decode()
    raise TypeError(f"{type(value).__name__} does not belong in the journal")


def _plain(entry: Entry) -> Any:
    if entry.kind == "begin" and isinstance(entry.body, tuple):
        loaded, policy, run_times = entry.body
        return {"loaded": loaded.as_json(), "policy": policy_json(policy), "run_times": run_times}
    return policy_json(entry.body) if entry.kind == "policy" else entry.body


def policy_json(policy: Policy) -> dict[str, Any]:
    """A policy as `policy_from_json` reads it."""
    body = policy.as_json()
    del body["version"]
    return body


def unpacked(body: bytes) -> list[Entry]:
    """The entries of a chunk."""
    return [Entry(kind, at_s, value) for kind, at_s, value in json.loads(zlib.decompress(body))]
