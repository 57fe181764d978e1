"""The log of a partition against a plain list, over segments, restarts, torn writes, retention and deletion."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from meridian.embedded.broker.batches import checksum
from meridian.embedded.broker.errors import BrokerError, ErrorCode
from meridian.embedded.broker.log import EARLIEST, LATEST, MAX_TIMESTAMP, PartitionLog
from meridian.embedded.broker.topic_config import TopicConfig
from tests.unit.broker.conftest import batch, contents, files_limited_to

OpenLog = Callable[..., PartitionLog]


def values(log: PartitionLog) -> list[str | None]:
    return [value for _, _, value in contents(log)]


def test_segments_follow_each_other(open_log: OpenLog) -> None:
    log = open_log(segment_bytes="1024")
    for i in range(100):
        assert log.append(batch(("k", f"{i}-a"), ("k", f"{i}-b"))) == 2 * i
    assert len(log.segments) > 5
    assert [offset for offset, _, _ in contents(log)] == list(range(200))
    assert values(log)[57] == "28-b"
    assert log.end_offset == 200


def test_reading_begins_in_the_middle_of_a_batch_and_ends_at_the_end(open_log: OpenLog) -> None:
    log = open_log()
    log.append(batch(("k", "a"), ("k", "b"), ("k", "c")))
    assert log.read(1, 1) == log.read(0, 1 << 20)
    assert log.read(3, 100) == b""
    for offset in (-1, 4):
        with pytest.raises(BrokerError) as caught:
            log.read(offset, 100)
        assert caught.value.error_code is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("torn_bytes", [1, 11, 60, 72])
def test_torn_tail_is_cut_off(open_log: OpenLog, torn_bytes: int) -> None:
    log = open_log()
    log.append(batch(("k", "kept")))
    good_bytes = log.size_bytes
    log.append(batch(("k", "torn")))
    path = log.segments[-1].path
    with path.open("r+b") as file:
        file.truncate(good_bytes + torn_bytes)
    again = open_log()
    assert values(again) == ["kept"]
    assert path.stat().st_size == good_bytes
    assert again.append(batch(("k", "next"))) == 1
    assert values(open_log()) == ["kept", "next"]


def test_flipped_bit_cuts_the_log_there(open_log: OpenLog) -> None:
    log = open_log()
    for i in range(3):
        log.append(batch(("k", str(i))))
    size_bytes = log.size_bytes // 3
    with log.segments[0].path.open("r+b") as file:
        file.seek(2 * size_bytes - 1)
        file.write(b"\xff")
    assert values(open_log()) == ["0"]


def test_clean_close_needs_no_scan_and_a_changed_file_is_scanned(open_log: OpenLog) -> None:
    log = open_log()
    log.append(batch(("k", "a"), producer=(7, 0, 0)))
    log.close()
    index = log.segments[0].index_path
    assert index.exists()
    again = open_log()
    assert not index.exists(), "an open segment has no index to trust"
    assert again.append(batch(("k", "a"), producer=(7, 0, 0))) == 0, "the producer is remembered"
    again.append(batch(("k", "b")))
    again.close()
    with again.segments[0].path.open("ab") as file:
        file.write(b"rubbish")
    assert values(open_log()) == ["a", "b"]


def test_producers_are_remembered_over_a_crash(open_log: OpenLog) -> None:
    log = open_log(segment_bytes="1024")
    for sequence in range(40):
        log.append(batch(("k", str(sequence)), producer=(3, 1, sequence)))
    again = open_log(segment_bytes="1024")
    assert again.append(batch(("k", "39"), producer=(3, 1, 39))) == 39
    with pytest.raises(BrokerError) as caught:
        again.append(batch(("k", "42"), producer=(3, 1, 42)))
    assert caught.value.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert again.append(batch(("k", "40"), producer=(3, 1, 40))) == 40


def test_refused_batches_leave_the_log_as_it_was(open_log: OpenLog) -> None:
    log = open_log(max_message_bytes="200")
    good = batch(("k", "v"))
    control = bytearray(good)
    control[22] |= 0x20
    control[17:21] = checksum(control).to_bytes(4, "big")
    flipped = bytearray(good)
    flipped[-1] ^= 1
    bad = {
        ErrorCode.CORRUPT_MESSAGE: [b"", good[:40], bytes(flipped)],
        ErrorCode.INVALID_RECORD: [good + good, good[:-1], bytes(control)],
        ErrorCode.MESSAGE_TOO_LARGE: [batch(("k", "v" * 300))],
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: [good[:16] + b"\x01" + good[17:]],
    }
    for code, batches in bad.items():
        for each in batches:
            with pytest.raises(BrokerError) as caught:
                log.append(each)
            assert caught.value.error_code is code
    assert (log.end_offset, log.size_bytes) == (0, 0)


def test_full_disk_leaves_the_log_as_it_was(open_log: OpenLog) -> None:
    log = open_log()
    log.append(batch(("k", "kept")))
    with files_limited_to(log.size_bytes + 20), pytest.raises(BrokerError) as caught:
        log.append(batch(("k", "lost")))
    assert caught.value.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.segments[0].path.stat().st_size == log.size_bytes
    assert log.append(batch(("k", "next"))) == 1
    assert values(log) == values(open_log()) == ["kept", "next"]


def test_retention_by_time_removes_whole_segments(open_log: OpenLog) -> None:
    log = open_log(segment_bytes="1024", retention_ms="1000")
    for i in range(100):
        log.append(batch(("k", str(i)), timestamp_ms=i * 100))
    assert log.expire(now_ms=6000) > 0
    oldest = log.segments[0]
    assert oldest.base_offset == log.start_offset > 0
    assert 5000 <= oldest.max_timestamp_ms < 7000
    kept = log.end_offset - log.start_offset
    assert values(log) == [str(i) for i in range(100 - kept, 100)]
    assert log.expire(now_ms=60_000) > 0
    assert values(log) == []
    assert log.append(batch(("k", "next"))) == 100
    assert open_log(segment_bytes="1024").start_offset == 100


def test_retention_by_size(open_log: OpenLog) -> None:
    log = open_log(segment_bytes="1024", retention_ms="-1", retention_bytes="3000")
    for i in range(200):
        log.append(batch(("k", str(i))))
    log.expire(now_ms=1 << 50)
    assert 3000 <= log.size_bytes < 3000 + 1024
    assert log.end_offset == 200


def test_offsets_go_on_after_all_records_have_expired_and_the_process_has_died(open_log: OpenLog) -> None:
    log = open_log(retention_ms="100")
    for _ in range(7):
        log.append(batch(("k", "v"), timestamp_ms=1000))
    assert log.expire(now_ms=10_000) == 1
    again = open_log(retention_ms="100")
    assert (again.start_offset, again.end_offset) == (7, 7)
    assert again.append(batch(("k", "v"))) == 7


def test_a_segment_that_cannot_be_completed_is_an_error_of_the_disk(open_log: OpenLog) -> None:
    log = open_log(segment_bytes="1024")
    while log.size_bytes < 900:
        log.append(batch(("k", "v")))
    log.segments[-1].index_path.mkdir()
    with pytest.raises(BrokerError) as caught:
        for _ in range(3):
            log.append(batch(("k", "v")))
    assert caught.value.error_code is ErrorCode.KAFKA_STORAGE_ERROR
    log.segments[-1].index_path.rmdir()
    end = log.end_offset
    assert log.append(batch(("k", "v"))) == end


def test_deleted_records_stay_deleted(open_log: OpenLog) -> None:
    log = open_log(segment_bytes="1024")
    for i in range(100):
        log.append(batch(("k", str(i))))
    assert log.delete_before(60) == 60
    assert values(log) == [str(i) for i in range(60, 100)]
    assert log.delete_before(10) == 60
    again = open_log(segment_bytes="1024")
    assert again.start_offset == 60
    assert again.find(EARLIEST) == (-1, 60)
    with pytest.raises(BrokerError):
        again.delete_before(101)
    assert again.delete_before(LATEST) == 100
    assert values(again) == []
    assert open_log(segment_bytes="1024").end_offset == 100


def test_offsets_by_time(open_log: OpenLog) -> None:
    log = open_log(segment_bytes="2048")
    assert log.find(MAX_TIMESTAMP) == (-1, -1)
    for i in range(100):
        log.append(batch(("k", "a"), ("k", "b"), timestamp_ms=1000 + 10 * i, codec=i % 2))
    assert len(log.segments) > 2
    assert log.find(0) == (1000, 0)
    assert log.find(1501) == (1501, 101)
    assert log.find(1502) == (1510, 102)
    assert log.find(1991) == (1991, 199)
    assert log.find(1992) == (-1, -1)
    assert log.find(MAX_TIMESTAMP) == (1991, 199)
    assert log.find(LATEST) == (-1, 200)


class LogModel(RuleBasedStateMachine):
    """Appends, restarts (clean, killed, with a torn write) and deletions: the log always holds what a list would."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.config = TopicConfig.checked({"segment.bytes": "1024"})
        self.expected: list[str] = []
        self.start = 0
        self.log = self.open()

    def open(self) -> PartitionLog:
        log = PartitionLog(self.folder / "0", self.config)
        log.open()
        return log

    @rule(texts=st.lists(st.text(max_size=20), min_size=1, max_size=20), codec=st.sampled_from([0, 1, 3]))
    def append(self, texts: list[str], codec: int) -> None:
        assert self.log.append(batch(*((None, text) for text in texts), codec=codec)) == len(self.expected)
        self.expected += texts

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.log = self.open()

    @rule(rubbish=st.binary(max_size=200))
    def crash(self, rubbish: bytes) -> None:
        self.log.abandon()
        if rubbish:
            with self.log.segments[-1].path.open("ab") as file:
                file.write(rubbish)
        self.log = self.open()

    @rule(share=st.floats(0, 1))
    def delete(self, share: float) -> None:
        self.start = max(self.start, int(share * len(self.expected)))
        self.log.delete_before(self.start)

    @invariant()
    def holds_what_was_appended(self) -> None:
        if hasattr(self, "log"):
            assert values(self.log) == self.expected[self.start :]
            assert (self.log.start_offset, self.log.end_offset) == (self.start, len(self.expected))

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.abandon()
            shutil.rmtree(self.folder)


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
