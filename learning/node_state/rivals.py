"""What the network must beat: the rule that serves without a model, boosting on 1-hop means, and simple loads."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingClassifier

from learning.node_state.dataset import CLASSES, UNKNOWN_LOAD, Snapshot
from services.graph.node_state import Incident, NodeSignals, node_state
from services.graph.recognition.features import WINDOW, Quantity
from services.graph.recognition.neighbourhood import neighbourhood

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
_RULE_CLASSES = {int(state): number for number, state in enumerate(CLASSES)}


def by_rule(looks: Sequence[Snapshot]) -> Integers:
    """The rules of `services.graph.node_state` on the newest sample. A node of which nothing is read counts as one that is not
    heard: that favours the rule."""
    found: list[int] = []
    for look in looks:
        for window in look.windows:
            newest = window[-1]
            value = {quantity: None if np.isnan(newest[quantity]) else float(newest[quantity]) for quantity in Quantity}
            asleep = value[Quantity.DECLARED_ASLEEP] is not None
            silent = not any(
                value[quantity] is not None
                for quantity in Quantity
                if quantity not in {Quantity.AGE_S, Quantity.DECLARED_ASLEEP, Quantity.SUSPECTED}
            )
            signals = NodeSignals(
                incident=Incident.SUSPECTED if value[Quantity.SUSPECTED] is not None else Incident.NONE,
                domain_silence="nothing is read" if silent and not asleep else "",
                asleep=asleep,
                accelerators=1,
                health=value[Quantity.HEALTH],
                hottest_celsius=value[Quantity.HOTTEST_CELSIUS],
                free_capacity=value[Quantity.FREE],
                accelerator_utilization=value[Quantity.UTILIZATION],
                cpu_utilization=value[Quantity.PROCESSORS],
            )
            found.append(_RULE_CLASSES[int(node_state(signals).state)])
    return np.asarray(found, dtype=np.int64)


def table(looks: Sequence[Snapshot]) -> Floats:
    """One row per node, NaN unknown: its newest values, their mean, spread and change over the window, and the means of newest
    value and change over its switch and its site."""
    rows = []
    for look in looks:
        around = neighbourhood(look.switch_of, look.site_of, look.site_links, look.sites)
        newest = look.windows[:, -1]
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of quantities that are not known at all
            own = [
                np.nanmean(look.windows, axis=1),
                np.nanstd(look.windows, axis=1),
                newest - look.windows[:, WINDOW // 2],
            ]
        brief = np.concatenate([newest, own[2], np.isnan(newest).astype(np.float32)], axis=1)
        means = [_known_mean(brief, group)[group] for group in (around.switch, around.site)]
        rows.append(np.concatenate([newest, *own, *means], axis=1))
    return np.concatenate(rows).astype(np.float32)


def _known_mean(values: Floats, group: Integers) -> Floats:
    """Mean of what is known, per group."""
    groups = int(group.max()) + 1
    known = np.isfinite(values)
    sums, counts = np.zeros((groups, values.shape[1])), np.zeros((groups, values.shape[1]))
    np.add.at(sums, group, np.where(known, values, 0.0))
    np.add.at(counts, group, known)
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, sums / counts, np.nan).astype(np.float32)


def boosted(train: Sequence[Snapshot], seed: int) -> HistGradientBoostingClassifier:
    """Gradient boosting on `table`; early stopping on a tenth of the rows, class weights as the network's."""
    label = np.concatenate([look.label for look in train])
    counts = np.bincount(label, minlength=len(CLASSES))
    weight = (counts.sum() / np.maximum(counts, 1)) ** 0.5
    machine = HistGradientBoostingClassifier(
        max_iter=40, learning_rate=0.25, max_leaf_nodes=31, max_bins=63, l2_regularization=1.0, early_stopping=True,
        validation_fraction=0.1, n_iter_no_change=10, random_state=seed,
    )  # fmt: skip
    return machine.fit(table(train), label, sample_weight=weight[label])


def persistence(looks: Sequence[Snapshot]) -> Floats:
    """The load stays: the newest utilisation that is known, else 0."""
    read = np.concatenate([look.windows[:, :, Quantity.UTILIZATION] for look in looks])
    last = np.zeros(len(read), dtype=np.float32)
    for step in range(read.shape[1]):
        last = np.where(np.isfinite(read[:, step]), read[:, step], last)
    return last


class LinearLoad:
    """Ridge regression of the next load on the own window of utilisation and free capacity, with what is missing marked."""

    def __init__(self, train: Sequence[Snapshot], ridge: float = 1.0) -> None:
        load = np.concatenate([look.load for look in train])
        known = load != UNKNOWN_LOAD
        inputs = self._inputs(train)[known]
        gram = inputs.T @ inputs + ridge * np.eye(inputs.shape[1])
        self._weights = np.linalg.solve(gram, inputs.T @ load[known])

    def __call__(self, looks: Sequence[Snapshot]) -> Floats:
        """Loads of all nodes, 0-1."""
        return np.clip(self._inputs(looks) @ self._weights, 0, 1).astype(np.float32)

    @staticmethod
    def _inputs(looks: Sequence[Snapshot]) -> npt.NDArray[np.float64]:
        window = np.concatenate([look.windows[:, :, [Quantity.UTILIZATION, Quantity.FREE]] for look in looks])
        flat = window.reshape(len(window), -1).astype(np.float64)
        known = np.isfinite(flat)
        return np.concatenate([np.where(known, flat, 0), known, np.ones((len(flat), 1))], axis=1)
