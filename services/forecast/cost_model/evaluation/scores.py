"""Scores of predicted against measured step times and memory, for the cost model and the baselines beside it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from services.forecast.cost_model.calibration import PRIOR, Prior, Traits, corrections, traits_of
from services.forecast.cost_model.efficiency import Efficiency
from services.forecast.cost_model.evaluation.runs import Run
from services.forecast.cost_model.layout import TrainingLayout
from services.forecast.cost_model.memory import memory_of, verdict
from services.forecast.cost_model.probes import Telling
from services.forecast.cost_model.step_time import step_time

# Draws of the runs that can be measured; the score is their mean. A draw has four for each that is measured, so that it shows
# what hangs on which they are, and at most this share of a group.
DRAWS = 20
_FOR_EACH, _AVAILABLE = 4, 0.8
# An error of exactly the limit is within it, and times that differ by no more are alike.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class TimeScore:
    """Errors of step times: predicted / measured - 1."""

    count: int
    mape: float
    bias: float
    within_8: float
    within_10: float


@dataclass(frozen=True, slots=True)
class MemoryScore:
    """Errors of memory and of verdicts; precision is right ones among those that say "fits" (or "does not fit")."""

    count: int
    mape: float | None
    bias: float | None
    verdicts: int
    precision: float | None
    said_fits: int
    precision_fits: float | None


def ran_and_fits(runs: Sequence[Run]) -> list[bool]:
    """Of the runs that are known to have run, because a time or a memory was measured: whether each is said to fit."""
    ran = [run for run in runs if run.step_s is not None or run.memory_bytes is not None]
    return [verdict(memory_of(run.shape, run.layout), run.machine.memory_bytes).fits for run in ran]


def time_score(predicted: Sequence[float] | np.ndarray, measured: Sequence[float]) -> TimeScore:
    """Score of at least one run."""
    errors = np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float) - 1
    size = np.abs(errors)
    return TimeScore(
        len(errors),
        float(size.mean()),
        float(errors.mean()),
        float((size <= 0.08 + _ROUNDING).mean()),
        float((size <= 0.10 + _ROUNDING).mean()),
    )


def predicted_steps(runs: Sequence[Run], efficiency: Efficiency) -> list[float]:
    """Step times of runs."""
    return [step_time(run.shape, run.layout, run.machine, efficiency).total_s for run in runs]


def by_group(runs: Sequence[Run]) -> Mapping[str, list[int]]:
    """Positions of runs by group."""
    found: dict[str, list[int]] = defaultdict(list)
    for position, run in enumerate(runs):
        found[run.group].append(position)
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Draw:
    """One drawing of calibrating runs: what the others are predicted to take."""

    # NaN for the runs that calibrated.
    predicted_s: np.ndarray
    # The same of the baseline: the median share of the peak of the runs that calibrated.
    constant_s: np.ndarray
    # Standard deviations of the logarithms of ``predicted_s``.
    spread: np.ndarray


def calibrated_draws(
    runs: Sequence[Run],
    efficiency: Efficiency,
    count: int,
    draws: np.random.Generator,
    prior: Prior = PRIOR,
) -> list[Draw]:
    """Per draw, each group's predictions after ``count`` of its runs are measured; smaller groups are left out.

    Measured are those that tell most of the group (``probes``) of a random part of it: not everything can be run.
    """
    known = _Known.of(runs, efficiency, count, prior)
    return [known.after(drawn_available(known.groups, count, draws)) for _ in range(DRAWS)]


def calibrated_as_advised(runs: Sequence[Run], efficiency: Efficiency, count: int, prior: Prior = PRIOR) -> Draw:
    """Each group's predictions after those ``count`` of all its runs are measured that tell most of the others (`to_measure`).

    That is what one gets who may measure any of them; where three runs happen to be odd it is so much worse, for it is one drawing.
    """
    known = _Known.of(runs, efficiency, count, prior)
    return known.after([range(len(members)) for members in known.groups])


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of runs before ``count`` of each group are measured."""

    runs: Sequence[Run]
    cold: np.ndarray
    traits: Sequence[Traits]
    groups: Sequence[Sequence[int]]
    telling: Sequence[Telling]
    count: int
    prior: Prior

    @classmethod
    def of(cls, runs: Sequence[Run], efficiency: Efficiency, count: int, prior: Prior) -> _Known:
        traits = traits_of_runs(runs, efficiency)
        groups = groups_to_calibrate(runs, count)
        cold = np.asarray(predicted_steps(runs, efficiency))
        return cls(runs, cold, traits, groups, telling_of(groups, traits, prior), count, prior)

    def after(self, available: Sequence[Sequence[int]]) -> Draw:
        """Of the ``available`` runs of each group those that tell most are measured."""
        predicted, constant, spread = (np.full(len(self.runs), np.nan) for _ in range(3))
        for probes, others in probes_of(self.groups, self.telling, available, self.count):
            changes = corrections(
                [self.traits[position] for position in probes],
                self.cold[probes].tolist(),
                [self.runs[position].step_s or np.nan for position in probes],
                [self.traits[position] for position in others],
                self.prior,
            )
            predicted[others] = self.cold[others] * [change.factor for change in changes]
            spread[others] = [change.spread for change in changes]
            share = _share_of_peak([self.runs[position] for position in probes])
            constant[others] = [_least_seconds(self.runs[position]) / share for position in others]
        return Draw(predicted, constant, spread)


def within_band(predicted: np.ndarray, measured: np.ndarray, spread: np.ndarray) -> float:
    """Share of runs that took a time within two standard deviations of what was predicted; at least one run."""
    return float((np.abs(np.log(measured / predicted)) <= 2 * spread).mean())


def cold_spreads(runs: Sequence[Run], efficiency: Efficiency, prior: Prior = PRIOR) -> np.ndarray:
    """Standard deviations of the logarithms of predicted times before anything is measured."""
    found = corrections([], [], [], traits_of_runs(runs, efficiency), prior)
    return np.array([each.spread for each in found])


def traits_of_runs(runs: Sequence[Run], efficiency: Efficiency) -> list[Traits]:
    """What tells the runs apart."""
    return [traits_of(run.shape, run.layout, run.machine, efficiency) for run in runs]


def groups_to_calibrate(runs: Sequence[Run], count: int) -> list[list[int]]:
    """Positions of the runs of each group of more than ``count``."""
    return [members for members in by_group(runs).values() if len(members) > count]


def telling_of(groups: Sequence[Sequence[int]], traits: Sequence[Traits], prior: Prior = PRIOR) -> list[Telling]:
    """What the runs of each group tell of one another."""
    return [Telling.of([traits[position] for position in members], prior) for members in groups]


def drawn_available(groups: Sequence[Sequence[int]], count: int, draws: np.random.Generator) -> list[list[int]]:
    """Of each group, which of its runs can be measured: a random few of them, at least ``count``."""
    enough = [max(count, min(_FOR_EACH * count, math.ceil(_AVAILABLE * len(members)))) for members in groups]
    return [
        np.sort(draws.choice(len(members), size, replace=False)).tolist()
        for members, size in zip(groups, enough, strict=True)
    ]


def probes_of(
    groups: Sequence[Sequence[int]], telling: Sequence[Telling], available: Sequence[Sequence[int]], count: int
) -> list[tuple[list[int], list[int]]]:
    """Positions of the ``count`` runs of each group that calibrate, of those that are ``available``, and of its others."""
    found = []
    for members, told, possible in zip(groups, telling, available, strict=True):
        chosen = told.most(count, possible)
        others = [position for index, position in enumerate(members) if index not in set(chosen)]
        found.append(([members[index] for index in chosen], others))
    return found


def to_measure(runs: Sequence[Run], efficiency: Efficiency, count: int) -> dict[str, list[int]]:
    """Positions of the ``count`` runs of each group that tell most of its others, the first the most."""
    traits = traits_of_runs(runs, efficiency)
    found = {}
    for group, members in by_group(runs).items():
        telling = Telling.of([traits[position] for position in members])
        found[group] = [members[index] for index in telling.most(count, range(len(members)))]
    return found


def _least_seconds(run: Run) -> float:
    """A step at the peak."""
    return run.model_flops / (run.machine.peak(run.layout.precision) * run.layout.accelerators)


def _share_of_peak(runs: Sequence[Run]) -> float:
    return float(np.median([_least_seconds(run) / (run.step_s or np.nan) for run in runs]))


def constant_mfu(runs: Sequence[Run]) -> list[float]:
    """The baseline: the median share of the peak of the very runs it is tested on, per group."""
    found = [0.0] * len(runs)
    for members in by_group(runs).values():
        share = _share_of_peak([runs[position] for position in members])
        for position in members:
            found[position] = _least_seconds(runs[position]) / share
    return found


def layout_regrets(runs: Sequence[Run], predicted: Sequence[float]) -> list[float]:
    """Regret of each set of runs that do the same work on the same machine in at least two layouts.

    Runs of one layout count by their mean. Of layouts that are predicted alike (by constant MFU all are) none is chosen before
    another: the regret is their mean, whatever their order.
    """
    sets: dict[tuple[object, ...], dict[TrainingLayout, list[int]]] = defaultdict(lambda: defaultdict(list))
    for position, run in enumerate(runs):
        layout, machine = run.layout, run.machine
        key = (
            run.group,
            (machine.chip, machine.node_size, machine.fabric_bytes_per_s, machine.memory_bytes_per_s),
            machine.peak(layout.precision),
            run.shape,
            layout.accelerators,
            layout.sequence,
            layout.global_batch,
            layout.precision,
        )
        sets[key][layout].append(position)
    found = []
    for layouts in sets.values():
        if len(layouts) < 2:
            continue
        expected = np.array([np.mean([predicted[position] for position in members]) for members in layouts.values()])
        measured = np.array(
            [np.mean([runs[position].step_s or np.nan for position in members]) for members in layouts.values()]
        )
        chosen = expected <= expected.min() * (1 + _ROUNDING)
        found.append(float(measured[chosen].mean() / measured.min() - 1))
    return found


def memory_score(runs: Sequence[Run]) -> MemoryScore | None:
    """Score of the runs whose memory was measured, or that are said to have run out of it; None when there are none."""
    measured = [(run, run.memory_bytes) for run in runs if run.memory_bytes is not None]
    told = [run for run in runs if run.fitted_in_memory is not None]
    if not told:
        return None
    errors = np.array([memory_of(run.shape, run.layout).total / size - 1 for run, size in measured])
    verdicts = [verdict(memory_of(run.shape, run.layout), run.machine.memory_bytes).fits for run in told]
    right = [said == run.fitted_in_memory for said, run in zip(verdicts, told, strict=True)]
    fitting = [ok for ok, said in zip(right, verdicts, strict=True) if said]
    return MemoryScore(
        count=len(measured),
        mape=float(np.abs(errors).mean()) if measured else None,
        bias=float(errors.mean()) if measured else None,
        verdicts=len(told),
        precision=sum(right) / len(told),
        said_fits=len(fitting),
        precision_fits=sum(fitting) / len(fitting) if fitting else None,
    )
