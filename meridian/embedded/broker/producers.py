"""Idempotent producers: which batches of a producer a partition already has (KIP-98, without transactions)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from meridian.embedded.broker.batches import BatchHeader
from meridian.embedded.broker.errors import BrokerError, ErrorCode

REMEMBERED_BATCHES = 5
"""A producer has at most five requests in flight, so a repeat is one of the last five."""

SEQUENCE_MASK = 0x7FFFFFFF


@dataclass(slots=True)
class _ProducerState:
    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    """(first sequence, last sequence, base offset) of the latest batches."""


class ProducerLedger:
    """The latest batches of every idempotent producer in one partition.

    1. An older epoch than the known one is refused (INVALID_PRODUCER_EPOCH).
    2. A batch that is among the remembered ones is a repeat: its first offset is given again, nothing is stored.
    3. A newer epoch begins at sequence 0; the same epoch goes on at the next sequence; anything else is a gap
       (OUT_OF_ORDER_SEQUENCE_NUMBER). A producer unknown here, because retention removed its records, may begin anywhere.
    """

    def __init__(self) -> None:
        self._producers: dict[int, _ProducerState] = {}

    def repeated(self, header: BatchHeader) -> int | None:
        """Base offset the batch has already been stored at, or None if it is new; raises ``BrokerError`` if it may not follow."""
        state = self._producers.get(header.producer_id)
        if state is None:
            return None
        if header.producer_epoch < state.epoch:
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_EPOCH, f"producer epoch {header.producer_epoch}, known is {state.epoch}"
            )
        if header.producer_epoch > state.epoch:
            if header.base_sequence != 0:
                raise BrokerError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a new producer epoch begins at sequence 0")
            return None
        for first, last, base_offset in state.batches:
            if (first, last) == (header.base_sequence, header.last_sequence):
                return base_offset
        if state.batches:
            expected = (state.batches[-1][1] + 1) & SEQUENCE_MASK
            if header.base_sequence != expected:
                raise BrokerError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {header.base_sequence}, expected {expected}"
                )
        return None

    def stored(self, header: BatchHeader, base_offset: int) -> None:
        """Remember a batch that is now in the log."""
        state = self._producers.get(header.producer_id)
        if state is None or state.epoch != header.producer_epoch:
            state = self._producers[header.producer_id] = _ProducerState(header.producer_epoch)
        state.batches.append((header.base_sequence, header.last_sequence, base_offset))

    def forget_before(self, offset: int) -> None:
        """Forget producers whose every remembered batch lies before ``offset`` (removed by retention)."""
        gone = [key for key, state in self._producers.items() if not state.batches or state.batches[-1][2] < offset]
        for key in gone:
            del self._producers[key]

    def snapshot(self) -> list[list[object]]:
        """The state as JSON values."""
        return [[key, state.epoch, [list(batch) for batch in state.batches]] for key, state in self._producers.items()]

    def restore(self, snapshot: list[list[object]]) -> None:
        """Replace the state by that of ``snapshot``."""
        self._producers.clear()
        for key, epoch, batches in snapshot:
            assert isinstance(key, int)
            assert isinstance(epoch, int)
            assert isinstance(batches, list)
            state = self._producers[key] = _ProducerState(epoch)
            state.batches.extend((first, last, offset) for first, last, offset in batches)
