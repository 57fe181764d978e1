"""Count the primes in one slice of [0, limit): the element of an array job, told by MERIDIAN_ARRAY_INDEX which slice.

Segmented sieve of Eratosthenes: memory stays at one segment, whatever the limit. The sum over all slices is pi(limit - 1);
for the default limit it must be 50,847,534.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

_SEGMENT = 1 << 20  # sieved at once; one byte per number


def slice_bounds(index: int, slices: int, limit: int) -> tuple[int, int]:
    """First number of slice `index` and the first after it; the slices divide [0, limit) without gap or overlap."""
    return index * limit // slices, (index + 1) * limit // slices


def primes_below(limit: int) -> NDArray[np.int64]:
    """All primes below `limit`, by the plain sieve."""
    is_prime = np.ones(max(limit, 2), dtype=np.bool_)
    is_prime[:2] = False
    for factor in range(2, math.isqrt(max(limit - 1, 0)) + 1):
        if is_prime[factor]:
            is_prime[factor * factor :: factor] = False
    return np.flatnonzero(is_prime[:limit])


def segment_counts(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """(numbers done, primes among them) after each segment of [start, stop)."""
    factors = primes_below(math.isqrt(max(stop - 1, 0)) + 1).tolist()
    counted = 0
    for low in range(start, stop, _SEGMENT):
        high = min(low + _SEGMENT, stop)
        is_prime = np.ones(high - low, dtype=np.bool_)
        is_prime[: max(0, 2 - low)] = False
        for factor in factors:
            if factor * factor >= high:
                break
            first = max(factor * factor, -(-low // factor) * factor)
            is_prime[first - low :: factor] = False
        counted += int(np.count_nonzero(is_prime))
        yield high - start, counted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=1_000_000_000)
    parser.add_argument("--slices", type=int, default=20, help="the size of the array")
    arguments = parser.parse_args()
    index = int(os.environ.get("MERIDIAN_ARRAY_INDEX") or 0)
    if not 0 <= index < arguments.slices:
        print(f"error: MERIDIAN_ARRAY_INDEX={index} is outside the {arguments.slices} slices", file=sys.stderr)
        return 2
    start, stop = slice_bounds(index, arguments.slices, arguments.limit)
    counted = 0
    for done, counted in segment_counts(start, stop):
        progress = {"step": done, "total_steps": stop - start, "metrics": {"primes": counted}}
        print("@meridian " + json.dumps({"progress": progress}), flush=True)
    print(f"slice {index}: {counted} primes in [{start}, {stop})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
