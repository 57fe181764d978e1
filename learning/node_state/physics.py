"""From work and faults to metrics and the true state of each node.

Temperatures follow one thermal mass per node (time constant 30 s, ambient + resistance x power); chips slow down above 90
Celsius; power is idle plus a share of the rest. The numbers are of the size of data centre accelerators (60-700 W). States:

- unreachable: its port or switch is gone; nothing of it is read; failover suspects it one step later (nine of ten)
- asleep: put to sleep; nothing is read, and nine of ten are declared asleep
- failing: cannot go on: 96 Celsius, 95 % of memory leaked away, uncorrectable errors pile up, a hang
- degraded: gives at least 10 % less than the same work gives on a sound node, or is on the way to (8 K warmer than its work
  explains, 85 % of memory, errors grow, its network is slow)
- busy: all of it is allocated; healthy: the rest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from learning.node_state.fabrics import Fabric
from learning.node_state.faults import Episode, Kind
from learning.node_state.jobs import Work
from services.graph.node_state import NodeState
from services.graph.recognition.features import QUANTITIES, Quantity

Floats = npt.NDArray[np.float64]
TIME_CONSTANT_S = 30.0
THROTTLE_CELSIUS, FAILING_CELSIUS, WARM_KELVIN = 90.0, 96.0, 8.0


@dataclass(frozen=True, slots=True)
class Life:
    """What was read (``[steps, nodes, quantities]``, NaN unknown), the true states and the true utilisation."""

    read: Floats
    state: npt.NDArray[np.int64]
    utilization: Floats
    kind: npt.NDArray[np.int64]  # number of the fault kind that acts, -1 none


def lived(
    fabric: Fabric, work: Work, faults: Sequence[Episode], interval_s: float, chance: np.random.Generator
) -> Life:
    """Play the steps of ``work`` with the faults."""
    steps, nodes = work.allocated.shape
    severity = {kind: np.zeros((steps, nodes)) for kind in Kind}
    acting = np.full((steps, nodes), -1, dtype=np.int64)
    for fault in faults:
        grown = fault.severity(steps)[:, None]
        severity[fault.kind][:, fault.nodes] = np.maximum(severity[fault.kind][:, fault.nodes], grown)
        struck = (grown > 0) & np.ones(len(fault.nodes), dtype=bool)
        acting[:, fault.nodes] = np.where(struck, list(Kind).index(fault.kind), acting[:, fault.nodes])
    domain = int(chance.integers(3))
    idle = chance.uniform(50, 90, nodes) if domain else np.full(nodes, 70.0)
    peak = np.choose(
        domain, (chance.normal(650, 20, nodes), chance.normal(390, 15, nodes), chance.normal(280, 10, nodes))
    )
    site = fabric.site_of[fabric.switch_of]
    ambient = chance.uniform(18, 34, site.max() + 1)[site] + chance.normal(0, 1, nodes)
    resistance = chance.uniform(30, 45, nodes) / peak
    cause = _loss(work, severity, chance)

    noise = np.zeros((steps, nodes))
    utilization, watts, celsius, effective, loss = (np.zeros((steps, nodes)) for _ in range(5))
    warmed = 1.0 - np.exp(-interval_s / TIME_CONSTANT_S)
    heat = ambient + resistance * idle
    sound_heat = heat.copy()
    excess = np.zeros((steps, nodes))
    for step in range(steps):
        noise[step] = 0.7 * noise[max(step - 1, 0)] + chance.normal(0, 0.02, nodes)
        active = work.allocated[step] * np.clip(work.level[step] + noise[step], 0, 1)
        hung = severity[Kind.HANG][step] > 0
        spinning = work.allocated[step] > 0
        slow = np.clip((heat - THROTTLE_CELSIUS) / 10.0, 0.0, 0.7)
        capped = 1.0 - 0.55 * severity[Kind.POWER_CAP][step]
        draw = np.minimum(active * (1 - 0.6 * slow) * (1 - 0.4 * cause[step]), capped)
        draw = np.where(hung & spinning, 0.15, draw)
        watts[step] = (idle + (peak - idle) * draw) * chance.normal(1, 0.01, nodes)
        utilization[step] = np.where(hung & spinning, 1.0, active * (1 - 0.25 * cause[step]))
        cap_loss = np.where(active > capped, 1 - capped / np.maximum(active, 1e-6), 0.0)
        loss[step] = np.where(hung, 1.0, 1 - (1 - slow) * (1 - cap_loss) * (1 - cause[step]))
        effective[step] = active * work.efficiency[step] * (1 - loss[step])
        warm = ambient + 35.0 * severity[Kind.COOLING][step]
        resist = resistance * (1 + 1.6 * severity[Kind.THERMAL][step])
        heat = heat + warmed * (warm + resist * watts[step] - heat)
        sound = idle + (peak - idle) * np.where(hung, 0.15, active)
        sound_heat = sound_heat + warmed * (ambient + resistance * sound - sound_heat)
        celsius[step] = heat
        excess[step] = heat - sound_heat
    memory = np.clip(chance.uniform(0.05, 0.4) + 0.4 * work.allocated + chance.normal(0, 0.01, (steps, nodes)), 0, 1)
    memory = memory + (0.99 - memory) * severity[Kind.LEAK]
    read = _read(fabric, work, severity, memory, utilization, watts, celsius, effective, chance)
    state, asleep = _states(work, severity, memory, celsius, excess, loss, chance)
    _hide(read, severity, asleep, chance)
    utilization = np.where(asleep, 0.0, utilization)
    return Life(read, state, utilization, acting)


def _loss(work: Work, severity: dict[Kind, Floats], chance: np.random.Generator) -> Floats:
    """Share of the work lost to what slows a node down without heating it."""
    traffic = work.traffic
    slow_network = 0.6 * traffic * np.maximum(severity[Kind.CONGESTION], severity[Kind.NIC_SLOW])
    errors = 0.5 * severity[Kind.ECC] * chance.random(traffic.shape)
    swapping = np.clip(severity[Kind.LEAK] - 0.8, 0, 1)
    return 1 - (1 - slow_network) * (1 - errors) * (1 - 0.5 * severity[Kind.STRAGGLER]) * (1 - swapping)


def _read(
    fabric: Fabric, work: Work, severity: dict[Kind, Floats], memory: Floats, utilization: Floats, watts: Floats,
    celsius: Floats, effective: Floats, chance: np.random.Generator,
) -> Floats:  # fmt: skip
    steps, nodes = utilization.shape
    shape = (steps, nodes)
    slow = np.maximum(severity[Kind.CONGESTION], severity[Kind.NIC_SLOW])
    moving = np.where(severity[Kind.HANG] > 0, 0.0, work.traffic * utilization)
    nominal = float(chance.choice([25e9, 100e9, 200e9]))
    sent = nominal / 8 * 0.6 * moving * (1 - 0.7 * slow) * chance.lognormal(0, 0.15, shape)
    rtt = chance.uniform(0.002, 0.04, fabric.switch_of.max() + 1)[fabric.switch_of]
    read = np.full((*shape, QUANTITIES), np.nan)
    put: dict[Quantity, Floats] = {
        Quantity.UTILIZATION: np.clip(utilization + chance.normal(0, 0.01, shape), 0, 1),
        Quantity.FREE: 1 - work.allocated,
        Quantity.HOTTEST_CELSIUS: celsius + chance.normal(0, 0.7, shape),
        Quantity.WATTS: watts,
        Quantity.DEVICE_MEMORY: np.clip(work.memory * work.allocated + 0.08 * severity[Kind.ECC], 0, 1),
        # Others work on the hosts too.
        Quantity.PROCESSORS: np.clip(float(chance.choice([0, 0, 0.3, 0.7, 0.95])) + 0.04 + 0.3 * utilization + 0.5 * np.clip(severity[Kind.LEAK] - 0.7, 0, 1)
                                     + np.abs(chance.normal(0, 0.03, shape)), 0, 1),
        Quantity.MEMORY: memory,
        Quantity.NETWORK_BYTES_PER_S: sent + chance.exponential(1e6, shape),
        Quantity.INTERCONNECT_BYTES_PER_S: 2e11 * moving * chance.lognormal(0, 0.1, shape),
        Quantity.BANDWIDTH_BITS_PER_S: np.maximum(nominal * (1 - 0.8 * slow) - 8 * sent, 0),
        Quantity.RTT_S: rtt * (1 + 8 * slow**2 + 0.5 * moving) * chance.lognormal(0, 0.1, shape),
        Quantity.EFFECTIVE: effective,
        Quantity.HEALTH: np.where(chance.random(shape) < 0.6 * severity[Kind.ECC], 0.5, 1.0),
    }  # fmt: skip
    for quantity, values in put.items():
        read[:, :, quantity] = values
    read[:, :, Quantity.UTILIZATION_LEAST] = np.clip(
        read[:, :, Quantity.UTILIZATION] * np.where(work.allocated >= 1, 0.95, 0.2), 0, 1
    )
    _lie(read, severity, chance)
    return read


def _lie(read: Floats, severity: dict[Kind, Floats], chance: np.random.Generator) -> None:
    """Exporters that stand still, or read a constant too much."""
    frozen, wrong = severity[Kind.FROZEN_EXPORTER] > 0, severity[Kind.WRONG_EXPORTER] > 0
    for node in np.flatnonzero(frozen.any(axis=0)):
        start = int(np.argmax(frozen[:, node]))
        read[start:, node] = read[start, node]
    for node in np.flatnonzero(wrong.any(axis=0)):
        start = int(np.argmax(wrong[:, node]))
        what = int(chance.integers(3))
        if what == 0:
            read[start:, node, Quantity.HOTTEST_CELSIUS] += 32.0
        elif what == 1:
            read[start:, node, Quantity.WATTS] *= 0.4
        else:
            read[start:, node, Quantity.UTILIZATION] = 1.0
            read[start:, node, Quantity.UTILIZATION_LEAST] = 1.0


def _states(
    work: Work, severity: dict[Kind, Floats], memory: Floats, celsius: Floats, excess: Floats, loss: Floats,
    chance: np.random.Generator,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:  # fmt: skip
    steps, nodes = memory.shape
    loaded = work.allocated > 0
    asleep = np.zeros((steps, nodes), dtype=bool)
    for node in np.flatnonzero((~loaded).any(axis=0) & (chance.random(nodes) < 0.25)):
        start = int(np.argmax(~loaded[:, node]))
        ends = np.flatnonzero(loaded[start:, node])
        asleep[start : start + int(ends[0]) if len(ends) else steps, node] = True
    state = np.where(work.allocated >= 0.99, int(NodeState.BUSY), int(NodeState.HEALTHY))
    network = np.maximum(severity[Kind.CONGESTION], severity[Kind.NIC_SLOW]) > 0.3
    degraded = ((loss > 0.1) & loaded) | (excess > WARM_KELVIN) | (memory > 0.85) | (severity[Kind.ECC] > 0.2) | network
    failing = (
        (celsius > FAILING_CELSIUS)
        | (memory > 0.95)
        | (severity[Kind.ECC] > 0.6)
        | ((severity[Kind.HANG] > 0) & loaded)
    )
    gone = np.maximum(severity[Kind.NIC_LOSS], severity[Kind.SWITCH_LOSS]) > 0
    state = np.where(degraded, int(NodeState.DEGRADED), state)
    state = np.where(failing, int(NodeState.FAILING), state)
    asleep &= ~gone
    state = np.where(asleep, int(NodeState.ASLEEP), state)
    state = np.where(gone, int(NodeState.UNREACHABLE), state)
    return state.astype(np.int64), asleep


def _hide(
    read: Floats, severity: dict[Kind, Floats], asleep: npt.NDArray[np.bool_], chance: np.random.Generator
) -> None:
    """What nobody reads: silent nodes, what the exporters of this domain do not have, scrapes that failed."""
    steps, nodes, _ = read.shape
    # Some domains export nearly all, some little.
    share = float(chance.choice([0.1, 0.1, 0.3, 0.6]))
    missing = [quantity for quantity in Quantity if chance.random() < share]
    read[:, :, missing] = np.nan
    # An exporter of accelerators that is down on a node that is up.
    crashed = chance.random(nodes) < 0.03
    host = [
        Quantity.PROCESSORS,
        Quantity.MEMORY,
        Quantity.NETWORK_BYTES_PER_S,
        Quantity.BANDWIDTH_BITS_PER_S,
        Quantity.RTT_S,
    ]
    chips = [quantity for quantity in Quantity if quantity not in host]
    start = int(chance.integers(steps))
    read[np.ix_(range(start, steps), np.flatnonzero(crashed), chips)] = np.nan
    read[chance.random((steps, nodes)) < 0.02] = np.nan
    silent = asleep | (np.maximum(severity[Kind.NIC_LOSS], severity[Kind.SWITCH_LOSS]) > 0)
    read[silent] = np.nan
    declared = asleep & (chance.random(nodes) < 0.9)
    read[:, :, Quantity.DECLARED_ASLEEP] = np.where(declared, 1.0, np.nan)
    gone = silent & ~asleep
    late = np.zeros_like(gone)
    late[1:] = gone[:-1] & gone[1:]
    suspected = (late & (chance.random(nodes) < 0.9)) | (chance.random((steps, nodes)) < 0.003)
    read[:, :, Quantity.SUSPECTED] = np.where(suspected, 1.0, np.nan)
