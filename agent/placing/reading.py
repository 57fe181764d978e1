"""Up to where the requests of a partition were handled, though they are handled side by side. Pure."""

from __future__ import annotations


class ReadPositions:
    """What was read and is not handled yet, by partition."""

    def __init__(self) -> None:
        self._open: dict[int, set[int]] = {}
        self._greatest: dict[int, int] = {}
        self._told: dict[int, int] = {}

    def begin(self, partition: int, offset: int) -> None:
        """What stands at ``offset`` was read; offsets grow."""
        self._open.setdefault(partition, set()).add(offset)

    def end(self, partition: int, offset: int) -> int | None:
        """It was handled. The greatest offset up to which all of the partition was; None: as before."""
        waiting = self._open.setdefault(partition, set())
        waiting.discard(offset)
        self._greatest[partition] = max(self._greatest.get(partition, -1), offset)
        position = min(waiting) - 1 if waiting else self._greatest[partition]
        if position <= self._told.get(partition, -1):
            return None
        self._told[partition] = position
        return position
