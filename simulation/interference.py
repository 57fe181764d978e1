"""How much jobs slow each other down when they share accelerators.

Measured pairs are the only data there is; everything else is a stated assumption. A rate is relative to running alone:
1 is undisturbed, 0 means that the two do not run together at all (memory).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from meridian.errors import InvalidArgumentError
from simulation.model import Throughputs

TIME_SLICED = 0.5
COLOCATION_COLUMNS = ("model", "dataset", "gpu_num", "batchsize", "amp", "speed")


class Profile(NamedTuple):
    """What runs: the name of a profile and its number of ranks."""

    name: str
    ranks: int = 1


class Pair(NamedTuple):
    """Two profiles that share devices of a model ("" for any), and the rate that each keeps."""

    first: Profile
    second: Profile
    model: str
    first_rate: float
    second_rate: float


class Interference:
    """Rates of profiles beside others on the same devices.

    A pair holds in both directions: (a, b) given as (x, y) is (b, a) as (y, x). What is given more than once is averaged,
    so the rate of a profile beside its own like is the mean of the two. Rates above 1 are noise of measurement (nothing
    runs faster for company) and count as 1.

    A pair not in the table falls to ``default``: 0.5, what plain time slicing gives to each of two; most measured pairs do
    better (Lucid, ASPLOS'23: packing pays because jobs leave the device idle), a few a little worse. A model not in the
    table falls to the pair measured for any model (""), then to the default.
    """

    def __init__(self, pairs: Iterable[Pair] = (), default: float = TIME_SLICED) -> None:
        if not 0 <= default <= 1:
            raise InvalidArgumentError(f"default: {default} is not within 0-1")
        self.default = default
        sums: dict[tuple[Profile, Profile, str], tuple[float, int]] = {}
        for place, pair in enumerate(pairs):
            for own, other, rate in (
                (pair.first, pair.second, pair.first_rate),
                (pair.second, pair.first, pair.second_rate),
            ):
                if not 0 <= rate < math.inf:
                    raise InvalidArgumentError(f"pairs[{place}]: rate {rate} of {own.name!r} is not 0 or more")
                total, count = sums.get((own, other, pair.model), (0.0, 0))
                sums[own, other, pair.model] = (total + min(rate, 1.0), count + 1)
        self._rates = {key: total / count for key, (total, count) in sums.items()}

    def __len__(self) -> int:
        """Known (own, other, model) triples."""
        return len(self._rates)

    @classmethod
    def from_throughputs(cls, throughputs: Throughputs, default: float = TIME_SLICED) -> Interference:
        """The pairs of a trace, each rate divided by that of the profile alone on that model.

        A profile that does not run alone on a model (rate 0 or unknown) gives no pair there.
        """
        return cls(_relative(throughputs), default)

    def pair(self, own: Profile, other: Profile, model: str = "") -> float:
        """The rate that ``own`` keeps beside one ``other`` on ``model``, 0-1."""
        rate = self._rates.get((own, other, model))
        if rate is None and model:
            rate = self._rates.get((own, other, ""))
        return self.default if rate is None else rate

    def known(self, own: Profile, other: Profile, model: str = "") -> bool:
        """Whether the pair was measured (for this model or any)."""
        return (own, other, model) in self._rates or (own, other, "") in self._rates

    def rate(self, profile: Profile, neighbours: Sequence[Profile], model: str = "") -> float:
        """The rate that a profile keeps beside several, 0-1: the product over its pairs; 1 alone.

        The product takes the slow-downs as independent. No public set measures three together, so this is an assumption;
        it is on the careful side of the time slices 1 / (1 + neighbours) where pairs are unknown.
        """
        return math.prod(self.pair(profile, other, model) for other in neighbours)


def _relative(throughputs: Throughputs) -> Iterable[Pair]:
    for (name, ranks, model), others in throughputs.pairs.items():
        own = Profile(name, ranks)
        alone = throughputs.rates.get((name, ranks), {}).get(model, 0.0)
        for (other_name, other_ranks), (own_rate, other_rate) in others.items():
            other_alone = throughputs.rates.get((other_name, other_ranks), {}).get(model, 0.0)
            if alone > 0 and other_alone > 0:
                yield Pair(own, Profile(other_name, other_ranks), model, own_rate / alone, other_rate / other_alone)


def colocation_profile(model: str, dataset: str, batch_size: int, mixed_precision: bool) -> str:
    """The profile name that `read_colocation` gives to a row's job: ``ResNet18 CIFAR-10 b64 amp``."""
    return f"{model} {dataset} b{batch_size}{' amp' if mixed_precision else ''}"


def read_colocation(path: Path) -> list[Pair]:
    """Measured pairs from a CSV like that of Lucid: model, dataset, gpu_num, batchsize, amp, speed, each ending in 1 or 2.

    ``speed`` is relative to running alone. Ranks are the number of GPUs; the pairs hold for any accelerator model (the
    file names none; it was measured on one kind). Errors name the column, or the line and the field.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or []
        missing = [
            f"{column}{side}" for side in (1, 2) for column in COLOCATION_COLUMNS if f"{column}{side}" not in columns
        ]
        if missing:
            raise InvalidArgumentError(f"{path.name}: no column {', '.join(missing)}")
        pairs: list[Pair] = []
        for row in reader:
            first, first_rate = _side(row, "1", f"{path.name}, line {reader.line_num}")
            second, second_rate = _side(row, "2", f"{path.name}, line {reader.line_num}")
            pairs.append(Pair(first, second, "", first_rate, second_rate))
        return pairs


def _side(row: Mapping[str, str | None], side: str, where: str) -> tuple[Profile, float]:
    values: dict[str, float] = {}
    for column in ("gpu_num", "batchsize", "amp", "speed"):
        text = row[column + side]
        try:
            values[column] = float(text or "")
        except ValueError:
            raise InvalidArgumentError(f"{where}: {column}{side}: {text!r} is not a number") from None
        if not 0 <= values[column] < math.inf:
            raise InvalidArgumentError(f"{where}: {column}{side}: {text!r} is not a number of 0 or more")
    model, dataset = row["model" + side], row["dataset" + side]
    if not model or not dataset:
        raise InvalidArgumentError(f"{where}: {'dataset' if model else 'model'}{side} is empty")
    name = colocation_profile(model, dataset, int(values["batchsize"]), values["amp"] > 0)
    return Profile(name, int(values["gpu_num"])), values["speed"]
