"""A chunk of a journal whose commit is in doubt is offered again, and stands there once: in that of a scheduler and of a decider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.database import Database, migrate
from services.scheduler import store_journal
from services.scheduler.domains.journal import DeciderJournal
from services.scheduler.journal import Journal, JournalWriter, unpacked
from tests.harness import ROOT

MIGRATIONS = {
    "scheduler": (ROOT / "services/scheduler/migrations", Journal),
    "scheduler_domain": (ROOT / "services/scheduler/domains/migrations", DeciderJournal),
}


class LosesAnswers(Database):
    """The connection breaks as often as it is told to: before the commit, or when it was done and nobody has heard of it."""

    before = after = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        async with super().transaction() as connection:
            yield connection
            if self.before:
                self.before -= 1
                raise ConnectionResetError("before the commit")
        if self.after:
            self.after -= 1
            raise ConnectionResetError("after the commit")


def note(journal: JournalWriter, *names: str) -> None:
    for number, name in enumerate(names):
        journal._add("begin" if name == "begin" else "tick", float(number), {"name": name})


async def names(database: Database) -> list[str]:
    async with database.reading() as connection:
        bodies = await store_journal.journal_chunks(connection)
    return [entry.body["name"] for body in bodies for entry in unpacked(body)]


@pytest.mark.parametrize("schema", MIGRATIONS)
async def test_a_chunk_whose_commit_is_in_doubt_is_written_once(database_url: str, schema: str) -> None:
    scripts, kind = MIGRATIONS[schema]
    await migrate(database_url, schema, scripts)
    database = LosesAnswers(database_url, schema, pool_size=1)
    try:
        journal = kind(database)
        journal.term = 1
        note(journal, "begin", "a")
        database.after = 2
        for _ in range(2):
            with pytest.raises(ConnectionResetError, match="after the commit"):
                await journal.flush()
            assert await names(database) == ["begin", "a"]
            assert journal.pending == 2, "nobody said that it is written"
        # What came meanwhile is a chunk of its own, else the first one would be another when it is offered again.
        note(journal, "b", "c")
        assert journal.pending == 4
        database.before = 1
        with pytest.raises(ConnectionResetError, match="before the commit"):
            await journal.flush()
        assert await names(database) == ["begin", "a"]
        await journal.flush()
        assert journal.pending == 0
        assert await names(database) == ["begin", "a", "b", "c"]

        # The successor counts its own chunks.
        successor = kind(database)
        successor.term = 2
        note(successor, "begin", "d")
        await successor.flush()
        note(journal, "late")
        await journal.flush()
        assert await names(database) == ["begin", "a", "b", "c", "late", "begin", "d"]
        async with database.reading() as connection:
            rows = (await connection.execute(sa.text("SELECT term, number, entries FROM journal ORDER BY 1, 2"))).all()
        assert [tuple(row) for row in rows] == [(1, 1, 2), (1, 2, 2), (1, 3, 1), (2, 1, 2)]
    finally:
        await database.close()


async def test_more_than_a_chunk_is_written_by_one_call(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a journal is written by one call when a process stops."""
    scripts, kind = MIGRATIONS["scheduler"]
    await migrate(database_url, "scheduler", scripts)
    monkeypatch.setattr("services.scheduler.journal._MOST_ENTRIES", 2)
    database = LosesAnswers(database_url, "scheduler", pool_size=1)
    try:
        journal = kind(database)
        journal.term = 1
        note(journal, "begin", "a", "b", "c", "d")
        await journal.flush()
        assert await names(database) == ["begin", "a", "b", "c", "d"]
        assert journal.pending == 0
    finally:
        await database.close()
