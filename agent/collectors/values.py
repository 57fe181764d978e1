"""Samples of one device become the value of one metric, or the kind and reason why there is none. Pure.

Steps for one alternative: (1) the samples of its families that match its labels, (2) each is looked at: finite, no sentinel,
its time, (3) the same series twice must say the same, (4) rates, (5) one value of many, (6) sum, quotient, scale,
(7) what cannot be in this unit is no value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from agent.collectors.exporter_table import Aggregate, Alternative, ExporterTable, Kind, Term
from agent.collectors.exposition import Sample
from agent.collectors.metrics import Metric
from agent.collectors.unknown import UnknownError, UnknownKind

FUTURE_TOLERANCE_S = 5.0
NOT_EXPORTED = "not exported"
NEEDS_TWO_SAMPLES = "a rate needs two samples"
# An accelerator has more memory than this, and uses it in larger pieces: less is a figure in MiB that calls itself bytes.
LEAST_MEMORY_BYTES = 2.0**28
LEAST_USED_BYTES = 2.0**16
# Values of one device under different labels (a line for each tenant) count as the same within this.
SAME = 1e-6
ROUNDING = 1e-9
# The greatest numbers of 32 and 64 bits, with and without a sign, and the few below them: what a call that failed leaves, or
# a driver that has no value, whoever exports it. No memory is of such a size, and no counter stands there for long.
_ALL_BITS = ((2.0**31 - 16, 2.0**31 - 1), (2.0**32 - 16, 2.0**32 - 1), (2.0**63 * (1 - 1e-13), 2.0**63), (2.0**64 * (1 - 1e-13), 2.0**64))  # fmt: skip
ALL_BITS_SET = "all bits are set: the driver has no value"

_AGGREGATES: dict[Aggregate, Callable[[list[float]], float]] = {
    Aggregate.SUM: math.fsum,
    Aggregate.MEAN: lambda values: math.fsum(values) / len(values),
    Aggregate.MAX: max,
    Aggregate.MIN: min,
}
_MEMORY = {Metric.GPU_MEMORY_USAGE: LEAST_USED_BYTES, Metric.GPU_MEMORY_LIMIT: LEAST_MEMORY_BYTES}

SeriesKey = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Point:
    """A sample of an earlier scrape; ``stamped``: the exporter gave its time."""

    value: float
    at_s: float
    stamped: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """What holds for all samples of a scrape.

    ``earlier``: points of the scrape before. ``skew_s``: the exporter's clock less ours where all its timestamps show the
    same difference, else 0. ``not_ratios``: families named as ratios that were seen to carry more than 1.
    """

    now_s: float
    earlier: Mapping[SeriesKey, Point] = field(default_factory=dict)
    skew_s: float = 0.0
    not_ratios: Set[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Value:
    """A canonical value and the time of its oldest sample that has one of its own (None: the time of the scrape)."""

    value: float
    at_s: float | None = None


def sentinel_of(table: ExporterTable, family: str, value: float) -> str:
    """Why a raw value of a family (as the table names it) stands for none; empty: it does not."""
    for sentinel in table.sentinels:
        if sentinel.low <= value <= sentinel.high and (not sentinel.families or family in sentinel.families):
            return sentinel.reason
    return ALL_BITS_SET if any(low <= value <= high for low, high in _ALL_BITS) else ""


def series_of(sample: Sample) -> SeriesKey:
    """What identifies a series."""
    return sample.family, frozenset(sample.labels.items())


def point_of(sample: Sample, now_s: float) -> Point:
    """The sample as the next scrape will remember it."""
    if sample.timestamp_s is None:
        return Point(sample.value, now_s)
    return Point(sample.value, sample.timestamp_s, stamped=True)


class DeviceSamples:
    """The samples of one device in one scrape, by family."""

    def __init__(self, table: ExporterTable, families: Mapping[str, Sequence[Sample]], moment: Moment) -> None:
        self._table = table
        self._families = families
        self._moment = moment

    def value(self, metric: Metric, alternative: Alternative, peak_flops: float | None = None) -> Value:
        """The value of ``metric`` by one alternative.

        :raises UnknownError: there is none.
        """
        self._counts(alternative)
        total, times = 0.0, []
        for term in alternative.terms:
            samples = self._matching(term, alternative)
            self._ratio(samples, alternative)
            total += term.factor * self._one(samples, term, alternative)
            times += [sample.timestamp_s for sample in samples if sample.timestamp_s is not None]
        if alternative.zero_is_placeholder and total == 0:
            raise UnknownError(UnknownKind.PLACEHOLDER, "zero stands for a value that the exporter does not have")
        if alternative.divide_by is not None:
            samples = self._matching(alternative.divide_by, alternative)
            divisor = self._one(samples, alternative.divide_by, alternative)
            if divisor == 0:
                moves = (alternative.divide_by.kind or alternative.kind) is Kind.RATE
                kind = UnknownKind.FROZEN if moves else UnknownKind.NO_REFERENCE
                raise UnknownError(kind, f"{alternative.divide_by.family} {'stood still' if moves else 'is zero'}")
            total /= divisor
        return Value(self._scaled(metric, alternative, total, peak_flops), min(times) if times else None)

    def single(self, family: str) -> float:
        """The value of a family that has one for the device.

        :raises UnknownError: there is none, or it is not to be believed.
        """
        samples = self._families.get(family, ())
        if not samples:
            raise UnknownError(UnknownKind.NOT_EXPORTED, NOT_EXPORTED)
        return _aggregated([self._raw(sample) for sample in _distinct(samples)], Aggregate.ONE)

    def zeros_only(self, families: Iterable[str]) -> bool:
        """Whether these families are there and every sample of them is zero."""
        samples = [sample for family in families for sample in self._families.get(family, ())]
        return bool(samples) and all(sample.value == 0 for sample in samples)

    def _counts(self, alternative: Alternative) -> None:
        if alternative.unless_zero and self.zeros_only([alternative.unless_zero]):
            raise UnknownError(UnknownKind.PLACEHOLDER, f"{alternative.unless_zero} is zero: there is none of it")
        if alternative.when_zero in self._families and not self.zeros_only([alternative.when_zero]):
            raise UnknownError(UnknownKind.NOT_EXPORTED, NOT_EXPORTED)

    def _matching(self, term: Term, alternative: Alternative) -> Sequence[Sample]:
        samples = [
            sample
            for sample in self._families.get(term.family, ())
            if all(pattern.fullmatch(sample.labels.get(name, "")) for name, pattern in alternative.labels.items())
            and all(pattern.fullmatch(sample.labels.get(name, "")) for name, pattern in term.labels.items())
        ]
        if not samples:
            raise UnknownError(UnknownKind.NOT_EXPORTED, NOT_EXPORTED)
        for item in self._table.passed_over:
            if term.family in item.families:
                samples = [sample for sample in samples if not item.low <= sample.value <= item.high] or samples
        return _distinct(samples)

    def _one(self, samples: Sequence[Sample], term: Term, alternative: Alternative) -> float:
        values = [self._raw(sample) for sample in samples]
        if (term.kind or alternative.kind) is Kind.RATE:
            values = self._rates(samples)
        if min(values) < 0 and (len(alternative.terms) > 1 or len(values) > 1) and alternative.never_negative:
            # Within a sum it would pass for a smaller total.
            raise UnknownError(UnknownKind.OUT_OF_RANGE, f"out of range: {term.family} is {min(values):g}")
        return _aggregated(values, alternative.aggregate)

    def _rates(self, samples: Iterable[Sample]) -> list[float]:
        """Increase per second of each series that was there before. One that went back makes the whole unknown."""
        rates: list[float] = []
        for sample in samples:
            before, point = self._moment.earlier.get(series_of(sample)), point_of(sample, self._moment.now_s)
            if before is None or point.at_s <= before.at_s or not self._counted(sample.family, before.value):
                # A sum without one of its series would be too small.
                raise UnknownError(UnknownKind.NEEDS_SECOND_SAMPLE, NEEDS_TWO_SAMPLES)
            if point.value < before.value:
                raise UnknownError(UnknownKind.COUNTER_RESET, "a counter went back")
            rates.append((point.value - before.value) / (point.at_s - before.at_s))
        return rates

    def _counted(self, family: str, value: float) -> bool:
        """Whether a counter stood at this value; from one that stands for none there is no increase."""
        return math.isfinite(value) and value >= 0 and not sentinel_of(self._table, family, value)

    def _raw(self, sample: Sample) -> float:
        if not math.isfinite(sample.value):
            raise UnknownError(UnknownKind.NOT_A_NUMBER, "not a number")
        reason = sentinel_of(self._table, sample.family, sample.value)
        if reason:
            raise UnknownError(UnknownKind.SENTINEL, reason)
        if sample.timestamp_s is not None:
            _check_age(self._moment, self._moment.now_s - sample.timestamp_s, self._table.max_sample_age_s)
        return sample.value

    def _ratio(self, samples: Iterable[Sample], alternative: Alternative) -> None:
        if not alternative.is_ratio:
            return
        for sample in samples:
            if sample.family in self._moment.not_ratios:
                detail = f"{sample.family} is named as a share of one and carries more"
                raise UnknownError(UnknownKind.WRONG_UNIT, detail)

    def _scaled(self, metric: Metric, alternative: Alternative, raw: float, peak_flops: float | None) -> float:
        if alternative.enum is not None:
            if raw not in alternative.enum:
                raise UnknownError(UnknownKind.UNKNOWN_STATE, f"unknown state {raw:g}")
            return alternative.enum[raw]
        if alternative.steps:
            passed = [value for above, value in alternative.steps if raw > above]
            if not passed:
                raise UnknownError(UnknownKind.UNKNOWN_STATE, f"unknown state {raw:g}")
            return passed[-1]
        if metric is Metric.TEMPERATURE and raw == -1:
            raise UnknownError(UnknownKind.SENTINEL, "-1 stands for a value that the exporter does not have")
        value = alternative.offset + alternative.scale * raw
        low, high = alternative.valid
        # A difference of sums may miss a bound by its rounding.
        if low - ROUNDING <= value < low:
            value = low
        elif high < value <= high + ROUNDING:
            value = high
        if not low <= value <= high:
            kind = UnknownKind.WRONG_UNIT if _looks_misnamed(metric, alternative, value) else UnknownKind.OUT_OF_RANGE
            raise UnknownError(kind, f"out of range: {value:g}")
        least = _MEMORY.get(metric)
        if least is not None and 0 < value < least:
            raise UnknownError(UnknownKind.WRONG_UNIT, f"{value:g} bytes are too few for an accelerator")
        if not alternative.times_peak:
            return value
        if peak_flops is None:
            raise UnknownError(UnknownKind.NO_REFERENCE, "the peak of the chip is not known")
        return value * peak_flops


def _looks_misnamed(metric: Metric, alternative: Alternative, value: float) -> bool:
    """Whether a value outside of its range would be inside in another unit: percent, milliwatts, MiB for bytes."""
    low, high = alternative.valid
    if metric in _MEMORY:
        return value > high
    return (alternative.is_ratio and 1 < value <= 100) or (
        metric is Metric.POWER and high < value <= 1000 * high and low >= 0
    )


def _check_age(moment: Moment, age_s: float, most_s: float) -> None:
    if age_s < -FUTURE_TOLERANCE_S:
        if moment.skew_s:
            detail = f"the exporter's clock is {moment.skew_s:.0f} s ahead of ours"
            raise UnknownError(UnknownKind.CLOCK_SKEW, detail)
        raise UnknownError(UnknownKind.FROM_FUTURE, f"sample is {-age_s:.0f} s in the future")
    if age_s > most_s:
        if moment.skew_s:
            detail = f"the exporter's clock is {-moment.skew_s:.0f} s behind ours"
            raise UnknownError(UnknownKind.CLOCK_SKEW, detail)
        raise UnknownError(UnknownKind.STALE, f"stale: sample is {age_s:.0f} s old")


def _distinct(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Each series once. The same series with two values is not to be believed."""
    if len(samples) == 1:
        return samples
    found: dict[SeriesKey, Sample] = {}
    for sample in samples:
        known = found.setdefault(series_of(sample), sample)
        if known.value != sample.value and not (math.isnan(known.value) and math.isnan(sample.value)):
            detail = f"the same series of {sample.family} twice: {known.value:g} and {sample.value:g}"
            raise UnknownError(UnknownKind.DUPLICATE, detail)
    return list(found.values())


def _aggregated(values: list[float], aggregate: Aggregate) -> float:
    if aggregate is not Aggregate.ONE:
        return _AGGREGATES[aggregate](values)
    least, most = min(values), max(values)
    if most - least > SAME * max(abs(least), abs(most)):
        detail = f"the device is read {len(values)} times, from {least:g} to {most:g}"
        raise UnknownError(UnknownKind.DUPLICATE, detail)
    return values[0]
