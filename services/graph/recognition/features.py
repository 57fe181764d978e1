"""What the model of node states looks at: canonical metrics of a node over a short window. Shared by training and serving.

A sample is one node at one observation: ``len(QUANTITIES)`` numbers, NaN where nothing is known. A window is the newest
``WINDOW`` samples, oldest first, and `encoded` makes of it what the network takes: scaled values with zeros for the
unknown, and beside them which are known. Pure numpy; no value is ever invented for what was not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from math import nan

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
# metric -> accelerator index (-1: the node) -> value and time in seconds since 1970
Readings = Mapping[str, Mapping[int, tuple[float, float]]]

WINDOW = 8
WHOLE_NODE = -1


class Quantity(IntEnum):
    """Places in a sample. Shares are 0-1, watts and FLOP/s are means per accelerator."""

    UTILIZATION = 0
    UTILIZATION_LEAST = 1
    FREE = 2
    HOTTEST_CELSIUS = 3
    WATTS = 4
    DEVICE_MEMORY = 5
    PROCESSORS = 6
    MEMORY = 7
    NETWORK_BYTES_PER_S = 8
    INTERCONNECT_BYTES_PER_S = 9
    BANDWIDTH_BITS_PER_S = 10
    RTT_S = 11
    EFFECTIVE = 12  # share of the declared peak
    HEALTH = 13
    DECLARED_ASLEEP = 14
    AGE_S = 15  # of the sample when the newest of the window was taken
    SUSPECTED = 16  # 1 while failover suspects the node


QUANTITIES = len(Quantity)
SUMMARIES = 6
INPUTS = SUMMARIES * QUANTITIES
_LOGARITHMIC = {
    Quantity.NETWORK_BYTES_PER_S: 1e6,
    Quantity.INTERCONNECT_BYTES_PER_S: 1e6,
    Quantity.BANDWIDTH_BITS_PER_S: 1e6,
    Quantity.RTT_S: 1e-4,
}
_LINEAR = {
    Quantity.HOTTEST_CELSIUS: (60.0, 25.0),
    Quantity.WATTS: (250.0, 250.0),
    Quantity.AGE_S: (0.0, 60.0),
}


def sample(readings: Readings, peak_flops: float, *, asleep: bool, suspected: bool = False) -> Floats:
    """One node now: ``QUANTITIES`` numbers. ``peak_flops``: mean declared peak of its accelerators, FLOP/s, 0 unknown.

    For a node of which nothing is read all is NaN but what was declared of it and failover's suspicion.
    """
    return np.array(sample_numbers(readings, peak_flops, asleep=asleep, suspected=suspected), dtype=np.float32)


def sample_numbers(readings: Readings, peak_flops: float, *, asleep: bool, suspected: bool = False) -> list[float]:
    """What `sample` gives, not yet an array: one of all nodes of a domain is made sooner than one of each."""
    found: list[float | None] = [None] * QUANTITIES
    utilization = _chips(readings, "hw.gpu.utilization")
    if utilization:
        found[Quantity.UTILIZATION] = sum(utilization) / len(utilization)
        found[Quantity.UTILIZATION_LEAST] = min(utilization)
    found[Quantity.FREE] = _mean(_chips(readings, "cpn.compute.capacity_free"))
    found[Quantity.HOTTEST_CELSIUS] = max(_chips(readings, "hw.temperature"), default=None)
    found[Quantity.WATTS] = _mean(_chips(readings, "hw.power"))
    found[Quantity.DEVICE_MEMORY] = _share(
        _chips(readings, "hw.gpu.memory.usage"), _chips(readings, "hw.gpu.memory.limit")
    )
    found[Quantity.PROCESSORS] = _whole(readings, "system.cpu.utilization")
    used, limit = _whole(readings, "system.memory.usage"), _whole(readings, "system.memory.limit")
    if used is not None and limit:
        found[Quantity.MEMORY] = used / limit
    found[Quantity.NETWORK_BYTES_PER_S] = _whole(readings, "system.network.io")
    found[Quantity.INTERCONNECT_BYTES_PER_S] = _mean(_chips(readings, "cpn.interconnect.io"))
    found[Quantity.BANDWIDTH_BITS_PER_S] = _whole(readings, "cpn.net.bandwidth_available")
    found[Quantity.RTT_S] = _whole(readings, "cpn.net.rtt")
    effective = _mean(_chips(readings, "cpn.compute.effective"))
    if effective is not None and peak_flops > 0:
        found[Quantity.EFFECTIVE] = effective / peak_flops
    health = readings.get("cpn.health")
    if health:
        found[Quantity.HEALTH] = min(value for value, _ in health.values())
    if asleep:
        found[Quantity.DECLARED_ASLEEP] = 1.0
    if suspected:
        found[Quantity.SUSPECTED] = 1.0
    return [nan if value is None else value for value in found]


def encoded(windows: npt.NDArray[np.floating]) -> Floats:
    """``[nodes, WINDOW, QUANTITIES]`` -> ``[nodes, INPUTS]``.

    Of each quantity, scaled: the newest value, the mean of the known ones, their spread, how far the newest is from the oldest
    known one, whether the newest is known, and the share of the window that is known. Zero stands for what is not known.
    """
    assert windows.shape[1:] == (WINDOW, QUANTITIES), windows.shape
    values = windows.astype(np.float32)  # a copy, changed in place below
    known = np.isfinite(values)
    values[~known] = 0.0
    for quantity, unit in _LOGARITHMIC.items():
        values[:, :, quantity] = np.log1p(np.maximum(values[:, :, quantity], 0.0) / np.float32(unit)) * np.float32(0.2)
    for quantity, (middle, spread) in _LINEAR.items():
        values[:, :, quantity] = (
            (values[:, :, quantity] - np.float32(middle)) * known[:, :, quantity] / np.float32(spread)
        )
    np.clip(values, -4.0, 4.0, out=values)
    count = known.sum(axis=1, dtype=np.float32)
    some = np.maximum(count, 1.0)
    mean = values.sum(axis=1) / some
    square = np.einsum("nwq,nwq->nq", values, values) / some
    oldest = np.take_along_axis(values, known.argmax(axis=1)[:, None], axis=1)[:, 0]
    found = np.empty((len(values), SUMMARIES, QUANTITIES), dtype=np.float32)
    newest, newest_known = values[:, -1], known[:, -1]
    found[:, 0] = newest
    found[:, 1] = mean
    found[:, 2] = 3.0 * np.sqrt(np.maximum(square - mean * mean, 0.0))
    found[:, 3] = 2.0 * (newest - oldest) * newest_known
    found[:, 4] = newest_known
    found[:, 5] = count / WINDOW
    return found.reshape(len(values), INPUTS)


def _chips(readings: Readings, metric: str) -> list[float]:
    series = readings.get(metric)
    return [value for index, (value, _) in series.items() if index != WHOLE_NODE] if series else []


def _whole(readings: Readings, metric: str) -> float | None:
    item = readings.get(metric, {}).get(WHOLE_NODE)
    return None if item is None else item[0]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _share(used: list[float], limits: list[float]) -> float | None:
    limit = _mean(limits)
    mean = _mean(used)
    return None if mean is None or not limit else mean / limit
