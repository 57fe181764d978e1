"""The fit: a Gaussian process over cells, its variances by maximum a posteriori from the cells given, nothing else.

Steps: (1) log-throughputs less what the expected sensitivities say, each column centred on its cells; (2) the covariance
is an offset per column and the components of ``covariance``; (3) variances by L-BFGS on the marginal likelihood with a
log-normal prior, exact gradients; (4) each training chip is predicted from the others in closed form, and how these
errors go together between columns is blended into the covariance of a new chip: what one task says about another,
learned from chips that were measured; (5) cells of a new chip are predicted jointly, so that probe runs on some of them
correct the others; (6) the mean is an average with that of a cautious model, which has next to no sensitivities of its own
but the balance between compute-bound and memory-bound work: lines through few chips reach nowhere; (7) bands are
widened until those of training chips left out hold.

Sources: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2 and 5 (5.4.2 for leaving out);
Ledoit and Wolf, A well-conditioned estimator for large-dimensional covariance matrices (2004), for the blending.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from meridian.hardware import Chip
from services.telemetry.index.calibration import LeftOut, widths
from services.telemetry.index.cells import Cell, Encoded, Encoder
from services.telemetry.index.covariance import (
    COMPONENTS,
    NOISE_VARIANCE,
    balance,
    components,
    each_component,
    expected,
    same_column,
)
from services.telemetry.index.features import Array
from services.telemetry.index.matrix import Column
from services.telemetry.index.precision import single_precision
from services.telemetry.index.prediction import Prediction

FUNCTION_ID = "meridian-sensitivity-gp/3"
"""Names the normalisation; scores under different ids do not compare."""
_OFFSET_VARIANCE = 25.0
_PRIOR_DEVIATION = 1.5
_JITTER = 1e-7
_LARGEST_LOG_VARIANCE = 30.0
_MODEL_WORTH_CHIPS = 20.0
"""The model's own covariance counts like that of so many chips left out."""
_MOST_CELLS_FOR_VARIANCES = 300
_MOST_PARTS = 3
"""Variances are estimated from so many cells at a time, evenly spread over the columns, and so many such parts."""
_LARGEST_ERROR = 3.0
"""Errors of chips left out count up to so many of their deviations, so that one odd cell does not speak for all."""
_ODD_DEVIATIONS, _PASSES = 4.0, 2
"""A training cell farther off than so many deviations is held back, in so many passes."""
_LINES_NEED_CHIPS = 6
"""With so many training chips, lines learned from them count half, the cautious model the other half."""
_CAUTION = 0.05
"""The cautious model's variance of all lines, as a share of the fitted one."""


class IndexModel:
    """Fitted to cells; predicts others."""

    def __init__(self, cells: Mapping[Cell, float], chips: Mapping[str, Chip], log_variances: Array) -> None:
        """``cells`` are throughputs; ``log_variances`` as ``fitted_variances`` finds them (components, then noise)."""
        keys = list(cells)
        self.log_variances = log_variances
        self._encoder = Encoder.of(keys, chips, single_precision(cells, chips))
        self._encoded = self._encoder.encode(keys)
        relative = np.log(np.array([cells[key] for key in keys])) - expected(self._encoded)
        same = same_column(self._encoded, self._encoded)
        level = (same @ relative) / same.sum(axis=1)
        self._level: dict[Column, float] = {key[1]: float(value) for key, value in zip(keys, level, strict=True)}
        diagonal = np.diag_indices(len(keys))
        prior, cautious = self._priors(self._encoded, self._encoded)
        even = np.full(len(keys), float(np.exp(log_variances[-1])) + _JITTER)
        self._noise, self._inverse = _with_odd_cells_held(prior, even, relative - level)
        cautious[diagonal] += self._noise
        self.odd = frozenset(key for key, own in zip(keys, self._noise > even, strict=True) if own)
        self._weights: Array = self._inverse @ (relative - level)
        self._cautious_weights: Array = cho_solve(cho_factor(cautious, lower=True), relative - level)
        self._trust = trust_in_lines(len({chip_id for chip_id, _ in keys}))
        self._likeness, self._blend = self._errors_when_left_out(keys)
        self._widths = widths(self._left_out(keys))

    @classmethod
    def fit(cls, cells: Mapping[Cell, float], chips: Mapping[str, Chip], *, iterations: int = 25) -> IndexModel:
        """The model of ``cells`` ((chip id, column) -> throughput, positive); at least one cell.

        ``chips`` holds every chip of ``cells`` and every chip to be predicted later.
        """
        model = cls(cells, chips, fitted_variances(cells, chips, iterations=iterations))
        even = {cell: value for cell, value in cells.items() if cell not in model.odd}
        if len(even) == len(cells):
            return model
        # Odd cells must not pass for noise either.
        return cls(cells, chips, fitted_variances(even, chips, iterations=iterations))

    def predict(self, cells: Sequence[Cell]) -> Prediction:
        """Log-throughputs of ``cells`` of one chip that the fit has not seen, jointly.

        Their columns must be among those of the fit (KeyError).
        """
        encoded = self._encoder.encode(cells)
        level = np.array([self._level[column] for _, column in cells])
        relative, cross = self._posterior(encoded)
        mean = level + relative
        covariance = self._priors(encoded, encoded)[0] - cross @ self._inverse @ cross.T
        noise = float(np.exp(self.log_variances[-1]))
        seen = [self._likeness[column] for _, column in cells]
        together = np.array(seen) @ np.array(seen).T
        blended = (1 - self._blend) * covariance + self._blend * together
        return Prediction(mean, blended, noise, self._widths, tasks=tuple(column.task for _, column in cells))

    def log_ratio(self, chip_id: str, reference_id: str, column: Column) -> tuple[float, float]:
        """Logarithm of how much faster one chip is than another on ``column``, and its standard deviation.

        Either chip may have been measured or not; a column that the fit has not seen rests on what tasks share.
        """
        encoded = self._encoder.encode([(chip_id, column), (reference_id, column)])
        mean, cross = self._posterior(encoded)
        covariance = self._priors(encoded, encoded)[0] - cross @ self._inverse @ cross.T
        variance = float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
        return float(mean[0] - mean[1]), float(np.sqrt(max(variance, 0.0)))

    @property
    def variances(self) -> dict[str, float]:
        """Component -> fitted variance."""
        names = [*(name for name, _ in COMPONENTS), "noise"]
        return dict(zip(names, np.exp(self.log_variances).tolist(), strict=True))

    def _posterior(self, encoded: Encoded) -> tuple[Array, Array]:
        """Expected log-throughputs relative to the columns' levels, and the covariance with the cells of the fit."""
        cross, careful = self._priors(encoded, self._encoded)
        free, held = cross @ self._weights, careful @ self._cautious_weights
        return expected(encoded) + self._trust * free + (1 - self._trust) * held, cross

    def _priors(self, a: Encoded, b: Encoded) -> tuple[Array, Array]:
        """Prior covariance of the model and of the cautious one."""
        offset = _OFFSET_VARIANCE * same_column(a, b)
        prior, cautious = offset, offset + balance(a, b)
        for (name, _), variance, part in zip(
            COMPONENTS, np.exp(self.log_variances[:-1]), each_component(a, b), strict=True
        ):
            share = variance * part
            prior = prior + share
            cautious += _CAUTION * share if name.startswith("line") else share
        return prior, cautious

    def _errors_when_left_out(self, keys: Sequence[Cell]) -> tuple[dict[Column, Array], float]:
        """Column -> error of each training chip when left out, scaled so that products add up to a covariance."""
        chip_ids = sorted({chip_id for chip_id, _ in keys})
        errors: dict[Column, Array] = {column: np.zeros(len(chip_ids)) for _, column in keys}
        counts = dict.fromkeys(errors, 0)
        own: dict[str, list[int]] = {chip_id: [] for chip_id in chip_ids}
        for position, (chip_id, _) in enumerate(keys):
            own[chip_id].append(position)
        columns_of_others: dict[Column, int] = {}
        for _, column in keys:
            columns_of_others[column] = columns_of_others.get(column, 0) + 1
        for number, chip_id in enumerate(chip_ids):
            # A column that only this chip has says nothing about it.
            which = [position for position in own[chip_id] if columns_of_others[keys[position][1]] > 1]
            if not which:
                continue
            covariance = np.linalg.inv(self._inverse[np.ix_(which, which)])
            deviation = np.sqrt(np.diag(covariance))
            error = (
                np.clip((covariance @ self._weights[which]) / deviation, -_LARGEST_ERROR, _LARGEST_ERROR) * deviation
            )
            for position, value in zip(which, error, strict=True):
                errors[keys[position][1]][number] = value
                counts[keys[position][1]] += 1
        scaled = {column: row / np.sqrt(max(1, counts[column])) for column, row in errors.items()}
        return scaled, len(chip_ids) / (len(chip_ids) + _MODEL_WORTH_CHIPS)

    def _left_out(self, keys: Sequence[Cell]) -> Iterator[LeftOut]:
        """Each training chip in each group, predicted in closed form without any cell of it."""
        shared = Counter(column for _, column in keys)
        own: dict[str, dict[str, list[int]]] = {}
        for position, (chip_id, column) in enumerate(keys):
            if shared[column] > 1:
                own.setdefault(chip_id, {}).setdefault(column.group, []).append(position)
        noise = float(np.exp(self.log_variances[-1]))
        for number, chip_id in enumerate(sorted({chip_id for chip_id, _ in keys})):
            groups = own.get(chip_id, {}).values()
            which = [position for positions in groups for position in positions]
            if not which:
                continue
            # A chip's own errors must not widen its own bands.
            seen = np.delete(np.array([self._likeness[keys[position][1]] for position in which]), number, axis=1)
            with_noise = np.linalg.inv(self._inverse[np.ix_(which, which)])
            error = with_noise @ self._weights[which]
            latent = with_noise - np.diag(self._noise[which])
            blended = (1 - self._blend) * latent + self._blend * seen @ seen.T
            tasks = tuple(keys[position][1].task for position in which)
            before = Prediction(np.zeros(len(which)), blended, noise, tasks=tasks)
            start = 0
            for positions in groups:
                part = range(start, start := start + len(positions))
                yield LeftOut(chip_id, before.part(part), error[list(part)])


def _with_odd_cells_held(prior: Array, noise: Array, relative: Array) -> tuple[Array, Array]:
    """``noise`` (n,) with more of it where a cell is odd given all others, and the inverse (n, n) of the covariance with it.

    A cell that is more than ``_ODD_DEVIATIONS`` from what the others say counts as one that is just so far off (Huber's
    weights), so that a slip of the pen in one cell does not move its chip and its task.
    """
    for _ in range(_PASSES):
        inverse: Array = cho_solve(cho_factor(prior + np.diag(noise), lower=True), np.eye(len(noise)))
        variance = 1 / np.diag(inverse)
        more = ((inverse @ relative) * variance) ** 2 / _ODD_DEVIATIONS**2 - variance
        if not (more > 0).any():
            break
        noise = noise + np.maximum(more, 0.0)
    else:
        inverse = cho_solve(cho_factor(prior + np.diag(noise), lower=True), np.eye(len(noise)))
    return noise, inverse


def trust_in_lines(chips: int) -> float:
    """Weight of the model against the cautious one when ``chips`` were measured: 0.1 for two, 0.77 for eleven."""
    return chips**2 / (chips**2 + _LINES_NEED_CHIPS**2)


def fitted_variances(cells: Mapping[Cell, float], chips: Mapping[str, Chip], *, iterations: int = 25) -> Array:
    """Logarithms of the components' variances and the noise's, most probable given ``cells``.

    Of a large table they are the mean of those of its parts, each every so many columns: cost grows with the cube.
    """
    start: Array = np.log(np.array([*(variance for _, variance in COMPONENTS), NOISE_VARIANCE]))
    parts = _comparable(list(cells))
    if not parts:
        return start
    single = single_precision(cells, chips)
    found: Array = np.mean([_most_probable(part, cells, chips, single, start, iterations) for part in parts], axis=0)
    return found


def _most_probable(
    keys: Sequence[Cell],
    cells: Mapping[Cell, float],
    chips: Mapping[str, Chip],
    single: float,
    start: Array,
    iterations: int,
) -> Array:
    encoded = Encoder.of(keys, chips, single).encode(keys)
    relative = np.log(np.array([cells[key] for key in keys])) - expected(encoded)
    count = len(keys)
    offsets = same_column(encoded, encoded)
    centred = relative - (offsets @ relative) / offsets.sum(axis=1)
    offsets *= _OFFSET_VARIANCE
    parts = components(encoded, encoded)
    flat = parts.reshape(len(parts), -1)

    def loss(log_variances: Array) -> tuple[float, Array]:
        if log_variances.max() > _LARGEST_LOG_VARIANCE:
            # A step of the line search that overflows.
            return 1e12, np.zeros_like(log_variances)
        variances = np.exp(log_variances)
        prior = offsets + np.tensordot(variances[:-1], parts, 1)
        prior[np.diag_indices(count)] += variances[-1] + _JITTER
        try:
            factor = cho_factor(prior, lower=True)
        except np.linalg.LinAlgError:
            return 1e12, np.zeros_like(log_variances)
        inverse = cho_solve(factor, np.eye(count))
        weights = inverse @ centred
        slope = np.outer(weights, weights) - inverse
        gradient = np.append(flat @ slope.ravel(), np.trace(slope)) * (-0.5 * variances)
        away = (log_variances - start) / _PRIOR_DEVIATION
        value = 0.5 * centred @ weights + np.log(np.diag(factor[0])).sum() + 0.5 * away @ away
        return float(value), gradient + away / _PRIOR_DEVIATION

    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    fitted: Array = np.asarray(found.x, dtype=np.float64)
    return fitted


def _comparable(keys: Sequence[Cell]) -> list[list[Cell]]:
    """Cells of columns that several chips have, whole columns, in as few parts as variances are estimated from."""
    columns: dict[Column, list[Cell]] = {}
    for key in keys:
        columns.setdefault(key[1], []).append(key)
    shared = [columns[column] for column in sorted(columns) if len(columns[column]) > 1]
    total = sum(len(column) for column in shared)
    count = min(_MOST_PARTS, -(-total // _MOST_CELLS_FOR_VARIANCES))
    step = max(count, -(-total // _MOST_CELLS_FOR_VARIANCES))
    return [[key for column in shared[first::step] for key in column] for first in range(count)]
