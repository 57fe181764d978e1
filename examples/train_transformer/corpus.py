"""The training text and the batches drawn from it.

The default text is the Python language reference that every interpreter carries, so the example needs no download.
A batch is a pure function of (text, seed, step): nothing has to be remembered to resume, and the global batch does not
depend on how many ranks share it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_BATCH_STREAM = 0xBA7C


@dataclass(frozen=True, slots=True)
class Corpus:
    """Text as bytes, one token per byte."""

    tokens: NDArray[np.uint8]
    sha256: str

    @classmethod
    def of(cls, text: bytes) -> Corpus:
        return cls(np.frombuffer(text, dtype=np.uint8), hashlib.sha256(text).hexdigest())

    def global_batch(
        self, seed: int, step: int, rows: int, sequence: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Inputs and next-byte targets, both (rows, sequence), of update number `step`.

        Raises ValueError if the text is shorter than one row.
        """
        if len(self.tokens) < sequence + 2:
            raise ValueError(f"the text has {len(self.tokens)} bytes; a row needs {sequence + 2}")
        rng = np.random.default_rng([seed, _BATCH_STREAM, step])
        starts = rng.integers(0, len(self.tokens) - sequence - 1, size=rows)
        window = self.tokens[starts[:, np.newaxis] + np.arange(sequence + 1)].astype(np.int64)
        return window[:, :-1], window[:, 1:]


def load_corpus(path: Path | None) -> Corpus:
    """Read `path`, or the language reference of the running interpreter when it is None."""
    if path is not None:
        return Corpus.of(path.read_bytes())
    from pydoc_data.topics import topics

    return Corpus.of("\n\n".join(topics[name] for name in sorted(topics)).encode())


def rank_rows(rank: int, world_size: int, rows: int) -> slice:
    """The rows of the global batch that belong to `rank`; the slices of all ranks are disjoint and cover it."""
    return slice(rank * rows // world_size, (rank + 1) * rows // world_size)
