"""What the network and the boosted trees see at an origin, made of replayed lists of jobs.

Families are clusters: those that are trained on are never tested on. Generated lists are added for training only: users with
habits (the same size and about the same length again and again), bursts, and jobs that come on a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.forecast.job_replay import JobList, Learning, Replay, Steps, replay

WINDOW_S = 600.0
HORIZONS = (1, 6)
DAY = 144
_LAGS = (1, 2, 3, 6, 12, 36, DAY)
# Lags, level, distance to the mean, time of day; and per horizon structure, its spread, arrivals, history, season.
INPUTS = len(_LAGS) + 4 + 5 * len(HORIZONS)
# Where in the inputs the change that the structure expects stands.
STRUCTURE = len(_LAGS) + 4

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Samples:
    """All [sample, ...]: ``inputs`` and ``goal`` (the change from the level, per horizon) in units of ``scale``.

    ``value`` and ``made`` (what the service forecasts, by name) are in accelerators, [sample, horizon]; ``last`` [sample] is
    the value of the last window and ``level`` what runs at its end; ``day`` counts from the start of the list.
    """

    inputs: npt.NDArray[np.float32]
    goal: npt.NDArray[np.float32]
    scale: Array
    value: Array
    level: Array
    last: Array
    made: dict[str, Array]
    day: npt.NDArray[np.intp]


def samples_of(found: Replay, first: int) -> Samples:
    """The samples of all domains at origins from ``first`` on."""
    domains, windows = found.value.shape
    origins = np.arange(max(first, 2 * DAY), windows - max(HORIZONS))
    rows: list[Array] = []
    mean = np.stack([found.value[:, origins - back] for back in range(DAY)]).mean(axis=0)
    scale = np.maximum(1.0, mean)
    value = found.value[:, origins]
    rows += [value - found.value[:, origins - lag] for lag in _LAGS]
    level = found.level[:, origins]
    rows += [value - level, value - mean]
    angle = 2 * np.pi * (origins % DAY) / DAY
    rows += [np.broadcast_to(wave(angle), value.shape) * scale for wave in (np.sin, np.cos)]
    for place, horizon in enumerate(HORIZONS):
        rows.append(found.structure[place][:, origins] - level)
        rows.append(found.spread[place][:, origins])
        rows.append(found.coming[place][:, origins])
        rows.append(found.history[place][:, origins] - value)
        rows.append(found.value[:, origins + horizon - DAY] - found.value[:, origins - DAY])
    # Structure first, per horizon, so that the network can add to it.
    order = [*range(STRUCTURE), *(STRUCTURE + 5 * place + part for part in range(5) for place in range(len(HORIZONS)))]
    inputs = np.stack([np.nan_to_num(rows[place] / scale) for place in order], axis=-1)
    target = np.stack([found.value[:, origins + horizon] for horizon in HORIZONS], axis=-1)
    made = {
        name: np.stack([part[place][:, origins] for place in range(len(HORIZONS))], axis=-1).reshape(-1, len(HORIZONS))
        for name, part in (("both", found.fused), ("structure", found.structure), ("history", found.history))
    }
    return Samples(
        inputs.reshape(-1, INPUTS).astype(np.float32),
        ((target - level[..., None]) / scale[..., None]).reshape(-1, len(HORIZONS)).astype(np.float32),
        scale.reshape(-1),
        target.reshape(-1, len(HORIZONS)),
        level.reshape(-1),
        value.reshape(-1),
        made,
        np.tile(origins // DAY, domains).astype(np.intp),
    )


def joined(parts: Sequence[Samples]) -> Samples:
    """Samples of several replays."""
    names = [name for name in Samples.__slots__ if name != "made"]
    whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    made = {name: np.concatenate([part.made[name] for part in parts]) for name in parts[0].made}
    return Samples(**whole, made=made)


def replayed(jobs: JobList, share: float, seed: int) -> Replay:
    """A list gone through with a share of the jobs showing steps."""
    windows = int(jobs.start_s[-1] // WINDOW_S)
    return replay(jobs, HORIZONS, WINDOW_S, windows, Steps(share=share), Learning(), seed)


def generated(seed: int, days: float = 14.0, domains: int = 3) -> JobList:
    """Users with habits in some domains."""
    chance = np.random.default_rng(seed)
    rows: list[tuple[float, float, float, int]] = []
    for domain in range(domains):
        for _ in range(int(chance.integers(4, 12))):
            length_s, spread = float(chance.lognormal(8, 1.5)), float(chance.choice([0.05, 0.3, 1.0]))
            size, every_s = float(chance.choice([1, 1, 2, 4, 8])), float(chance.lognormal(9.5, 1.0))
            regular, burst = chance.random() < 0.2, int(chance.choice([1, 1, 3, 8]))
            at_s = float(chance.uniform(0, every_s))
            while at_s < days * 86_400:
                rows += [
                    (
                        at_s + float(chance.exponential(5.0)),
                        length_s * float(np.exp(chance.normal(0, spread))),
                        size,
                        domain,
                    )
                    for _ in range(burst)
                ]
                at_s += every_s * burst * (1.0 if regular else float(chance.exponential()))
    rows.sort()
    start, length, size_of = (np.array([row[place] for row in rows]) for place in range(3))
    where = np.array([row[3] for row in rows], np.intp)
    names = tuple(f"generated-{place}" for place in range(domains))
    return JobList(start, length, size_of, where, where, names, names)
