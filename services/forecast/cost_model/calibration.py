"""Calibration: what a few measured runs of a group say of the times of its other runs.

ln(measured) = ln(predicted) + discrepancy + noise (Kennedy and O'Hagan 2001, doi:10.1111/1467-9868.00294). The discrepancy is
what formulas and shared parameters leave out. It is a Gaussian process with mean zero: the same for runs that are alike,
independent for runs that have nothing in common, so a measured run corrects its like and leaves the rest as predicted.

1. Runs are compared by their ``Traits``: a step of a factor of two in a size (hidden, sequence, micro batch, groups, nodes,
   chunks) counts one, another kind (chip, precision, recomputation, ...) counts one. The covariance falls by e over
   ``Prior.reach`` such steps (Rasmussen and Williams 2006, section 4.2.1, exponential).
2. Time that waits for the chip and time that waits for the host have discrepancies of their own: a run that waits for the
   host says nothing of one that does not.
3. A group whose typical run is further off than the prior expects has wider discrepancies and noise, both by the same factor
   (``Prior.widened``). Where every one of several runs is off to the same side by more than two standard deviations, what they
   are off beyond the prior is common to all of the group, whatever its sizes: three runs that are all a third slower are believed
   (software that reaches less of a chip than is assumed).
4. A run that cannot be reconciled with the others counts less: noise is Student's t with ``DEGREES`` of freedom, by
   reweighting (Gelman et al. 2013, Bayesian Data Analysis, section 17.2).

No parameter of the model moves. The widths in ``PRIOR`` were chosen over published families (`bench/cost_model_prior.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from services.forecast.cost_model.efficiency import Efficiency
from services.forecast.cost_model.layout import TrainingLayout
from services.forecast.cost_model.machine import Machine
from services.forecast.cost_model.shapes import ModelShape
from services.forecast.cost_model.step_time import step_time

DEGREES = 3.0
_ROUNDS = 6
_STEP = 1e-3
# Standard deviations of the prior beyond which every run of a group has to be off to tell of the whole group.
_FAR = 2.0


@dataclass(frozen=True, slots=True)
class Prior:
    """Standard deviations of logarithms of times, and how far a discrepancy reaches (in steps, see above); all above 0.

    ``common`` is that of a discrepancy which all runs of the group share; 0: there is none.
    """

    amplitude: float
    reach: float
    noise: float
    common: float = 0.0

    def widened(self, residuals: np.ndarray) -> Prior:
        """At least as wide, so that the closest runs are no further off than is to be expected."""
        expected = self.amplitude**2 + self.noise**2
        closest = float(np.min(np.square(residuals)))
        one_sided = bool(np.all(residuals > 0) or np.all(residuals < 0))
        if len(residuals) > 1 and one_sided and closest > _FAR**2 * expected:
            return replace(self, common=math.sqrt(closest - expected))
        low = float(np.quantile(np.square(residuals), 0.25, method="lower"))
        wider = math.sqrt(max(1.0, low / expected))
        return replace(self, amplitude=self.amplitude * wider, noise=self.noise * wider)


PRIOR = Prior(amplitude=0.06, reach=4.0, noise=0.03)


@dataclass(frozen=True, slots=True)
class Traits:
    """What tells runs apart: logarithms (base 2) of sizes, kinds, and the share of the time that waits for chip and links."""

    sizes: tuple[float, ...]
    kinds: tuple[object, ...]
    chip_share: float


@dataclass(frozen=True, slots=True)
class Correction:
    """What to multiply a predicted time by, and the standard deviation of the logarithm of what comes out."""

    factor: float
    spread: float


def traits_of(shape: ModelShape, layout: TrainingLayout, machine: Machine, efficiency: Efficiency) -> Traits:
    """The traits of a run."""
    nodes = max(0.125, layout.accelerators / machine.node_size)
    counts = (shape.hidden, layout.sequence, layout.micro_batch, layout.tp, layout.pp, layout.cp, layout.ep, layout.vpp)
    kinds = (
        machine.chip,
        layout.precision,
        layout.recompute.value,
        layout.eager,
        layout.captured,
        layout.zero == 3,
        bool(shape.experts),
    )
    as_is = step_time(shape, layout, machine, efficiency).total_s
    slower = step_time(shape, layout, machine, efficiency.slowed(math.exp(_STEP))).total_s
    share = min(1.0, max(0.0, math.log(slower / as_is) / _STEP))
    return Traits((*(math.log2(count) for count in counts), math.log2(nodes)), kinds, share)


@dataclass(frozen=True, slots=True)
class Likeness:
    """Steps between runs (rows) and measured runs (columns), and the share of time that waits for the same thing."""

    steps: np.ndarray
    shared: np.ndarray

    @classmethod
    def of(cls, runs: Sequence[Traits], measured: Sequence[Traits]) -> Likeness:
        """Of each run to each measured run."""
        sizes, other_sizes = (np.array([each.sizes for each in some]) for some in (runs, measured))
        steps = np.abs(sizes[:, None] - other_sizes[None]).sum(axis=2)
        unlike = [[sum(a != b for a, b in zip(r.kinds, m.kinds, strict=True)) for m in measured] for r in runs]
        chip, other = (np.array([each.chip_share for each in some]) for some in (runs, measured))
        return cls(steps + np.array(unlike), np.outer(chip, other) + np.outer(1 - chip, 1 - other))

    def covariance(self, prior: Prior) -> np.ndarray:
        """Of the discrepancies."""
        return np.asarray(prior.amplitude**2 * self.shared * np.exp(-self.steps / prior.reach) + prior.common**2)


def expected(
    residuals: np.ndarray, among: Likeness, to_others: Likeness, prior: Prior
) -> tuple[np.ndarray, np.ndarray]:
    """Mean of the discrepancy of other runs, and how much of its variance is explained.

    ``residuals``: ln(measured / predicted) of the measured runs, at least one; ``among`` their likeness to one another,
    ``to_others`` that of the other runs (rows) to them; ``prior`` as wide as it is to be.
    """
    inner, outer = among.covariance(prior), to_others.covariance(prior)
    variance = np.full(len(residuals), prior.noise**2)
    for _ in range(_ROUNDS):
        weights = np.linalg.solve(inner + np.diag(variance), residuals)
        variance = (DEGREES * prior.noise**2 + (variance * weights) ** 2) / (DEGREES + 1)
    total = inner + np.diag(variance)
    explained = np.einsum("ij,ji->i", outer, np.linalg.solve(total, outer.T))
    return outer @ np.linalg.solve(total, residuals), explained


def corrections(
    measured: Sequence[Traits],
    predicted_s: Sequence[float],
    measured_s: Sequence[float],
    others: Sequence[Traits],
    prior: Prior = PRIOR,
) -> list[Correction]:
    """The corrections of ``others`` after ``measured`` runs took ``measured_s`` where ``predicted_s`` were predicted.

    Without measured runs the factors are 1 and the spreads those of the prior.
    """
    if not others:
        return []
    means, explained = np.zeros(len(others)), np.zeros(len(others))
    if measured:
        residuals = np.log(np.asarray(measured_s, dtype=float) / np.asarray(predicted_s, dtype=float))
        prior = prior.widened(residuals)
        means, explained = expected(residuals, Likeness.of(measured, measured), Likeness.of(others, measured), prior)
    own = prior.amplitude**2 * np.array([each.chip_share**2 + (1 - each.chip_share) ** 2 for each in others])
    own += prior.common**2
    spreads = np.sqrt(np.maximum(own - explained, 0.0) + prior.noise**2)
    return [Correction(math.exp(mean), spread) for mean, spread in zip(means.tolist(), spreads.tolist(), strict=True)]
