"""Scores: macro-F1 over the states, and the spread of means over seeds by bootstrap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from learning.node_state.dataset import CLASSES

Integers = npt.NDArray[np.int64]


def f1_scores(truth: Integers, answer: Integers) -> npt.NDArray[np.float64]:
    """F1 of each class; NaN for one that occurs neither in the truth nor in the answer."""
    found = np.full(len(CLASSES), np.nan)
    for number in range(len(CLASSES)):
        right = int(((truth == number) & (answer == number)).sum())
        named, real = int((answer == number).sum()), int((truth == number).sum())
        if named + real:
            found[number] = 2 * right / (named + real)
    return found


def macro_f1(truth: Integers, answer: Integers) -> float:
    """Mean F1 over the classes that occur."""
    return float(np.nanmean(f1_scores(truth, answer)))


def interval(values: Sequence[float], seed: int = 0, level: float = 0.95, draws: int = 5000) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean (Efron and Tibshirani 1993, chapter 13)."""
    chance = np.random.default_rng(seed)
    sample = np.asarray(values, dtype=np.float64)
    means = chance.choice(sample, (draws, len(sample))).mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
