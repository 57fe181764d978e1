"""Recorded demand as windows: from lines of series, time and value to one row of evenly spaced windows per series."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from services.forecast.past import Array
from services.forecast.tables import LeftAside, cells_taken_for_empty, lines_of

NEEDED = ("series", "time", "value")
OPTIONAL = ("capacity",)
# A series with fewer windows is not judged: too little to learn from before the last fifth of it.
LEAST_WINDOWS = 50
# A series of which more than this share of lines contradict each other, or of windows is empty, is not judged.
_CONTRADICTING = 0.5
_EMPTY = 0.5
# Nor one that began again after more than this share of it.
_BEGUN_AGAIN = 0.10
_MOST_WINDOWS = 2_000_000
_USUAL_S = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(60.0 * minutes for minutes in (1, 2, 5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 480, 720, 1440)),
)
# Squares of larger values could no longer be summed.
LARGEST_VALUE = 1e100
# A larger number is no time in seconds since 1970 (the year 5138), but one in milliseconds or less.
_LAST_S = 1e11


@dataclass(frozen=True, slots=True)
class Series:
    """A demand over windows of ``window_s`` seconds from ``start_s`` on.

    ``values`` [window] is the mean of the samples in a window, NaN where there is none; ``capacity`` [window] likewise,
    None where the file has none for it.
    """

    name: str
    start_s: float
    window_s: float
    values: Array
    capacity: Array | None = None


@dataclass(frozen=True, slots=True)
class DemandTable:
    """What a file holds: usable series, those that are not with the reason, lines left aside, cells taken for empty."""

    series: list[Series]
    unusable: dict[str, str]
    left_aside: LeftAside
    unread: LeftAside = field(default_factory=cells_taken_for_empty)


class _Samples:
    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float]] = []
        # Behind one first row, each earlier than the one before, with their lines: the newest may stand first.
        self.earlier: list[tuple[tuple[float, float, float], int]] = []
        self.seen = 0
        self.contradicting = 0
        # The highest time from which times went back to the first.
        self.begun_again_after = -math.inf

    def add(self, row: tuple[float, float, float], line: int, aside: LeftAside) -> None:
        """Take a row that is later than all before it, or, as long as none was, earlier; leave any other aside."""
        last = self.earlier[-1][0] if self.earlier else self.rows[-1] if self.rows else None
        if last is not None and row[0] == last[0]:
            self.contradicting += 1
            aside.add("time is there twice", line)
        elif len(self.rows) == 1 and row[0] < (last or row)[0]:
            self.earlier.append((row, line))
        else:
            self._in_order(aside)
            if not self.rows or row[0] > self.rows[-1][0]:
                self.rows.append(row)
                return
            self.contradicting += 1
            if row[0] <= self.rows[0][0] and len(self.rows) > 1:
                self.begun_again_after = self.rows[-1][0]
            aside.add("time is there twice" if row[0] == self.rows[-1][0] else "time goes back", line)

    def _in_order(self, aside: LeftAside) -> None:
        """What was taken for newest first is not."""
        self.contradicting += len(self.earlier)
        for _, line in self.earlier:
            aside.add("time goes back", line)
        self.earlier.clear()

    def close(self) -> None:
        """No row follows: what stood newest first is put in order."""
        self.rows[:0] = [row for row, _ in reversed(self.earlier)]
        self.earlier.clear()


def read_demand(path: Path) -> DemandTable:
    """Read ``path``. Left aside and counted are lines without a time, with a value that is no finite number from 0 to
    `LARGEST_VALUE`, and those not after the last line of their series, unless it stands newest first throughout; a capacity that
    is no such number is taken for none, and counted. InvalidTableError where a column is missing."""
    aside, unread = LeftAside(), cells_taken_for_empty()
    found: dict[str, _Samples] = {}
    for line, cells in lines_of(path, NEEDED, OPTIONAL, aside):
        if not cells["series"]:
            aside.add("no series", line)
            continue
        _take(found.setdefault(cells["series"], _Samples()), cells, line, aside, unread)
    series: list[Series] = []
    unusable: dict[str, str] = {}
    for name, samples in found.items():
        samples.close()
        one = _windows(name, samples)
        if isinstance(one, str):
            unusable[name] = one
        else:
            series.append(one)
    return DemandTable(series, unusable, aside, unread)


def _take(samples: _Samples, cells: dict[str, str], line: int, aside: LeftAside, unread: LeftAside) -> None:
    samples.seen += 1
    time_s, value = time_of(cells["time"]), _number(cells["value"])
    if math.isnan(time_s):
        aside.add(f"time is {why_no_time(cells['time'])}", line)
    elif not cells["value"]:
        aside.add("no value", line)
    elif math.isnan(value):
        aside.add("value is no finite number", line)
    elif value < 0:
        aside.add("value is negative", line)
    elif value > LARGEST_VALUE:
        aside.add(f"value is larger than {LARGEST_VALUE:g}", line)
    else:
        samples.add((time_s, value, _capacity(cells.get("capacity", ""), line, unread)), line, aside)


def _capacity(text: str, line: int, unread: LeftAside) -> float:
    capacity = _number(text)
    if 0 <= capacity <= LARGEST_VALUE:
        return capacity
    if text:
        unread.add(f"capacity is no number from 0 to {LARGEST_VALUE:g}", line)
    return math.nan


def time_of(text: str) -> float:
    """Seconds: a number as it is, a date of ISO 8601 since 1970 (UTC where it names no zone); NaN for anything else, and for
    numbers beyond the year 5138, which are not seconds."""
    if not math.isnan(number := _number(text)):
        return number if abs(number) < _LAST_S else math.nan
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def why_no_time(text: str) -> str:
    """What is wrong with a time of which `time_of` knows nothing."""
    if math.isnan(_number(text)):
        return "neither a number of seconds nor a date in ISO 8601"
    return "no number of seconds since 1970 (milliseconds?)"


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _windows(name: str, samples: _Samples) -> Series | str:
    """The windows of a series, or why there are none: as long as the samples are mostly apart, or on average where that leaves
    too many empty."""
    if not samples.rows:
        return "no usable value"
    if samples.contradicting > _CONTRADICTING * samples.seen:
        return f"{samples.contradicting} of {samples.seen} times repeat or go back"
    first, last = samples.rows[0][0], samples.rows[-1][0]
    if samples.begun_again_after - first > _BEGUN_AGAIN * (last - first):
        return "its times begin again: two series of one name"
    if len(samples.rows) < LEAST_WINDOWS:
        return f"{len(samples.rows)} usable values, at least {LEAST_WINDOWS} are needed"
    times, values, capacities = np.array(samples.rows, dtype=np.float64).T
    window_s = _spacing(times)
    if (times[-1] - times[0]) / window_s > _MOST_WINDOWS:
        return f"more than {_MOST_WINDOWS} windows of {window_s:g} s"
    start_s, place = _placed(times, window_s)
    mean = _means(place, values)
    empty = np.isnan(mean).mean()
    if empty > _EMPTY:
        # Samples that come as they like are gathered in windows as long as they are apart on average.
        longer_s = _usual_length((times[-1] - times[0]) / (len(times) - 1))
        longer_start_s, longer_place = _placed(times, longer_s)
        longer = _means(longer_place, values)
        if np.isnan(longer).mean() > _EMPTY or len(longer) < LEAST_WINDOWS:
            return f"{empty:.0%} of its windows of {window_s:g} s hold no value"
        window_s, start_s, place, mean = longer_s, longer_start_s, longer_place, longer
    known = np.isfinite(capacities)
    capacity = _means(place[known], capacities[known], len(mean)) if known.any() else None
    return Series(name, start_s, window_s, mean, capacity)


def _placed(times: Array, window_s: float) -> tuple[float, np.ndarray]:
    """When the first window starts, and the window of each time."""
    # Windows lie around the samples, so that one that comes a little early or late stays in its own.
    turn = np.angle(np.mean(np.exp(2j * np.pi * np.mod(times / window_s, 1.0)))) / (2 * np.pi)
    first = math.floor(times[0] / window_s - turn + 0.5)
    place = np.floor(times / window_s - turn + 0.5 + 1e-9).astype(np.int64) - first
    return float((first + turn - 0.5) * window_s), place


def _usual_length(least_s: float) -> float:
    """The shortest of the lengths that divide minutes, hours and days that is not below ``least_s``; whole days beyond."""
    return next((length for length in _USUAL_S if length >= least_s), math.ceil(least_s / 86400.0) * 86400.0)


def _spacing(times: Array) -> float:
    """How far samples are mostly apart: the mean of the distances near their median, in whole minutes or seconds where
    that is within 1 %."""
    apart = np.diff(times)
    middle = float(np.median(apart))
    mean = float(apart[np.abs(apart - middle) <= middle / 2].mean())
    for unit in (60.0, 1.0):
        whole = round(mean / unit) * unit
        if whole > 0 and abs(whole - mean) <= 0.01 * mean:
            return whole
    return mean


def _means(place: np.ndarray, values: Array, length: int = 0) -> Array:
    counts = np.bincount(place, minlength=length)
    sums = np.bincount(place, weights=values, minlength=length)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def carried_forward(values: Array, most: int) -> Array:
    """Each empty window filled with the last value before it, if that is at most ``most`` windows old; [series, time]."""
    places = np.arange(values.shape[1])
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, places), axis=1)
    filled = np.take_along_axis(values, np.maximum(last, 0), axis=1)
    return np.where((last >= 0) & (places - last <= most), filled, np.nan)
