"""The advice for a domain: expected load, peaks and valleys, and which jobs should start later. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from services.forecast.advice.profile import Array, Expected, expected_load
from services.forecast.advice.shifting import (
    Flexible,
    Shifted,
    Stretch,
    above_capacity,
    shift,
    stretches_where,
)
from services.forecast.waveform.durations import RunTime, Unknown

# Above and below which shares of the capacity the load is a peak or a valley.
PEAK, VALLEY = 0.9, 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """A waiting or planned job; times are seconds from now, ``deadline_s`` infinite without one.

    ``run_time`` is Unknown where nothing is known of it: it then holds its accelerators to the end of what is looked at.
    ``bound`` says why it cannot shift whatever its deadline; with ``here`` False it is none of the domain's load.
    """

    job_id: str
    tenant_id: str
    accelerators: float
    run_time: RunTime | Unknown
    start_s: float = 0.0
    deadline_s: float = math.inf
    planned: bool = False
    bound: str = ""
    here: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """A job that should start later: at ``start_s`` instead of ``work.start_s``."""

    work: Work
    start_s: float


@dataclass(frozen=True, slots=True)
class Advice:
    """See the module; loads are accelerators [window]. ``fixed`` are jobs that cannot shift, with the reason."""

    window_s: float
    capacity: float
    expected: Expected
    shifted: Shifted
    moves: tuple[Move, ...]
    fixed: tuple[tuple[Work, str], ...]
    peaks: tuple[Stretch, ...]
    valleys: tuple[Stretch, ...]

    @property
    def above_before(self) -> float:
        """Accelerator-hours above the capacity, as submitted."""
        return above_capacity(self.shifted.before, self.capacity, self.window_s)

    @property
    def above_after(self) -> float:
        """Accelerator-hours above the capacity, as advised."""
        return above_capacity(self.shifted.after, self.capacity, self.window_s)


def advise(
    history: Mapping[float, float],
    held: float,
    capacity: float,
    work: Sequence[Work],
    *,
    now_s: float,
    window_s: float,
    windows: int,
) -> Advice:
    """The advice. ``history`` are means of the domain's demand by the time of their window, ``held`` what runs hold now.

    A job can shift when its run time is known and the upper end of its band leaves room before its deadline; it is moved as
    far as that band allows, and loads the windows for its expected time.
    """
    expected = expected_load(history, held, now_s, window_s, windows)
    jobs: list[Flexible] = []
    able: list[Work] = []
    fixed: list[tuple[Work, str]] = []
    base = expected.load.copy()
    for item in work:
        first = min(windows, int(item.start_s // window_s))
        reason = _why_fixed(item, first, window_s)
        if isinstance(item.run_time, RunTime) and not reason:
            latest = int((item.deadline_s - item.run_time.high_s) // window_s)
            jobs.append(_flexible(item, first, min(latest, windows), item.run_time.expected_s / window_s))
            able.append(item)
            continue
        fixed.append((item, reason))
        if not item.here:
            continue
        holds = item.run_time.expected_s / window_s if isinstance(item.run_time, RunTime) else float(windows)
        _flexible(item, first, first, holds).hold(base, first)
    shifted = shift(base, jobs, capacity)
    moves = [
        Move(item, start * window_s)
        for item, job, start in zip(able, jobs, shifted.starts, strict=True)
        if start > job.earliest
    ]
    load: Array = shifted.before
    return Advice(
        window_s,
        capacity,
        expected,
        shifted,
        tuple(moves),
        tuple(fixed),
        tuple(stretches_where(load > PEAK * capacity, load)),
        tuple(stretches_where(load < VALLEY * capacity, load)),
    )


def _flexible(item: Work, first: int, latest: int, windows: float) -> Flexible:
    """The job, which holds its accelerators for so many windows and parts of one."""
    length = max(1, math.ceil(windows))
    return Flexible(item.job_id, item.accelerators, first, latest, length, windows - (length - 1))


def _why_fixed(item: Work, first: int, window_s: float) -> str:
    if item.bound:
        return item.bound
    if isinstance(item.run_time, Unknown):
        return item.run_time.reason
    if not item.accelerators:
        return "it asks for no accelerators"
    if item.deadline_s == math.inf:
        return "it has no deadline: how long it may wait is not said"
    if (item.deadline_s - item.run_time.high_s) // window_s <= first:
        return "its deadline leaves no room"
    return ""


def money(hours: float, price_micro_units: int | None) -> int | None:
    """Micro-units of accelerator-hours; None without a price."""
    return None if price_micro_units is None else round(float(np.float64(hours)) * price_micro_units)
