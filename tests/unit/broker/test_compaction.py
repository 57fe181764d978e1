"""Compaction keeps the latest record of every key at its offset, whatever else happens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meridian.embedded.broker.batches import checksum, header_at
from meridian.embedded.broker.compaction import compact, due
from meridian.embedded.broker.errors import BrokerError, ErrorCode
from meridian.embedded.broker.log import PartitionLog
from tests.unit.broker.conftest import batch, contents

OpenLog = Callable[..., PartitionLog]
COMPACT = {"cleanup_policy": "compact", "segment_bytes": "1024"}


def compacted(log: PartitionLog, tombstones_before_ms: int = 0) -> None:
    log.roll()
    complete = log.segments[:-1]
    log.replace(complete, compact(complete, log.start_offset, tombstones_before_ms))


@pytest.mark.parametrize("codec", [0, 1, 3])
def test_only_the_latest_record_of_a_key_is_kept(open_log: OpenLog, codec: int) -> None:
    log = open_log(**COMPACT)
    for i in range(60):
        log.append(batch((f"k{i % 7}", f"a{i}"), (f"k{i % 3}", f"b{i}"), codec=codec))
    latest = {key: (offset, key, value) for offset, key, value in contents(log)}
    compacted(log)
    assert contents(log) == sorted(latest.values())
    assert log.end_offset == 120
    assert len(log.segments) == 2
    assert log.append(batch(("k0", "new"))) == 120
    again = open_log(**COMPACT)
    assert contents(again) == [*sorted(latest.values()), (120, "k0", "new")]
    assert contents(again)[0][0] > again.start_offset == 0


def test_tombstones_go_when_they_are_old(open_log: OpenLog) -> None:
    log = open_log(**COMPACT)
    log.append(batch(("a", "1"), ("b", "1"), timestamp_ms=1000))
    log.append(batch(("a", None), timestamp_ms=2000))
    compacted(log, tombstones_before_ms=1500)
    assert contents(log) == [(1, "b", "1"), (2, "a", None)]
    compacted(log, tombstones_before_ms=2500)
    assert contents(log) == [(1, "b", "1")]
    assert log.end_offset == 3


def test_who_reads_to_the_end_gets_beyond_what_is_gone(open_log: OpenLog) -> None:
    log = open_log(**COMPACT)
    log.append(batch(("a", "1"), ("b", "1"), timestamp_ms=1000))
    log.append(batch(("a", None), timestamp_ms=2000))
    compacted(log, tombstones_before_ms=2500)
    for opened in (log, open_log(**COMPACT)):
        last = header_at(opened.read(2, 1000))
        assert (last.base_offset, last.last_offset, last.record_count) == (2, 2, 0)
        assert last.crc == checksum(opened.read(2, 1000))
        assert opened.read(3, 1000) == b""
    again = open_log(**COMPACT)
    assert again.append(batch(("c", "1"))) == 3
    compacted(again)
    assert contents(again) == [(1, "b", "1"), (3, "c", "1")]
    assert again.read(2, 1000) == again.read(3, 1000), "it is no longer the last"


def test_records_deleted_during_compaction_stay_deleted(open_log: OpenLog) -> None:
    log = open_log(**COMPACT)
    for i in range(60):
        log.append(batch((f"k{i % 5}", f"{i}")))
    log.roll()
    complete = log.segments[:-1]
    merged = compact(complete, log.start_offset, 0)
    log.delete_before(complete[0].next_offset)
    log.replace(complete, merged)
    kept = contents(log)
    assert [offset for offset, _, _ in kept] == list(range(complete[0].next_offset, 60))
    assert contents(open_log(**COMPACT)) == kept


def test_a_crash_between_rename_and_tidying_is_mended(open_log: OpenLog) -> None:
    log = open_log(**COMPACT)
    for i in range(60):
        log.append(batch((f"k{i % 5}", f"{i}")))
    log.append(batch(("other", "last")))
    log.roll()
    complete = log.segments[:-1]
    assert len(complete) > 2
    expected = [(55 + i, f"k{i}", f"{55 + i}") for i in range(5)] + [(60, "other", "last")]
    compact(complete, 0, 0)  # and the process dies before `replace`
    again = open_log(**COMPACT)
    assert contents(again) == expected
    assert [segment.base_offset for segment in again.segments] == [0, 61]
    assert again.append(batch(("k", "v"))) == 61


def test_producers_are_remembered_over_compaction(open_log: OpenLog) -> None:
    log = open_log(**COMPACT)
    log.append(batch(("a", "1"), producer=(5, 0, 0)))
    log.append(batch(("a", "2"), producer=(5, 0, 1)))
    log.append(batch(("a", "3")))
    compacted(log)
    again = open_log(**COMPACT)
    assert contents(again) == [(2, "a", "3")]
    assert again.append(batch(("a", "2"), producer=(5, 0, 1))) == 1
    assert again.append(batch(("a", "4"), producer=(5, 0, 2))) == 3


def test_records_without_key_are_refused(open_log: OpenLog) -> None:
    log = open_log(**COMPACT)
    with pytest.raises(BrokerError) as caught:
        log.append(batch(("a", "1"), (None, "2")))
    assert caught.value.error_code is ErrorCode.INVALID_RECORD
    assert log.end_offset == 0


def test_compaction_is_due_when_enough_is_new(open_log: OpenLog) -> None:
    log = open_log(**COMPACT)
    assert not due(log, min_dirty_bytes=500)
    for i in range(40):
        log.append(batch((f"k{i % 2}", f"{i}")))
    assert due(log, min_dirty_bytes=500)
    assert not due(log, min_dirty_bytes=1 << 20)
    compacted(log)
    assert not due(log, min_dirty_bytes=500)
    for i in range(40):
        log.append(batch((f"k{i % 2}", f"{i}")))
    assert due(log, min_dirty_bytes=500)
    assert not due(open_log(segment_bytes="1024"), min_dirty_bytes=1)
