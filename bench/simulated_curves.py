"""Simulated loss curves as the table that `meridian evaluate phases` reads: `python bench/simulated_curves.py OUT`.

The loss is that of Tissue, Wang and Wang (Scaling Law with Learning Rate Annealing, 2024), L0 + A ((S1 + c) / c)^-a - C S2: S1
is the sum of the learning rate, S2 that of what it was lowered by, remembered with 0.999 per step. To it comes normal noise.
Three fifths of the runs start from nothing, a fifth from a checkpoint but count their steps from 1, a fifth are
fine-tunings. Length, samples, schedule, warm-up, noise and what is declared are drawn. With --noise-free the same runs are written
without the noise.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
KINDS = ("scratch", "scratch", "scratch", "checkpoint", "fine")
_MEMORY = 0.999


class Simulated(NamedTuple):
    """A run: all arrays [sample]; ``total`` is 0 where it is not declared, ``lr`` None where it is not logged."""

    name: str
    group: str
    step: Array
    loss: Array
    noise: Array
    lr: Array | None
    total: int


def simulated(number: int, chance: np.random.Generator) -> Simulated:
    """The run of this number."""
    kind = KINDS[number % len(KINDS)]
    total = (
        int(np.exp(chance.uniform(np.log(600), np.log(30_000)))) if kind != "fine" else int(chance.uniform(300, 1500))
    )
    samples = np.exp(chance.uniform(np.log(120), np.log(4000))) if kind != "fine" else chance.uniform(60, 200)
    lr = _rates(total, chance)
    lowered = np.maximum(0.0, -np.diff(lr, prepend=lr[0]))
    annealed, remembered = np.empty(total), 0.0
    for step in range(total):
        remembered = remembered * _MEMORY + lowered[step]
        annealed[step] = remembered
    annealed = np.cumsum(annealed)
    exponent = chance.uniform(0.3, 0.9)
    begun = {"scratch": (3, 60), "checkpoint": (2 * total, 30 * total), "fine": (5, 60)}[kind]
    falls = {"scratch": (4, 8), "checkpoint": (0.5, 3), "fine": (0.5, 2)}[kind]
    offset, height = chance.uniform(*begun), chance.uniform(*falls)
    loss = chance.uniform(1, 3.5) + height * ((np.cumsum(lr) + offset) / offset) ** -exponent
    loss -= chance.uniform(0, 0.35) / max(annealed[-1], 300.0) * annealed
    at = np.arange(0, total, max(1, int(total // samples)))
    noise = chance.normal(0, np.exp(chance.uniform(np.log(0.004), np.log(0.12))), len(at))
    logged, declared = chance.random() < 0.5, chance.random() < 0.7
    return Simulated(
        f"simulated/{kind}/{number}",
        f"simulated_{kind}",
        at.astype(np.float64) + 1,
        loss[at],
        noise,
        lr[at] if logged else None,
        total * declared,
    )


def _rates(total: int, chance: np.random.Generator) -> Array:
    """The learning rate over its highest value, [step]."""
    warm_up = int(total * chance.choice([0, 0.005, 0.02, 0.05]))
    step = np.arange(total)
    done = np.clip((step - warm_up) / (total - warm_up), 0, 1)
    match chance.choice(["constant", "cosine", "linear", "trapezoid"]):
        case "cosine":
            rate = 0.1 + 0.45 * (1 + np.cos(np.pi * done))
        case "linear":
            rate = 1 - done
        case "trapezoid":
            rate = np.clip((1 - done) / (1 - chance.uniform(0.6, 0.9)), 0, 1)
        case _:
            rate = np.ones(total)
    ramp: Array = np.minimum(1.0, (step + 1) / warm_up) if warm_up else np.ones(total)
    result: Array = np.where(step < warm_up, ramp, rate)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--noise-free", action="store_true")
    options = parser.parse_args(arguments)
    chance = np.random.default_rng(options.seed)
    with options.out.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(("run", "step", "train_loss", "lr", "total_steps", "group"))
        for number in range(options.runs):
            run = simulated(number, chance)
            loss = run.loss if options.noise_free else run.loss + run.noise
            rates = [""] * len(run.step) if run.lr is None else [f"{rate:.6g}" for rate in run.lr]
            for step, value, rate in zip(run.step, loss, rates, strict=True):
                table.writerow((run.name, f"{step:g}", f"{value:.6g}", rate, run.total or "", run.group))
    return 0


if __name__ == "__main__":
    sys.exit(main())
