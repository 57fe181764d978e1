"""How full the network was and how long the queue, over virtual time: small multiples, a row of two panels per policy."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from meridian.errors import InvalidArgumentError
from simulation.experiment import Run

_MOST_POINTS = 4000
_UNITS = ((2 * 86_400.0, 86_400.0, "days"), (2 * 3600.0, 3600.0, "h"), (0.0, 1.0, "s"))


def png(runs: Sequence[Run]) -> bytes:
    """The picture of the first seed of every policy. All panels of a column share their axes.

    Left: accelerators (processors where no job has any) that jobs hold, filled, below those that are up, a line. Right: jobs that
    wait. Time counts from the first event. Raises
    `InvalidArgumentError`: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidArgumentError("--plot needs matplotlib: pip install 'meridian-network[simulation]'") from error

    seed = runs[0].seed
    shown = [run for run in runs if run.seed == seed]
    known = [run.measures.series for run in shown if run.measures.series]
    start_s = min((series[0][0] for series in known), default=0.0)
    span_s = max((series[-1][0] - start_s for series in known), default=1.0)
    _, unit_s, unit = next(item for item in _UNITS if span_s >= item[0])
    figure = Figure(figsize=(11.0, 1.1 + 1.9 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(shown), 2, sharex=True, sharey="col", squeeze=False)
    for (left, right), run in zip(axes, shown, strict=True):
        series = _thinned(run.measures.series, run.measures.now_s)
        times = (series[:, 0] - start_s) / unit_s
        left.fill_between(times, series[:, 1], step="post", color="#4477aa", alpha=0.75, linewidth=0, label="allocated")
        left.plot(times, series[:, 3], drawstyle="steps-post", color="#222222", linewidth=0.9, label="up")
        left.set_ylabel("processors" if run.measures.processors else "accelerators")
        left.set_title(run.setting.name, loc="left", fontsize=10, fontweight="bold")
        right.fill_between(times, series[:, 2], step="post", color="#cc6677", alpha=0.75, linewidth=0)
        right.set_ylabel("waiting jobs")
        for panel in (left, right):
            panel.grid(visible=True, linewidth=0.3)
            panel.spines[["top", "right"]].set_visible(False)
    for panel in axes[0]:
        # Shared by the column; set once everything is drawn, as it ends the search for the top.
        panel.set_ylim(bottom=0)
    axes[0][0].legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, ncols=2, frameon=False)
    for panel in axes[-1]:
        panel.set_xlabel(f"virtual time ({unit})")
        panel.set_xlim(left=0)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=120)
    return out.getvalue()


def _thinned(
    series: Sequence[tuple[float, float, int, float]], end_s: float
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(points, 4): time, held, waiting, up; a step holds to the next point. Many points become means over equal times."""
    if not series:
        return np.zeros((1, 4))
    points = np.array([*series, (end_s, *series[-1][1:])], dtype=np.float64)
    if len(points) <= _MOST_POINTS:
        return points
    times = points[:, 0]
    grid = np.linspace(times[0], times[-1], _MOST_POINTS + 1)
    integrals = np.vstack([np.zeros(3), np.cumsum(points[:-1, 1:] * np.diff(times)[:, None], axis=0)])
    at_grid = np.column_stack([np.interp(grid, times, integrals[:, column]) for column in range(3)])
    means = np.diff(at_grid, axis=0) / np.diff(grid)[:, None]
    return np.column_stack([grid[:-1], means])
