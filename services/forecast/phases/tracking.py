"""The phase of a unit that trains, told from what its program reports, through restarts of the program and of this service.

For each report, in the order in which they come:
1. A report of an older run, without a loss that is a number, or whose step is not after all earlier ones, is left aside and counted.
   So is a step beyond the declared end, and one that leaps ahead of the others, unless the next report confirms it. One of the
   newest steps that is reported again is another rank's word of it: it changes nothing.
2. A run that starts again from a checkpoint repeats steps: they were judged already, and the phase stays. One that starts again
   from the beginning is judged anew.
3. The others go through the detector (``detector``) with what is declared and reported of the schedule.
4. What the detector says is told only where the reports carry it, else the phase is unknown, with the reason:
   - more than half of the newest reports are left aside, or the declared length contradicts itself;
   - the beginning was not seen, or a piece in between: the pace cannot be compared with its peak;
   - warm-up: no learning rate or batch size has risen and none is declared;
   - fast: no fall of the loss has stood out of its noise yet, or nothing is known of the learning rate and the pace has not
     passed its peak (it may be a warm-up);
   - stable: the loss rises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from typing import Any

from services.forecast.phases.curve import Phase
from services.forecast.phases.detector import LARGEST_LOSS, PASSED, PhaseDetector, Schedule
from services.forecast.phases.ramps import is_told
from services.forecast.phases.truth import SHARE_OF_PEAK

LOSS_NAMES = ("loss", "train_loss", "training_loss")
RATE_NAMES = ("learning_rate", "lr")
BATCH_NAMES = ("global_batch", "global_batch_size", "batch_size")

# The newest reports of which more than half must be usable.
_NEWEST = 8
# A first step up to this share of the run (and up to _EARLY steps) is its beginning.
_BEGINNING = 0.02
_EARLY = 10.0
# A leap is more than this share of the run and this many times the longest distance so far.
_LEAP_SHARE = 0.1
_LEAP_TIMES = 10.0
# Ranks of a gang are so many steps apart at most, and so many reports come before the next step; else the steps stand still.
_RANKS_APART = 8
_RANKS_REPORT = 64

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Report:
    """One report of progress: ``loss``, ``rate`` (learning rate) and ``batch`` are NaN where they are not told."""

    epoch: int
    step: int
    at_s: float
    total_steps: int = 0
    loss: float = math.nan
    rate: float = math.nan
    batch: float = math.nan


def report_of(epoch: int, step: int, total_steps: int, at_s: float, metrics: Mapping[str, float]) -> Report:
    """A report from the metrics of the program protocol, by the names that it gives them."""

    def first(names: tuple[str, ...]) -> float:
        return next((metrics[name] for name in names if name in metrics), math.nan)

    return Report(epoch, step, at_s, total_steps, first(LOSS_NAMES), first(RATE_NAMES), first(BATCH_NAMES))


@dataclass(frozen=True, slots=True)
class Told:
    """From ``step`` on the unit is in ``phase``; None: unknown, for ``reason``."""

    step: int
    phase: Phase | None
    reason: str


class _Use(Enum):
    """What becomes of a report."""

    NEW = 0
    REPEATED = 1
    """A step that an earlier run has made, up to which this one has to come again."""
    UNUSABLE = 2
    OF_ANOTHER_RANK = 3
    """One of the newest steps again; the first report of it counts."""


_BEGIN = Told(0, None, "no report yet")


@dataclass(slots=True)
class _Facts:
    """What is kept beside the detector; steps are -1 where there was none. ``at_step`` is the newest of the run."""

    epoch: int = 0
    at_step: int = -1
    at_s: float = 0.0
    last: int = -1
    first: int = -1
    second: int = -1
    longest: int = 0
    total: int = 0
    contradiction: str = ""
    pending: int = -1
    hole: bool = False
    taken: int = 0
    left_aside: int = 0
    rates: bool = False
    # The newest steps of the run, and reports since that were of one of them.
    recent: list[int] = field(default_factory=list)
    again: int = 0
    newest: list[bool] = field(default_factory=list)
    # Steps and seconds seen in each phase ("" unknown), within runs.
    steps_in: dict[str, float] = field(default_factory=dict)
    seconds_in: dict[str, float] = field(default_factory=dict)


_FACTS = [item.name for item in fields(_Facts)]


class UnitPhases:
    """The phase of one unit; `state` and `restored` carry it over a restart of the service.

    ``declared`` is the schedule of the job file; a length that the program reports goes before.
    """

    def __init__(self, declared: Schedule | None = None) -> None:
        self._declared = declared or Schedule()
        self._facts = _Facts()
        self._detector = PhaseDetector(self._declared)
        self.told = _BEGIN

    @property
    def epoch(self) -> int:
        """Of the newest run."""
        return self._facts.epoch

    @property
    def step(self) -> int | None:
        """The newest step of the newest run."""
        return self._facts.at_step if self._facts.at_step >= 0 else None

    @property
    def total_steps(self) -> int | None:
        """The length of the run as reported, else as declared."""
        declared = self._declared.total_steps
        return self._facts.total or (None if declared is None else int(declared))

    @property
    def taken(self) -> int:
        """Reports that the phase rests on."""
        return self._facts.taken

    @property
    def left_aside(self) -> int:
        """Reports that could not be used."""
        return self._facts.left_aside

    def step_s(self, phase: Phase) -> float | None:
        """Seconds of a step in ``phase`` so far, pauses within runs included; None before two reports in it."""
        steps = self._facts.steps_in.get(phase.name, 0.0)
        return self._facts.seconds_in[phase.name] / steps if steps > 0 else None

    def observe(self, report: Report) -> Told | None:
        """Take a report; what is told from now on where the phase changes with it."""
        if report.epoch < self._facts.epoch:
            self._facts.left_aside += 1
            return None
        if report.epoch > self._facts.epoch:
            self._begin_run(report)
        facts = self._facts
        use = self._use_of(report)
        if use is _Use.OF_ANOTHER_RANK:
            facts.again += 1
            return None
        facts.newest = [*facts.newest[-(_NEWEST - 1) :], use is not _Use.UNUSABLE]
        if use is _Use.UNUSABLE:
            facts.left_aside += 1
        else:
            self._pass_time(report)
        if use is _Use.NEW:
            self._take(report)
        phase, reason = self._judged()
        if phase is self.told.phase:
            self.told = replace(self.told, reason=reason)
            return None
        self.told = Told(max(0, facts.at_step), phase, reason)
        return self.told

    def _begin_run(self, report: Report) -> None:
        facts = self._facts
        if facts.taken and report.step <= facts.first:
            # From the beginning: nothing of the earlier run stands behind it.
            self._detector = PhaseDetector(self._declared)
            self._facts = facts = _Facts(
                left_aside=facts.left_aside, steps_in=facts.steps_in, seconds_in=facts.seconds_in
            )
        facts.epoch, facts.at_step, facts.pending = report.epoch, -1, -1
        facts.newest, facts.contradiction, facts.total = [], "", max(0, report.total_steps)
        facts.recent, facts.again = [], 0

    def _use_of(self, report: Report) -> _Use:
        facts = self._facts
        if report.total_steps > 0 and facts.total and report.total_steps != facts.total:
            facts.contradiction = f"total_steps was {facts.total} and is {report.total_steps}"
        elif report.total_steps > 0:
            facts.total = report.total_steps
        total = self.total_steps
        if report.step in facts.recent and facts.again < _RANKS_REPORT:
            return _Use.OF_ANOTHER_RANK
        if not abs(report.loss) <= LARGEST_LOSS or report.step <= facts.at_step or (total and report.step > total):
            return _Use.UNUSABLE
        if report.step <= facts.last:
            return _Use.REPEATED
        leap = max(_LEAP_SHARE * (total or facts.last), _LEAP_TIMES * facts.longest, _EARLY)
        if facts.second < 0 or report.step - facts.last <= leap:
            return _Use.NEW
        confirmed = 0 <= facts.pending < report.step
        facts.pending = report.step
        if not confirmed:
            return _Use.UNUSABLE
        facts.hole = True
        return _Use.NEW

    def _pass_time(self, report: Report) -> None:
        facts = self._facts
        if facts.at_step >= 0 and report.at_s >= facts.at_s:
            name = "" if self.told.phase is None else self.told.phase.name
            facts.steps_in[name] = facts.steps_in.get(name, 0.0) + report.step - facts.at_step
            facts.seconds_in[name] = facts.seconds_in.get(name, 0.0) + report.at_s - facts.at_s
        facts.at_step, facts.at_s = report.step, report.at_s
        facts.recent, facts.again = [*facts.recent[-(_RANKS_APART - 1) :], report.step], 0

    def _take(self, report: Report) -> None:
        facts = self._facts
        if facts.first < 0:
            facts.first = report.step
        elif facts.second < 0:
            facts.second = report.step
        if facts.last >= 0 and not facts.hole:
            facts.longest = max(facts.longest, report.step - facts.last)
        facts.last, facts.pending = report.step, -1
        facts.taken += 1
        facts.rates = facts.rates or is_told(report.rate) or is_told(report.batch)
        self._detector.set_total_steps(self.total_steps)
        self._detector.observe(float(report.step), report.loss, report.rate, report.batch)

    def _judged(self) -> tuple[Phase | None, str]:
        facts = self._facts
        if facts.contradiction:
            return None, facts.contradiction
        bad = facts.newest.count(False)
        if 2 * bad > len(facts.newest):
            return None, f"{bad} of the newest {len(facts.newest)} reports have no step of its own or no loss"
        if not self._beginning_was_seen():
            return None, f"nothing is known of the steps before {facts.first}"
        if facts.hole:
            return None, "a piece of the run was not reported"
        return self._carried()

    def _beginning_was_seen(self) -> bool:
        facts = self._facts
        cadence = facts.second - facts.first if facts.second >= 0 else 0
        early = max(_EARLY, _BEGINNING * (self.total_steps or 0), 2.0 * cadence)
        return facts.first <= early

    def _carried(self) -> tuple[Phase | None, str]:
        detector = self._detector
        match detector.phase:
            case Phase.WARM_UP:
                if detector.ramp_was_seen:
                    return Phase.WARM_UP, ""
                return None, "neither learning rate nor batch size has risen yet"
            case Phase.FAST | Phase.STABLE:
                return self._after_warm_up(detector.phase)
            case _:
                return None, "no report with a step and a loss yet"

    def _after_warm_up(self, phase: Phase) -> tuple[Phase | None, str]:
        detector = self._detector
        if detector.highest_fall <= 0 or detector.slope is None:
            return None, "no fall of the loss stands out of its noise yet"
        fall = detector.slope.fall
        if fall < -SHARE_OF_PEAK * detector.highest_fall:
            return None, "the loss rises"
        known = self._facts.rates or self._declared.warm_up_steps is not None
        if phase is Phase.FAST and not known and fall > PASSED * detector.highest_fall:
            return None, "no learning rate is reported and the pace has not passed its peak: it may be a warm-up"
        return phase, ""

    def state(self) -> dict[str, Any]:
        """What `restored` takes, fit for JSON."""
        return {
            "format": FORMAT,
            "facts": asdict(self._facts),
            "detector": self._detector.state(),
            "told": [self.told.step, None if self.told.phase is None else int(self.told.phase), self.told.reason],
        }

    @classmethod
    def restored(cls, kept: Mapping[str, Any], declared: Schedule | None = None) -> UnitPhases:
        """Go on from a kept state; one of another format is begun anew, which tells nothing until the next start.

        Facts that a later release added, whose replicas write beside this one's, are passed over.
        """
        unit = cls(declared)
        if kept.get("format") != FORMAT:
            return unit
        unit._facts = _Facts(**{name: kept["facts"][name] for name in _FACTS if name in kept["facts"]})
        unit._detector.restore(kept["detector"])
        step, phase, reason = kept["told"]
        unit.told = Told(step, None if phase is None else Phase(phase), reason)
        return unit
