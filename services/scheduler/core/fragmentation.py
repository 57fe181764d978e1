"""Placing on shared devices: how much of a node's free accelerators the usual work could not use, and rules that pack.

A node with free devices may still be useless: its processors are gone, its model is not asked for, or each device has less
left than a demand needs. Fragmentation Gradient Descent (Weng et al., "Beware of Fragmentation", USENIX ATC 2023) measures
that in devices and places where it grows least. The other rules are those that the paper compares with.

All functions are pure; devices are counted in milli (1000 = a whole device). A rule is a function
``(nodes, demand) -> Scored``: a score per node, greater is better, -inf where the demand does not fit, and the device
that a demand for a share would get there. `IncrementalScores` evaluates a rule again only for nodes that were touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meridian.errors import InvalidArgumentError
from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.table import Bools, Floats, Ints

WHOLE = 1000
"""A whole device, in milli."""
ABSENT = -1
"""In ``device_free_milli``: no such device; in ``device_model``: no devices; as a chosen device: none or whole ones."""
SCORE_STEPS = 100
"""The published scores are whole numbers from 0 to 100: nodes that differ by less are equal."""


@dataclass(frozen=True, slots=True)
class ShareDemand:
    """One process: ``devices`` 0 with ``device_milli`` 0, one device with a share of 1-1000, or several whole devices.

    ``models`` are the accepted indices of device models, empty means any. Raises `MalformedJobError`.
    """

    cpu_milli: int
    memory_bytes: int = 0
    devices: int = 0
    device_milli: int = 0
    models: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("cpu_milli", "memory_bytes", "devices"):
            if getattr(self, name) < 0:
                raise MalformedJobError(f"{name} must not be negative, not {getattr(self, name)}")
        if not (1 if self.devices else 0) <= self.device_milli <= (WHOLE if self.devices else 0):
            raise MalformedJobError(f"device_milli must be 1-1000 with devices and 0 without, not {self.device_milli}")
        if self.devices > 1 and self.device_milli != WHOLE:
            raise MalformedJobError("device_milli must be 1000 for more than one device")

    @property
    def shares(self) -> bool:
        """Whether it takes a part of one device."""
        return self.devices == 1 and self.device_milli < WHOLE

    @property
    def total_milli(self) -> int:
        """Devices asked for, in milli."""
        return self.devices * self.device_milli

    @property
    def kind(self) -> int:
        """0 for a share of a device, otherwise the number of whole devices; -1 without devices."""
        return (0 if self.shares else self.devices) if self.devices else -1


@dataclass(frozen=True, slots=True)
class SharedNodes:
    """What is free: ``cpu_free_milli`` (N), ``memory_free_bytes`` (N), ``device_free_milli`` (N, G) with `ABSENT` where a
    node has fewer devices, ``device_model`` (N), ``hosted`` (N, G + 1) the demands a node holds by `ShareDemand.kind`."""

    cpu_free_milli: Ints
    memory_free_bytes: Ints
    device_free_milli: Ints
    device_model: Ints
    hosted: Ints

    @classmethod
    def idle(cls, cpu_milli: Any, memory_bytes: Any, devices: Any, device_model: Any) -> SharedNodes:
        """Empty nodes; all arguments (N), ``devices`` the number per node. Raises `InvalidArgumentError` on a wrong length."""
        count = np.asarray(devices, dtype=np.int64)
        columns = {"cpu_milli": cpu_milli, "memory_bytes": memory_bytes, "device_model": device_model}
        arrays = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
        for name, values in arrays.items():
            if values.shape != count.shape:
                raise InvalidArgumentError(f"{name} has shape {values.shape}, devices {count.shape}")
        width = int(count.max(initial=0))
        free = np.where(np.arange(width) < count[:, None], WHOLE, ABSENT)
        hosted = np.zeros((len(count), width + 1), dtype=np.int64)
        return cls(arrays["cpu_milli"], arrays["memory_bytes"], free, arrays["device_model"], hosted)

    def rows(self, rows: Any) -> SharedNodes:
        """The nodes with the indices ``rows``, as a copy."""
        return SharedNodes(
            self.cpu_free_milli[rows],
            self.memory_free_bytes[rows],
            self.device_free_milli[rows],
            self.device_model[rows],
            self.hosted[rows],
        )

    def place(self, row: int, demand: ShareDemand, device: int = ABSENT) -> None:
        """Take ``demand`` from node ``row``, in place; a share from ``device``, whole devices in order of their index.

        Raises `InvalidArgumentError` where it does not fit; then nothing changed.
        """
        free = self.device_free_milli[row]
        if demand.shares:
            chosen = np.array([device])
            fit = 0 <= device < len(free) and free[device] >= demand.device_milli
        else:
            chosen = np.flatnonzero(free == WHOLE)[: demand.devices]
            fit = len(chosen) == demand.devices
        fit = fit and bool(self.cpu_free_milli[row] >= demand.cpu_milli)
        if not fit or self.memory_free_bytes[row] < demand.memory_bytes:
            raise InvalidArgumentError(f"node {row}: {demand} does not fit (device {device})")
        self.cpu_free_milli[row] -= demand.cpu_milli
        self.memory_free_bytes[row] -= demand.memory_bytes
        if demand.devices:
            free[chosen] -= demand.device_milli
            self.hosted[row, demand.kind] += 1

    @property
    def total_free_milli(self) -> Ints:
        """(N) milli free over all devices of a node."""
        total: Ints = np.maximum(self.device_free_milli, 0).sum(axis=1)
        return total


@dataclass(frozen=True, slots=True)
class TypicalClasses:
    """The demands that are usual, as arrays over classes (C); ``accepts`` (C, M + 1): which device models, the last column
    for nodes without devices. ``popularity`` sums to 1. Memory is not looked at, as in the paper."""

    cpu_milli: Ints
    devices: Ints
    device_milli: Ints
    accepts: Bools
    popularity: Floats

    @classmethod
    def of(cls, demands: Iterable[ShareDemand], models: int, coverage: float = 0.95) -> TypicalClasses:
        """The most popular classes that together make up ``coverage`` of all demands, with popularity scaled to 1.

        ``models`` is the number of device models. Among equally popular classes the greater demand comes first.
        Raises `InvalidArgumentError` without demands, for a model index out of range, a coverage outside (0, 1].
        """
        counts = Counter((d.cpu_milli, d.device_milli, d.devices, d.models) for d in demands)
        if not counts:
            raise InvalidArgumentError("demands must not be empty")
        if not 0 < coverage <= 1:
            raise InvalidArgumentError(f"coverage must be in (0, 1], not {coverage}")
        ranked = sorted(counts, key=lambda key: (counts[key], key), reverse=True)
        popular = np.array([counts[key] for key in ranked], dtype=np.float64)
        enough = int(np.searchsorted(popular.cumsum(), coverage * popular.sum() * (1 - 1e-12))) + 1
        kept, popular = ranked[:enough], popular[:enough]
        accepts = np.zeros((len(kept), models + 1), dtype=bool)
        for index, (*_, accepted) in enumerate(kept):
            if any(not 0 <= model < models for model in accepted):
                raise InvalidArgumentError(f"models must be below {models}, not {accepted}")
            accepts[index, list(accepted) or slice(None)] = True
        numbers = np.array([key[:3] for key in kept], dtype=np.int64)
        return cls(numbers[:, 0], numbers[:, 2], numbers[:, 1], accepts, popular / popular.sum())


class Scored(NamedTuple):
    """``score`` (N), -inf where the demand does not fit; ``device`` (N), `ABSENT` unless the demand takes a share."""

    score: Floats
    device: Ints


Rule = Callable[[SharedNodes, ShareDemand], Scored]


class Greatest(NamedTuple):
    """The greatest node of a fleet: what scores are scaled with."""

    cpu_milli: int
    device_milli: int


PUBLISHED = Greatest(cpu_milli=128_000, device_milli=8 * WHOLE)
"""Of the paper's cluster."""


def fits(nodes: SharedNodes, demand: ShareDemand) -> Bools:
    """(N) whether a node has the processors, memory and devices of an accepted model for ``demand``."""
    fit = (nodes.cpu_free_milli >= demand.cpu_milli) & (nodes.memory_free_bytes >= demand.memory_bytes)
    if demand.devices:
        fit &= (nodes.device_free_milli >= demand.device_milli).sum(axis=1) >= demand.devices
        if demand.models:
            fit &= np.isin(nodes.device_model, demand.models)
    return fit


def fragmentation(nodes: SharedNodes, classes: TypicalClasses) -> Floats:
    """(N) F_n: free device milli that a demand drawn by popularity is expected to find unusable (paper, section 3.2).

    A class that cannot run on the node, or needs no device, finds all of it unusable; one that can run, the devices that
    have less left than it needs of each.
    """
    free = nodes.device_free_milli
    sizes, size_of = np.unique(classes.device_milli, return_inverse=True)
    usable = free[:, :, None] >= np.maximum(sizes, 1)
    total = nodes.total_free_milli
    count, useful = usable.sum(axis=1), (usable * free[:, :, None]).sum(axis=1)
    return _expected_loss(nodes, classes, total, count[:, size_of], useful[:, size_of], nodes.cpu_free_milli)


def _expected_loss(
    nodes: SharedNodes, classes: TypicalClasses, total: Ints, count: Ints, useful: Ints, cpu_free_milli: Ints
) -> Floats:
    """``total`` less what the classes can use; ``count`` and ``useful`` (N, ..., C): devices big enough, and their milli."""
    rows_by_class = (len(nodes.device_model), *(1,) * (count.ndim - 2), len(classes.cpu_milli))
    able = classes.accepts[:, nodes.device_model].T & (classes.device_milli > 0)
    able &= cpu_free_milli[:, None] >= classes.cpu_milli
    able = able.reshape(rows_by_class) & (count >= classes.devices)
    loss: Floats = total - np.where(able, useful, 0) @ classes.popularity
    return loss


def fragmentation_deltas(nodes: SharedNodes, demand: ShareDemand, classes: TypicalClasses) -> Floats:
    """Growth of F_n, in milli, by placing ``demand``: (N, G) by device for a share, else (N, 1); inf where it does not fit.

    Rounded to a millionth of a milli, so that equal growths are equal numbers and ties are not decided by rounding errors.
    For a share the counts of usable devices are corrected for the one device that changes, so that no hypothetical node
    has to be built: O(N G C).
    """
    before = fragmentation(nodes, classes)
    fit = fits(nodes, demand)
    cpu_left = nodes.cpu_free_milli - demand.cpu_milli
    if not demand.shares:
        left = nodes.device_free_milli.copy()
        if demand.devices:
            idle = left == WHOLE
            left[idle & (idle.cumsum(axis=1) <= demand.devices)] = 0
        after = fragmentation(
            SharedNodes(cpu_left, nodes.memory_free_bytes, left, nodes.device_model, nodes.hosted), classes
        )
        return np.where(fit, np.round(after - before, 6), np.inf)[:, None]
    free = nodes.device_free_milli[:, :, None]
    left = free - demand.device_milli
    sizes, size_of = np.unique(classes.device_milli, return_inverse=True)
    sizes = np.maximum(sizes, 1)
    usable, usable_left = free >= sizes, left >= sizes
    useful = usable * free
    count = usable.sum(axis=1)[:, None, :] - usable + usable_left
    remaining = useful.sum(axis=1)[:, None, :] - useful + usable_left * left
    total = (nodes.total_free_milli - demand.device_milli)[:, None]
    after = _expected_loss(nodes, classes, total, count[:, :, size_of], remaining[:, :, size_of], cpu_left)
    return np.where(fit[:, None] & (left[:, :, 0] >= 0), np.round(after - before[:, None], 6), np.inf)


def fragmentation_rule(classes: TypicalClasses, steps: int = SCORE_STEPS) -> Rule:
    """Fragmentation gradient descent: 1 / (1 + exp(growth of F_n in devices)), in ``steps`` steps as published.

    ``steps`` 0 scores minus the growth itself. That is not better: with the first of equal nodes taken, 100 steps pack
    as published (95.4 % of the accelerators of the openb cluster given away), 1000 steps or none about a point less.
    """

    def rule(nodes: SharedNodes, demand: ShareDemand) -> Scored:
        deltas = fragmentation_deltas(nodes, demand, classes)
        scores = np.floor(steps / (1.0 + np.exp(deltas / WHOLE))) if steps else -deltas
        scores = np.where(np.isinf(deltas), -np.inf, scores)
        device = scores.argmax(axis=1) if demand.shares else np.full(len(scores), ABSENT)
        return Scored(scores.max(axis=1), device)

    return rule


def tightest_device(nodes: SharedNodes, demand: ShareDemand) -> Ints:
    """(N) the device with the least left that takes the share; `ABSENT` if none does or no share is asked for."""
    if not demand.shares:
        return np.full(len(nodes.device_model), ABSENT)
    free = nodes.device_free_milli
    left = np.where(free >= demand.device_milli, free, WHOLE + 1)
    return np.where(left.min(axis=1) <= WHOLE, left.argmin(axis=1), ABSENT)


def _scored(nodes: SharedNodes, demand: ShareDemand, score: Any) -> Scored:
    return Scored(np.where(fits(nodes, demand), score, -np.inf), tightest_device(nodes, demand))


def best_fit(nodes: SharedNodes, demand: ShareDemand, greatest: Greatest = PUBLISHED) -> Scored:
    """Least left over: 100 times one less the mean of processors and devices left, each scaled by the greatest node."""
    cpu = (nodes.cpu_free_milli - demand.cpu_milli) / greatest.cpu_milli * 0.5
    devices = (nodes.total_free_milli - demand.total_milli) / greatest.device_milli * 0.5
    return _scored(nodes, demand, np.floor((1.0 - (cpu + devices)) * SCORE_STEPS))


def dot_product(nodes: SharedNodes, demand: ShareDemand, greatest: Greatest = PUBLISHED) -> Scored:
    """Least alignment of what is free with what is asked (after Tetris, SIGCOMM 2014): 100 (1 - free . asked / 2).

    The source prefers the *smaller* product, as here: it fills nodes that have little left.
    """
    cpu = (nodes.cpu_free_milli / greatest.cpu_milli) * (demand.cpu_milli / greatest.cpu_milli)
    devices = (nodes.total_free_milli / greatest.device_milli) * (demand.total_milli / greatest.device_milli)
    return _scored(nodes, demand, np.floor(SCORE_STEPS * (1.0 - (cpu + devices) / 2)))


def gpu_packing(nodes: SharedNodes, demand: ShareDemand) -> Scored:
    """Devices in use first, then idle devices of nodes in use, then idle nodes.

    In use: 100 less a tenth of the percentage left on the device, at least 50; idle device of a used node: 50 less the
    idle ones taken, at least 33; idle node: 33 less its devices, at least their number. Without devices: 0.
    """
    free = nodes.device_free_milli
    idle = (free == WHOLE).sum(axis=1)
    if not demand.devices:
        return _scored(nodes, demand, np.zeros(len(free)))
    shared = np.where(free >= demand.device_milli, free, WHOLE + 1).min(axis=1)
    in_use = np.maximum(100 - shared * 100 // WHOLE // 10, 50)
    take_idle = np.full(len(free), max(50 - demand.devices, 33))
    on_used = np.where(shared < WHOLE, in_use, take_idle)
    on_idle = np.maximum(33 - idle, idle)
    return _scored(nodes, demand, np.where(idle == (free != ABSENT).sum(axis=1), on_idle, on_used))


def gpu_clustering(nodes: SharedNodes, demand: ShareDemand, greatest: Greatest = PUBLISHED) -> Scored:
    """Nodes that hold the same kind of demand first (after Gandiva, OSDI 2018): only it 75, also others 50, none 25, only
    others 0, plus up to 25 for less left. The kind is `ShareDemand.kind`. Without devices: 0."""
    if not demand.devices:
        return _scored(nodes, demand, np.zeros(len(nodes.device_model)))
    kinds = (nodes.hosted > 0).sum(axis=1)
    same = nodes.hosted[:, demand.kind] > 0 if demand.kind < nodes.hosted.shape[1] else np.zeros(len(kinds), dtype=bool)
    base = np.select([same & (kinds == 1), same, kinds == 0], [75, 50, 25], default=0)
    return _scored(nodes, demand, base + 25 * (greatest.device_milli - nodes.total_free_milli) // greatest.device_milli)


def random_place(nodes: SharedNodes, demand: ShareDemand, generator: np.random.Generator) -> Scored:
    """One of the nodes that fit scores 100, the others 0; the device of a share is drawn too."""
    feasible = np.flatnonzero(fits(nodes, demand))
    score = np.full(len(nodes.device_model), -np.inf)
    device = np.full(len(score), ABSENT)
    if len(feasible):
        score[feasible] = 0.0
        row = int(generator.choice(feasible))
        score[row] = 100.0
        if demand.shares:
            device[row] = generator.choice(np.flatnonzero(nodes.device_free_milli[row] >= demand.device_milli))
    return Scored(score, device)


class IncrementalScores:
    """Scores of a deterministic rule, kept per demand; only nodes touched since a demand was last asked are evaluated again.

    1. A demand asked for the first time is evaluated on all nodes.
    2. `touched` appends a node to a log.
    3. A demand asked again evaluates the nodes of the log after its own position, once each, and moves to the end.
    """

    def __init__(self, nodes: SharedNodes, rule: Rule) -> None:
        self.nodes = nodes
        self._rule = rule
        self._kept: dict[ShareDemand, tuple[Scored, int]] = {}
        self._log: list[int] = []

    def touched(self, row: int) -> None:
        """Node ``row`` changed."""
        self._log.append(row)

    def scores(self, demand: ShareDemand) -> Scored:
        """The rule's scores now (N). The arrays belong to this object."""
        kept = self._kept.get(demand)
        if kept is None:
            scored = self._rule(self.nodes, demand)
        else:
            scored, position = kept
            rows = np.array(sorted(set(self._log[position:])), dtype=np.int64)
            if len(rows):
                score, device = self._rule(self.nodes.rows(rows), demand)
                scored.score[rows] = score
                scored.device[rows] = device
        self._kept[demand] = (scored, len(self._log))
        return scored


def best(scored: Scored) -> tuple[int, int] | None:
    """(node, device) with the greatest score, the first among equals; None where nothing fits.

    Many nodes are equal: the published results need an order of nodes that does not change during a run.
    """
    if not len(scored.score):
        return None
    row = int(scored.score.argmax())
    return None if scored.score[row] == -np.inf else (row, int(scored.device[row]))
