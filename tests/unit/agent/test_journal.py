"""The journal: group commit, torn tails, damage, compaction."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent import journal
from agent.journal import Journal, JournalDamagedError, JournalUnwritableError


def _open(path: Path) -> tuple[Journal, list[journal.Record]]:
    state: list[journal.Record] = []
    opened = Journal(path, lambda: iter(state))
    opened.open(state.append)
    return opened, state


async def test_what_was_durable_is_there_again(tmp_path: Path) -> None:
    first, _ = _open(tmp_path / "j")
    first.append({"n": 1, "text": "Grüße"})
    number = first.append({"n": 2})
    await first.durable(number)
    assert len((tmp_path / "j").read_bytes().splitlines()) == 2
    await first.close()
    _, state = _open(tmp_path / "j")
    assert state == [{"n": 1, "text": "Grüße"}, {"n": 2}]


async def test_many_waiters_share_a_commit(tmp_path: Path) -> None:
    opened, _ = _open(tmp_path / "j")
    before = opened.sync_count

    async def write(number: int) -> None:
        await opened.durable(opened.append({"n": number}))

    await asyncio.gather(*(write(number) for number in range(500)))
    assert opened.sync_count - before <= 3
    await opened.close()
    assert len(journal.read(tmp_path / "j")[0]) == 500


@pytest.mark.parametrize("cut", [1, 5, 12])
async def test_a_line_cut_short_by_a_crash_is_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    path.write_bytes(journal.encode({"n": 1}) + journal.encode({"n": 2})[:-cut])
    opened, state = _open(path)
    assert state == [{"n": 1}]
    await opened.durable(opened.append({"n": 3}))
    await opened.close()
    assert journal.read(path)[0] == [{"n": 1}, {"n": 3}]


def test_damage_in_the_middle_is_refused(tmp_path: Path) -> None:
    lines = [journal.encode({"n": number}) for number in range(3)]
    lines[1] = lines[1].replace(b"1}", b"7}")
    (tmp_path / "j").write_bytes(b"".join(lines))
    with pytest.raises(JournalDamagedError, match="bad record at byte"):
        _open(tmp_path / "j")


async def test_a_full_file_is_compacted_to_its_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "COMPACT_MIN_RECORDS", 50)
    newest: list[journal.Record] = []
    opened = Journal(tmp_path / "j", lambda: iter(newest))
    opened.open(newest.append)
    for number in range(120):
        newest[:] = [{"n": number}]
        await opened.durable(opened.append({"n": number}))
    await opened.close()
    records, _ = journal.read(tmp_path / "j")
    assert len(records) < 60
    assert records[-1] == {"n": 119}


async def test_a_disk_that_refuses_is_an_error_for_every_waiter(tmp_path: Path) -> None:
    opened, _ = _open(tmp_path / "j")
    import os

    os.close(opened._descriptor)
    opened._descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(JournalUnwritableError):
        await opened.durable(opened.append({"n": 1}))
    with pytest.raises(JournalUnwritableError):
        await opened.durable(opened.append({"n": 2}))
    await opened.close()
