"""How many ranks of a demand fit into what is free on each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.scheduler.core.state import Demand
from services.scheduler.core.table import SLACK, UNBOUNDED, Floats, Ints, Table

_FEW = 256
"""For so many nodes a slower division takes less than to ask whether a quick one is exact."""


@dataclass(frozen=True, slots=True, eq=False)
class Free:
    """Amounts per node: cpus (N), memory (N), whole devices by model (N, M), user-defined resources (N, X), and the free
    part of each device in thousandths (N, G); None where only whole devices are asked about."""

    cpus: Floats
    memory_bytes: npt.NDArray[Any]
    devices: npt.NDArray[Any]
    resources: Floats
    device_milli: npt.NDArray[Any] | None


def fits(table: Table, free: Free, demand: Demand, columns: Ints, rows: Any = slice(None)) -> Ints:
    """How many ranks of a demand fit into what is free on each node of ``rows``."""
    found: list[Ints] = []
    if demand.accelerators > 0:
        found.append(_devices_that_fit(table, free, demand, columns, rows))
    if demand.cpus > 0:
        found.append(_times(free.cpus[rows], demand.cpus))
    if demand.memory_bytes > 0:
        found.append(free.memory_bytes[rows] // demand.memory_bytes)
    fit: Ints = np.minimum(found[0], UNBOUNDED) if found else np.full(free.cpus[rows].shape, UNBOUNDED, dtype=np.int64)
    for other in found[1:]:
        np.minimum(fit, other, out=fit)
    for name, amount in demand.resources:
        if amount <= 0:
            continue
        if name not in table.resource_names:
            return np.zeros_like(fit)
        column = free.resources[rows][:, table.resource_names.index(name)]
        np.minimum(fit, _times(column, amount), out=fit)
    if demand.service_port:
        np.minimum(fit, 1, out=fit)
    return np.maximum(fit, 0)


def _times(free: Floats, amount: float) -> Ints:
    """How often a fraction goes into what is free, up to `UNBOUNDED`; what is less than `SLACK` counts as that much."""
    have, each = free + SLACK, max(amount, SLACK)
    if len(have) > _FEW:
        ratio = have / each
        whole = np.floor(ratio)
    # Rounded up to a whole number it may be one too many; a division without rest is exact, and takes some times as long.
    if len(have) <= _FEW or (whole == ratio).any():
        whole = have // each
    found: Ints = np.minimum(whole, UNBOUNDED).astype(np.int64)
    return found


def _devices_that_fit(table: Table, free: Free, demand: Demand, columns: Ints, rows: Any) -> Ints:
    if demand.device_milli >= 1000:
        if len(columns) == 1:
            of_one: Ints = free.devices[:, columns.item(0)][rows] // demand.accelerators
            return of_one
        devices = free.devices[rows]
        if len(columns) != devices.shape[1]:
            devices = devices[:, columns]
        ranks: Ints = devices // demand.accelerators if demand.accelerators > 1 else devices
        all_models: Ints = ranks.sum(axis=1).astype(np.int64)
        return all_models
    if free.device_milli is None:
        whole_devices = free.devices[rows][:, columns].sum(axis=1).astype(np.int64)
        parts: Ints = whole_devices * (1000 // demand.device_milli) // demand.accelerators
        return parts
    accepted = np.isin(table.device_columns[rows], columns)
    milli = free.device_milli[rows]
    if demand.accelerators == 1:
        shares: Ints = (np.where(accepted, milli, 0) // demand.device_milli).sum(axis=1)
        return shares
    whole: Ints = (accepted & (milli >= demand.device_milli)).sum(axis=1) // demand.accelerators
    return whole
