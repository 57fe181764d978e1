"""Which batches of an idempotent producer are new, repeated, out of order or of an old epoch."""

from __future__ import annotations

import pytest

from meridian.embedded.broker.batches import BatchHeader, header_at
from meridian.embedded.broker.errors import BrokerError, ErrorCode
from meridian.embedded.broker.producers import ProducerLedger
from tests.unit.broker.conftest import batch


def header(sequence: int, count: int = 1, epoch: int = 0) -> BatchHeader:
    return header_at(batch(*[("k", "v")] * count, producer=(9, epoch, sequence)))


def ledger_with(*headers: BatchHeader) -> ProducerLedger:
    ledger = ProducerLedger()
    for offset, each in enumerate(headers):
        assert ledger.repeated(each) is None
        ledger.stored(each, 100 + offset)
    return ledger


def refusal(ledger: ProducerLedger, each: BatchHeader) -> ErrorCode:
    with pytest.raises(BrokerError) as caught:
        ledger.repeated(each)
    return caught.value.error_code


def test_last_five_batches_are_known_again() -> None:
    ledger = ledger_with(*(header(sequence) for sequence in range(6)))
    assert [ledger.repeated(header(sequence)) for sequence in range(1, 6)] == [101, 102, 103, 104, 105]
    assert refusal(ledger, header(0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_gaps_and_batches_of_another_size_are_out_of_order() -> None:
    ledger = ledger_with(header(0, count=3))
    assert ledger.repeated(header(3)) is None
    for wrong in (header(4), header(0, count=2), header(1)):
        assert refusal(ledger, wrong) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_epochs_only_go_up_and_begin_at_zero() -> None:
    ledger = ledger_with(header(0, epoch=3))
    assert refusal(ledger, header(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(ledger, header(1, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    ledger.stored(header(0, epoch=4), 200)
    assert ledger.repeated(header(0, epoch=4)) == 200
    assert refusal(ledger, header(1, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_wrap_around() -> None:
    top = (1 << 31) - 1
    ledger = ledger_with(header(top - 1, count=4))
    assert ledger.repeated(header(2)) is None
    assert ledger.repeated(header(top - 1, count=4)) == 100
    assert refusal(ledger, header(3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producer_whose_records_are_gone_may_begin_anywhere() -> None:
    ledger = ledger_with(header(0), header(1))
    ledger.forget_before(101)
    assert refusal(ledger, header(5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    ledger.forget_before(102)
    assert ledger.repeated(header(5)) is None


def test_snapshot_restores_everything() -> None:
    ledger = ledger_with(header(0, epoch=2), header(1, epoch=2))
    other = ledger_with(header(77))
    other.restore(ledger.snapshot())
    assert other.repeated(header(1, epoch=2)) == 101
    assert other.snapshot() == ledger.snapshot()
