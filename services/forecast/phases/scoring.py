"""How well phases were told: accuracy with a tolerance, macro-F1, delay of the boundaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from services.forecast.phases.curve import Array, Curve, Phase
from services.forecast.phases.detector import PhaseChanged, PhaseDetector, Schedule
from services.forecast.phases.ramps import warm_up_end
from services.forecast.phases.tracking import Report, UnitPhases
from services.forecast.phases.truth import SHARE_OF_PEAK, Boundaries

TOLERANCE = 0.02
# The trivial rule: the share with the best macro-F1 on the family that all constants were chosen on.
FIXED_WARM_UP = 0.01
FIXED_STABLE = 0.70
_CLASSES = len(Phase)


@dataclass(frozen=True, slots=True)
class RunScore:
    """One run against its truth; each run weighs the same, however many samples it has.

    ``exact`` and ``tolerant`` [true phase, told phase] are shares of the run's samples; in the tolerant one a told phase
    counts as true where the truth has it within 2 % of the recorded run. ``delays`` are told minus true, as shares of the run,
    for the boundaries that both have; ``missed`` boundaries only the truth has, ``false`` only the teller. A warm-up
    ends behind the last sample that is told as one; stable is told from the last time on that it is told without being taken back, which
    happened ``taken_back`` times.
    """

    exact: Array
    tolerant: Array
    delays: dict[str, float]
    missed: int
    false: int
    taken_back: int = 0


def detect(
    curve: Curve, *, schedule_known: bool, share_of_peak: float = SHARE_OF_PEAK
) -> tuple[Array, list[PhaseChanged]]:
    """The phase told at each sample of ``curve`` [sample], and the events, by a detector that sees no later sample."""
    detector = PhaseDetector(Schedule(), schedule_known=schedule_known, share_of_peak=share_of_peak)
    nothing = np.full(len(curve.step), np.nan)
    lr, gbs = (nothing if column is None else column for column in (curve.lr, curve.gbs))
    told, events = np.empty(len(curve.step)), []
    for place, sample in enumerate(
        zip(curve.step.tolist(), curve.loss.tolist(), lr.tolist(), gbs.tolist(), strict=True)
    ):
        if sample[0] >= curve.declared_at:
            detector.set_total_steps(curve.total_steps)
        if event := detector.observe(*sample):
            events.append(event)
        told[place] = math.nan if detector.phase is None else float(detector.phase)
    return told, events


def served(curve: Curve) -> Array:
    """The phase that the service tells at each sample of ``curve`` [sample], NaN where it says that it is unknown."""
    unit = UnitPhases()
    total = int(curve.total_steps or 0)
    nothing = np.full(len(curve.step), np.nan)
    lr, gbs = (nothing if column is None else column for column in (curve.lr, curve.gbs))
    told = np.full(len(curve.step), np.nan)
    for place, (step, loss, rate, batch) in enumerate(
        zip(curve.step.tolist(), curve.loss.tolist(), lr.tolist(), gbs.tolist(), strict=True)
    ):
        unit.observe(Report(1, int(step), step, total if step >= curve.declared_at else 0, loss, rate, batch))
        if unit.told.phase is not None:
            told[place] = float(unit.told.phase)
    return told


def where_told(curve: Curve, truth: Boundaries, told: Array) -> Array | None:
    """The table (see `RunScore`, with tolerance) over the samples of which something is told; None where nothing is."""
    known = ~np.isnan(told)
    if not known.any():
        return None
    part = replace(curve, step=curve.step[known], loss=curve.loss[known], lr=None, gbs=None)
    return score(part, truth, told[known], curve.recorded).tolerant


def fixed_fractions(curve: Curve) -> Array:
    """Phases by shares of the run's length, which this rule is told, and a warm-up where a ramp is declared."""
    warm_up = 0.0 if warm_up_end(curve) is None else FIXED_WARM_UP
    return Boundaries(warm_up, FIXED_STABLE).phase_at(curve.step / curve.length)


def score(curve: Curve, truth: Boundaries, told: Array, length: float | None = None) -> RunScore:
    """Compare ``told`` [sample] with the truth.

    ``length``: steps of which tolerance and delays are shares; None: those recorded. Of a run that was stopped early, 2 % of what was
    declared could be most of what there is.
    """
    real = truth.phase_at(curve.step)
    length = length or curve.recorded
    near = TOLERANCE * length
    taken_back = int(np.count_nonzero((told[:-1] == Phase.STABLE) & (told[1:] != Phase.STABLE)))
    within = np.stack([_present(truth, curve.step - near, curve.step + near, phase, curve.step[0]) for phase in Phase])
    right = within[told.astype(np.int64), np.arange(len(told))]
    missed = false = 0
    delays: dict[str, float] = {}
    for name, true_at, told_at in (
        ("warm_up_end", truth.warm_up_until if real[0] == Phase.WARM_UP else math.inf, _warm_up_end(curve, told)),
        ("stable_onset", truth.stable_from, _last_onset(curve, told)),
    ):
        if math.isfinite(true_at) and math.isfinite(told_at):
            delays[name] = (told_at - true_at) / length
        elif math.isfinite(true_at):
            missed += 1
        elif math.isfinite(told_at) and name == "stable_onset":
            false += 1
    return RunScore(_table(real, told), _table(real, np.where(right, real, told)), delays, missed, false, taken_back)


def _present(truth: Boundaries, low: Array, high: Array, phase: Phase, start: float) -> np.ndarray:
    begins, ends = {
        Phase.WARM_UP: (start, truth.warm_up_until),
        Phase.FAST: (max(start, truth.warm_up_until), truth.stable_from),
        Phase.STABLE: (truth.stable_from, math.inf),
    }[phase]
    return (high >= begins) & (low < ends) & (begins < ends)


def _warm_up_end(curve: Curve, told: Array) -> float:
    """The step from which on no warm-up is told any more; infinite where none is told, or the last sample is."""
    at = np.flatnonzero(told == Phase.WARM_UP)
    return float(curve.step[at[-1] + 1]) if len(at) and at[-1] + 1 < len(told) else math.inf


def _last_onset(curve: Curve, told: Array) -> float:
    """The step from which on stable is told to the end; infinite where the last sample is not told so."""
    other = np.flatnonzero(told != Phase.STABLE)
    first = int(other[-1]) + 1 if len(other) else 0
    return float(curve.step[first]) if first < len(told) else math.inf


def _table(real: Array, told: Array) -> Array:
    places = real.astype(np.int64) * _CLASSES + told.astype(np.int64)
    return np.bincount(places, minlength=_CLASSES**2).reshape(_CLASSES, _CLASSES) / len(real)


def accuracy(tables: Sequence[Array]) -> float:
    """Share on the diagonal, each run weighing the same."""
    return float(np.mean([np.trace(table) for table in tables]))


def macro_f1(tables: Sequence[Array]) -> float:
    """Mean F1 over the phases that the truth or the teller has, of the pooled table."""
    pooled = np.sum(tables, axis=0)
    either = pooled.sum(axis=0) + pooled.sum(axis=1)
    known = either > 0
    return float(np.mean(2 * np.diag(pooled)[known] / either[known]))


def majority(curves: Sequence[Curve], truths: Sequence[Boundaries]) -> Phase:
    """The most frequent phase of these very runs: a rule that is told the answer's distribution."""
    shares = np.zeros(_CLASSES)
    for curve, truth in zip(curves, truths, strict=True):
        counts = np.bincount(truth.phase_at(curve.step).astype(np.int64), minlength=_CLASSES)
        shares += counts / len(curve.step)
    return Phase(int(np.argmax(shares)))
