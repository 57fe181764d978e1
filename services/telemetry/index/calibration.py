"""Bands that hold as often as they say, judged by training chips that are left out.

Steps: (1) each training chip, in each group, is predicted without its cells; (2) for each number of probe runs, the runs
that reduce the variance most are taken as measured; (3) the 90 % quantile of the standardised errors of the other cells,
over that of a normal distribution, is the factor. It only widens, since such errors still use variances that saw the
chip, and the fewer chips were left out the nearer it stays to 1.

Source for widths from errors of what is left out: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World
(2005); unlike theirs these carry no guarantee, since chips are few and not exchangeable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from services.telemetry.index.features import Array
from services.telemetry.index.prediction import Prediction, best_probes

PROBES = 3
"""Factors are found for up to so many probe runs; the last holds for more."""
_BAND, _BAND_DEVIATIONS = 0.9, 1.6448536269514722
_NORMAL_WORTH_CHIPS = 5.0
"""A factor of 1 counts like so many chips left out."""
_WIDEST = 2.0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A chip predicted without its cells: ``error`` (n,) is measured less predicted log-throughput, in one group."""

    chip_id: str
    prediction: Prediction
    """Of the errors: its mean is 0."""
    error: Array


def widths(left_out: Iterable[LeftOut]) -> tuple[float, ...]:
    """Factors on the deviation after 0 to ``PROBES`` probe runs, at least 1."""
    errors: list[list[Array]] = [[] for _ in range(PROBES + 1)]
    chips: list[set[str]] = [set() for _ in errors]
    for each in left_out:
        for count in range(min(len(errors), len(each.error))):
            probes = best_probes(each.prediction, count)
            after = each.prediction.given(probes, each.error[probes])
            rest = np.setdiff1d(np.arange(len(each.error)), probes)
            errors[count].append((np.abs(each.error - after.mean) / after.deviation)[rest])
            chips[count].add(each.chip_id)
    return tuple(_factor(values, len(seen)) for values, seen in zip(errors, chips, strict=True))


def _factor(standardised: list[Array], chips: int) -> float:
    if not standardised:
        return 1.0
    too_narrow = float(np.quantile(np.concatenate(standardised), _BAND)) / _BAND_DEVIATIONS
    return float(np.clip(too_narrow, 1.0, _WIDEST) ** (chips / (chips + _NORMAL_WORTH_CHIPS)))
