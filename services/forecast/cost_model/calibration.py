"""Calibration: what a few measured runs of a group say of the times of its other runs.

ln(measured) = ln(predicted) + discrepancy + noise (Kennedy and O'Hagan 2001, doi:10.1111/1467-9868.00294). The discrepancy is
what formulas and shared parameters leave out. It is a Gaussian process with mean zero: the same for runs that are alike,
independent for runs that have nothing in common, so a measured run corrects its like and leaves the rest as predicted.

1. Runs are compared by their ``Traits``: a factor of two in a size (hidden, sequence, micro batch, groups, nodes, chunks)
   is a step, another kind (chip, precision, recomputation, ...) is ``Prior.kind`` steps. The covariance falls by e over
   ``Prior.reach`` steps (Rasmussen and Williams 2006, section 4.2.1, exponential).
2. Time that waits for products, for the memory, for attention, for links within and between nodes, for kernels and transfers to
   start, and for the host have discrepancies of their own, wider where less is known (``WAITS``): a run that waits for one says
   nothing of a run that waits for another. How much of a step waits for what is how much it changes with that rate.
3. How wide discrepancies are, and whether all runs of a group share one (software that reaches less of a chip than is assumed),
   is not known beforehand. Hypotheses of either kind (``Prior.hypotheses``) are weighed by how well they explain the measured
   runs, and what they predict is averaged by these weights (Hoeting et al. 1999, doi:10.1214/ss/1009212519). That is a
   heavy-tailed prior of a common discrepancy; there is no threshold.
4. A run that cannot be reconciled with the others counts less: noise is Student's t with ``DEGREES`` of freedom, by
   reweighting (Gelman et al. 2013, Bayesian Data Analysis, section 17.2).

No parameter of the model moves. The widths in ``PRIOR`` were chosen over published families (`bench/cost_model_prior.py`).
Which runs to measure: ``probes``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from services.forecast.cost_model.efficiency import Efficiency
from services.forecast.cost_model.layout import TrainingLayout
from services.forecast.cost_model.machine import Machine
from services.forecast.cost_model.shapes import ModelShape
from services.forecast.cost_model.step_time import step_time

DEGREES = 3.0
_ROUNDS = 6
_STEP = 1e-2
# What a step may wait for: parameters whose change by a factor makes it slower by as much (-1: their fall), and how wide its
# discrepancies are relative to those of products. What products reach is known best and what links reach least: congestion and
# overlap differ from cluster to cluster and from code to code.
WAITS: Mapping[str, tuple[Mapping[str, int], float]] = {
    "products": ({"matmul": -1}, 1.0),
    "memory": ({"memory": -1}, 2.0),
    "attention": ({"attention": -1}, 3.0),
    "links": ({"link": -1}, 4.0),
    "fabric": ({"fabric": -1}, 4.0),
    "starts": ({"gap_s": 1, "collective_s": 1}, 2.0),
    "host": ({"dispatch_s": 1}, 1.0),
}
# Standard deviations of a discrepancy that all runs of a group share, each as probable. Over 18 code bases that no fit has seen, the
# means of ln(measured / predicted) have one of 0.3.
_COMMON = (0.35, 0.6, 1.0)
# How much wider the discrepancies of a group may be than expected.
_WIDER = (1.0, 1.6, 2.5, 4.0)


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """What may be of a group, one per element: a common standard deviation, a factor of the widths, a probability."""

    common: np.ndarray
    wider: np.ndarray
    probability: np.ndarray


@dataclass(frozen=True, slots=True)
class Prior:
    """Standard deviations of logarithms of times, and how far a discrepancy reaches (in steps, see above); all above 0.

    ``common`` is the probability that all runs of a group share a discrepancy, ``wider`` that of each step of wider
    discrepancies relative to the one before; both from 0 to 1. ``kind`` is how many steps another kind counts.
    """

    amplitude: float
    reach: float
    noise: float
    common: float = 0.0
    wider: float = 0.0
    kind: float = 1.0

    def hypotheses(self) -> Hypotheses:
        """All combinations of a common discrepancy and widths that are possible."""
        shared = [(0.0, 1 - self.common), *((width, self.common / len(_COMMON)) for width in _COMMON)]
        steps = [(factor, self.wider**number) for number, factor in enumerate(_WIDER)]
        found = [
            (width, factor, probable * relative)
            for width, probable in shared
            for factor, relative in steps
            if probable * relative > 0
        ]
        common, wider, probability = np.array(found).T
        return Hypotheses(common, wider, probability / probability.sum())


PRIOR = Prior(amplitude=0.07, reach=6.0, noise=0.03, common=0.1, wider=0.3, kind=2.0)


@dataclass(frozen=True, slots=True)
class Traits:
    """What tells runs apart: logarithms (base 2) of sizes, kinds, and what the time waits for: the share of it by cause, each
    times how wide discrepancies of that cause are."""

    sizes: tuple[float, ...]
    kinds: tuple[object, ...]
    waits: tuple[float, ...]


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
    waits = []
    for powers, wide in WAITS.values():
        slower = replace(
            efficiency, **{name: getattr(efficiency, name) * math.exp(_STEP * power) for name, power in powers.items()}
        )
        changed = step_time(shape, layout, machine, slower).total_s
        waits.append(wide * max(0.0, math.log(changed / as_is) / _STEP))
    return Traits((*(math.log2(count) for count in counts), math.log2(nodes)), kinds, tuple(waits))


@dataclass(frozen=True, slots=True)
class Likeness:
    """Between runs (rows) and measured runs (columns): steps in sizes, the number of kinds that differ, and how much of both
    waits for the same (the covariance of their discrepancies were they alike otherwise, relative to ``Prior.amplitude`` squared)."""

    steps: np.ndarray
    unlike: np.ndarray
    shared: np.ndarray

    @classmethod
    def of(cls, runs: Sequence[Traits], measured: Sequence[Traits]) -> Likeness:
        """Of each run to each measured run."""
        sizes, other_sizes = (np.array([each.sizes for each in some]).T for some in (runs, measured))
        steps, unlike = (np.zeros((len(runs), len(measured))) for _ in range(2))
        for size, other in zip(sizes, other_sizes, strict=True):
            steps += np.abs(size[:, None] - other)
        for kinds in zip(*(each.kinds for each in (*runs, *measured)), strict=True):
            number = {kind: position for position, kind in enumerate(dict.fromkeys(kinds))}
            of_kind = np.array([number[kind] for kind in kinds])
            unlike += of_kind[: len(runs), None] != of_kind[len(runs) :]
        waits, others = (np.array([each.waits for each in some]) for some in (runs, measured))
        return cls(steps, unlike, waits @ others.T)

    def near(self, prior: Prior) -> np.ndarray:
        """Covariance of the discrepancies that fall off with steps."""
        away = self.steps + prior.kind * self.unlike
        return np.asarray(prior.amplitude**2 * self.shared * np.exp(-away / prior.reach))

    def covariance(self, prior: Prior, hypotheses: Hypotheses) -> np.ndarray:
        """Of the discrepancies, by hypothesis (first axis)."""
        wider, common = (each[:, None, None] ** 2 for each in (hypotheses.wider, hypotheses.common))
        return np.asarray(wider * self.near(prior) + common)


@dataclass(frozen=True, slots=True)
class Belief:
    """By hypothesis (first axis) and run: mean of the discrepancy, and how much of its variance is explained; and the
    probability of each hypothesis after the measured runs."""

    mean: np.ndarray
    explained: np.ndarray
    probability: np.ndarray

    def expected(self) -> np.ndarray:
        """Mean of the discrepancy of each run over all hypotheses."""
        return np.asarray(self.probability @ self.mean)


def believed(residuals: np.ndarray, among: Likeness, to_others: Likeness, prior: Prior) -> Belief:
    """What measured runs tell of others.

    ``residuals``: ln(measured / predicted) of the measured runs, at least one; ``among`` their likeness to one another,
    ``to_others`` that of the other runs (rows) to them.
    """
    possible = prior.hypotheses()
    inner, outer = among.covariance(prior, possible), to_others.covariance(prior, possible)
    expected = (prior.noise * possible.wider[:, None]) ** 2
    count = len(residuals)
    values = np.broadcast_to(residuals, (len(expected), count))[..., None]
    variance = np.broadcast_to(expected, (len(expected), count))
    for _ in range(_ROUNDS):
        weights = np.linalg.solve(inner + variance[..., None] * np.eye(count), values)[..., 0]
        variance = (DEGREES * expected + (variance * weights) ** 2) / (DEGREES + 1)
    total = inner + variance[..., None] * np.eye(count)
    weights = np.linalg.solve(total, values)[..., 0]
    # Of the measured runs, with the variances of the noise that were found, whose logarithms have a prior of their own.
    odd = np.sum(np.log(variance / expected) + expected / variance - 1, axis=1)
    evidence = -(np.linalg.slogdet(total)[1] + weights @ residuals + DEGREES * odd) / 2
    probability = possible.probability * np.exp(evidence - evidence.max())
    return Belief(
        np.einsum("hij,hj->hi", outer, weights),
        np.einsum("hij,hji->hi", outer, np.linalg.solve(total, outer.transpose(0, 2, 1))),
        probability / probability.sum(),
    )


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
    possible = prior.hypotheses()
    shape = (len(possible.probability), len(others))
    belief = Belief(np.zeros(shape), np.zeros(shape), possible.probability)
    if measured:
        residuals = np.log(np.asarray(measured_s, dtype=float) / np.asarray(predicted_s, dtype=float))
        belief = believed(residuals, Likeness.of(measured, measured), Likeness.of(others, measured), prior)
    alone = np.array([sum(wait**2 for wait in each.waits) for each in others])
    wider = possible.wider[:, None] ** 2
    own = wider * prior.amplitude**2 * alone + possible.common[:, None] ** 2
    within = np.maximum(own - belief.explained, 0.0) + wider * prior.noise**2
    means = belief.expected()
    # Within hypotheses and between them.
    spreads = np.sqrt(belief.probability @ (within + (belief.mean - means) ** 2))
    return [Correction(math.exp(mean), spread) for mean, spread in zip(means.tolist(), spreads.tolist(), strict=True)]
