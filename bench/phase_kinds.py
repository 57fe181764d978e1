"""Made-up loss curves of 24 kinds, as `meridian evaluate phases` reads them: `python bench/phase_kinds.py OUT [--half 0|1]`.

The loss is that of Tissue, Wang and Wang (Scaling Law with Learning Rate Annealing, 2024), as in `simulated_curves.py`; a kind
is a schedule of the learning rate, a noise or what else befalls a run. Kinds with an even number (half 0) are for choosing, those with
an odd one for looking afterwards: the halves share no kind.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Chance = np.random.Generator
_MEMORY = 0.999


class Run(NamedTuple):
    """All arrays [sample]; ``total`` is 0 where no length is declared, ``lr`` and ``gbs`` None where they are not logged."""

    step: Array
    loss: Array
    lr: Array | None
    gbs: Array | None
    total: int


def _log_uniform(chance: Chance, low: float, high: float) -> float:
    return float(np.exp(chance.uniform(np.log(low), np.log(high))))


def _ramped(rate: Array, warm_up: int) -> Array:
    ramp = np.minimum(1.0, (np.arange(len(rate)) + 1) / max(1, warm_up))
    result: Array = ramp * rate
    return result


def _trapezoid(total: int, decay: float, *, root: bool = False) -> Array:
    left = np.clip((1 - np.arange(total) / total) / decay, 0, 1)
    return 1 - np.sqrt(1 - left) if root else left


def _cosine(length: int, lowest: float) -> Array:
    return lowest + (1 - lowest) / 2 * (1 + np.cos(np.pi * np.arange(length) / max(1, length - 1)))


def _restarts(total: int, cycles: Sequence[float], lowest: float) -> Array:
    ends = np.round(np.cumsum(cycles) / np.sum(cycles) * total).astype(int)
    begins = np.concatenate([[0], ends[:-1]])
    parts = [_cosine(end - begin, lowest) for begin, end in zip(begins, ends, strict=True)]
    return np.concatenate(parts)


def annealed(rate: Array, chance: Chance, *, begun: float = 30.0, fall: float = 6.0, floor: float = 2.0) -> Array:
    """The loss [step] without noise for a learning rate over its highest value [step]."""
    lowered = np.maximum(0.0, -np.diff(rate, prepend=rate[0]))
    gained, remembered = np.empty(len(rate)), 0.0
    for step, amount in enumerate(lowered.tolist()):
        remembered = remembered * _MEMORY + amount
        gained[step] = remembered
    gained = np.cumsum(gained)
    power = ((np.cumsum(rate) + begun) / begun) ** -chance.uniform(0.3, 0.9)
    worth = chance.uniform(0.05, 0.35) / max(float(gained[-1]), 300.0)
    result: Array = floor + fall * power - worth * gained
    return result


def _logged(loss: Array, rate: Array | None, chance: Chance, *, noise: Array | float, samples: float = 0.0) -> Run:
    total = len(loss)
    apart = max(1, int(total / (samples or _log_uniform(chance, 120, 1500))))
    at = np.arange(0, total, apart)
    scatter = chance.normal(0, noise, total) if isinstance(noise, float) else noise
    told = chance.random() < 0.7
    step: Array = at.astype(np.float64) + 1
    return Run(step, (loss + scatter)[at], None if rate is None else rate[at], None, total * told)


def _scratch(schedule: Callable[[int, Chance], Array]) -> Callable[[Chance], Run]:
    def make(chance: Chance) -> Run:
        total = int(_log_uniform(chance, 800, 12_000))
        rate = _ramped(schedule(total, chance), int(total * chance.choice([0, 0.01, 0.03])))
        loss = annealed(rate, chance, begun=chance.uniform(3, 60), fall=chance.uniform(4, 8))
        return _logged(loss, rate, chance, noise=_log_uniform(chance, 0.005, 0.1))

    return make


def _spiked(*, heavy: bool) -> Callable[[Chance], Run]:
    def make(chance: Chance) -> Run:
        total = int(_log_uniform(chance, 800, 8000))
        rate = _ramped(_cosine(total, 0.1), int(0.01 * total))
        loss = annealed(rate, chance, begun=chance.uniform(3, 60))
        size = _log_uniform(chance, 0.005, 0.05)
        noise = size * (chance.standard_t(2.5, total) if heavy else chance.normal(0, 1, total))
        for at in chance.integers(int(0.05 * total), total, int(chance.integers(1, 6))).tolist():
            left = np.arange(total - at)
            noise[at:] += chance.uniform(0.3, 2.5) * np.exp(-left / (chance.uniform(0.002, 0.01) * total))
        return _logged(loss, rate, chance, noise=noise)

    return make


def _fine_tuned(low: float, high: float, floor: float) -> Callable[[Chance], Run]:
    def make(chance: Chance) -> Run:
        total = int(chance.uniform(100, 1500))
        schedule = _cosine(total, 0.0) if chance.random() < 0.5 else _trapezoid(total, 1.0)
        rate = _ramped(schedule, int(total * chance.choice([0, 0.03, 0.1])))
        loss = annealed(rate, chance, begun=chance.uniform(5, 60), fall=chance.uniform(low, high), floor=floor)
        return _logged(loss, rate, chance, noise=_log_uniform(chance, 0.01, 0.15), samples=chance.uniform(50, 200))

    return make


def _batch_ramp(chance: Chance) -> Run:
    total = int(_log_uniform(chance, 1500, 10_000))
    rate = _ramped(_cosine(total, 0.1), int(0.005 * total))
    batch = np.minimum(1.0, 0.125 * (1 + np.floor(np.arange(total) / (chance.uniform(0.01, 0.02) * total))))
    loss = annealed(rate * batch, chance, begun=chance.uniform(3, 60))
    run = _logged(loss, rate, chance, noise=_log_uniform(chance, 0.005, 0.05))
    return run._replace(gbs=1024 * batch[run.step.astype(int) - 1])


def _dropping(drops: int) -> Callable[[Chance], Run]:
    def make(chance: Chance) -> Run:
        total = int(_log_uniform(chance, 800, 8000))
        rate = _ramped(np.ones(total), int(0.01 * total))
        loss = annealed(rate, chance, begun=chance.uniform(3, 30), fall=chance.uniform(1, 3))
        for at in chance.uniform(0.05, 0.6, drops).tolist():
            x = np.log((np.arange(total) + 1) / (at * total)) / chance.uniform(0.05, 0.2)
            loss -= chance.uniform(0.3, 1.5) / (1 + np.exp(-np.clip(x, -50, 50)))
        return _logged(loss, rate, chance, noise=_log_uniform(chance, 0.005, 0.05))

    return make


def _resumed(*, warmed_again: bool) -> Callable[[Chance], Run]:
    def make(chance: Chance) -> Run:
        total = int(_log_uniform(chance, 2000, 12_000))
        first = int(total * chance.uniform(0.1, 0.5))
        warm_up = int(0.02 * total)
        rate = _ramped(_cosine(total, 0.1), warm_up)
        if warmed_again:
            rate[first:] = _ramped(_cosine(total - first, 0.05), warm_up)
        loss = annealed(rate, chance, begun=chance.uniform(3, 60))
        run = _logged(loss, rate, chance, noise=_log_uniform(chance, 0.005, 0.05))
        kept = run.step >= first
        return Run(run.step[kept], run.loss[kept], rate[run.step[kept].astype(int) - 1], None, run.total)

    return make


def _bare(chance: Chance) -> Run:
    run = _scratch(lambda total, _: _cosine(total, 0.1))(chance)
    return run._replace(lr=None, total=0)


def _uneven(chance: Chance) -> Run:
    run = _scratch(lambda total, _: _cosine(total, 0.1))(chance)
    kept = np.flatnonzero((chance.random(len(run.step)) < 0.6) | (run.step < 20))
    return run._replace(step=run.step[kept], loss=run.loss[kept], lr=None if run.lr is None else run.lr[kept])


def _epochs(chance: Chance) -> Run:
    total = int(chance.uniform(40, 300))
    drops = np.array([1.0, 0.1, 0.01])
    stepped = drops[np.digitize(np.arange(total), [total // 2, 3 * total // 4])]
    rate = stepped if chance.random() < 0.5 else _cosine(total, 0.0)
    loss = annealed(rate, chance, begun=chance.uniform(1, 10), fall=chance.uniform(0.8, 3), floor=0.05)
    return _logged(np.maximum(loss, 0.01), rate, chance, noise=_log_uniform(chance, 0.002, 0.02), samples=total)


def _correlated(chance: Chance) -> Run:
    total = int(_log_uniform(chance, 800, 8000))
    rate = _ramped(_trapezoid(total, 1.0), int(0.01 * total))
    loss = annealed(rate, chance, begun=chance.uniform(3, 60))
    noise, white, memory = np.zeros(total), chance.normal(0, _log_uniform(chance, 0.01, 0.1), total), 0.97
    for step in range(1, total):
        noise[step] = memory * noise[step - 1] + (1 - memory) * white[step]
    return _logged(loss, rate, chance, noise=noise)


def _memorising(chance: Chance) -> Run:
    total, epochs = int(_log_uniform(chance, 600, 5000)), int(chance.integers(3, 8))
    rate = _ramped(_cosine(total, 0.1), int(0.02 * total))
    loss = annealed(rate, chance, begun=chance.uniform(10, 60), fall=chance.uniform(0.5, 2), floor=0.8)
    loss = np.maximum(loss - 0.15 * np.floor(np.arange(total) / total * epochs), 0.02)
    return _logged(loss, rate, chance, noise=_log_uniform(chance, 0.01, 0.08))


def _diverging(chance: Chance) -> Run:
    run = _scratch(lambda total, _: np.ones(total))(chance)
    share = run.step / run.step[-1]
    rise = chance.uniform(0.2, 2) * np.maximum(0.0, share - chance.uniform(0.4, 0.8))
    return run._replace(loss=run.loss + rise)


def _steps_down(total: int, chance: Chance) -> Array:
    places = np.sort(chance.uniform(0.3, 0.9, 2)) * total
    return np.array([1.0, 0.1, 0.01])[np.digitize(np.arange(total), places)]


KINDS: dict[str, Callable[[Chance], Run]] = {
    "trapezoid": _scratch(lambda total, chance: _trapezoid(total, chance.uniform(0.1, 0.3))),
    "trapezoid_root": _scratch(lambda total, chance: _trapezoid(total, chance.uniform(0.05, 0.4), root=True)),
    "cosine": _scratch(lambda total, _: _cosine(total, 0.1)),
    "linear_to_0": _scratch(lambda total, _: _trapezoid(total, 1.0)),
    "restarts": _scratch(lambda total, chance: _restarts(total, [1] * int(chance.integers(2, 6)), 0.01)),
    "restarts_doubling": _scratch(lambda total, chance: _restarts(total, [1, 2, 4, 8][: chance.integers(2, 5)], 0.05)),
    "spikes": _spiked(heavy=False),
    "spikes_heavy_tails": _spiked(heavy=True),
    "fine_tuning": _fine_tuned(0.3, 1.5, 1.0),
    "preferences": _fine_tuned(0.2, 0.6, 0.1),
    "steps_down": _scratch(_steps_down),
    "one_cycle": _scratch(lambda total, _: _ramped(_trapezoid(total, 0.7), int(0.3 * total))),
    "batch_ramp": _batch_ramp,
    "inverse_root": _scratch(lambda total, _: 1 / np.sqrt(np.maximum(1.0, np.arange(total) / (0.02 * total)))),
    "drop": _dropping(1),
    "two_drops": _dropping(2),
    "resumed": _resumed(warmed_again=False),
    "warmed_again": _resumed(warmed_again=True),
    "bare": _bare,
    "uneven": _uneven,
    "epochs": _epochs,
    "memorising": _memorising,
    "correlated_noise": _correlated,
    "diverging": _diverging,
}


def runs(half: int | None, each: int, seed: int) -> list[tuple[str, str, Run]]:
    """(run, kind, curve) of ``each`` runs of the kinds of a half (None: both)."""
    found = []
    for number, (kind, make) in enumerate(KINDS.items()):
        if half is None or number % 2 == half:
            chance = np.random.default_rng([seed, number])
            found += [(f"{kind}/{i}", kind, make(chance)) for i in range(each)]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--half", type=int, choices=(0, 1), help="the kinds with an even or an odd number; default: all"
    )
    parser.add_argument("--each", type=int, default=10, help="runs of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with options.out.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(("run", "step", "train_loss", "lr", "gbs", "total_steps", "group"))
        for name, kind, run in runs(options.half, options.each, options.seed):
            for place, (step, loss) in enumerate(zip(run.step, run.loss, strict=True)):
                lr, gbs = ("" if column is None else f"{column[place]:.6g}" for column in (run.lr, run.gbs))
                table.writerow((name, f"{step:g}", f"{loss:.6g}", lr, gbs, run.total or "", kind))
    return 0


if __name__ == "__main__":
    sys.exit(main())
