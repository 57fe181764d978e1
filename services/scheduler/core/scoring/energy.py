"""Energy: work goes to nodes that are awake anyway, so that the others can sleep, and to cheap electricity.

A node sleeps by the fact ``asleep`` (N), else by the fleet's state; one that got work since is about to be woken and counts
as awake, so the next unit wakes no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from services.scheduler.core.options import numbers_of
from services.scheduler.core.scores import least_is_best
from services.scheduler.core.scoring.facts import by_domain, by_node
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools, Floats
from services.scheduler.core.view import View


def in_use(view: View, rows: Any = slice(None)) -> Bools:
    """Nodes of ``rows`` that hold anything: processors, memory or a part of a device."""
    table = view.table
    used: Bools = view.free_cpus[rows] < table.cpus[rows] - 1e-6
    used |= view.free_memory_bytes[rows] < table.memory_bytes[rows]
    used |= view.free_device_totals[rows] < table.device_totals[rows]
    return used


def sleeping(view: View, rows: Any = slice(None)) -> Bools:
    """Nodes of ``rows`` that would have to be woken."""
    stated = by_node(view, "asleep")
    asleep: Bools = view.table.asleep[rows] if stated is None else stated[rows] > 0
    return asleep & ~in_use(view, rows)


class EnergyScore:
    """Nodes in use (1), then idle ones that are awake (above 0.5), then sleeping ones (at most 0.5).

    Idle ones are better the less they draw: ``0.5 + 0.25 watts / (watts + idle_watts)``; sleeping ones the less they draw and
    the sooner they wake: ``0.5 watts / (watts + idle_watts) wake_s / (wake_s + the node's)``. Options: ``watts`` (200) and
    ``wake_s`` (60), where the factors are one half.
    """

    name = "energy"
    dynamic = True

    def __init__(self, watts: float = 200.0, wake_s: float = 60.0) -> None:
        self._watts, self._wake_s = watts, wake_s

    def configured(self, options: Mapping[str, Any]) -> EnergyScore:
        """With the options of a policy; PolicyError names the wrong one."""
        return EnergyScore(**numbers_of(self.name, options, watts=1e-9, wake_s=1e-9))

    def nodes(self, view: View, demand: Demand, rows: Any) -> Floats:
        frugal = self._watts / (self._watts + np.maximum(view.table.idle_watts[rows], 0.0))
        quick = self._wake_s / (self._wake_s + np.maximum(view.table.wake_s[rows], 0.0))
        awake = np.where(in_use(view, rows), 1.0, 0.5 + 0.25 * frugal)
        return np.where(sleeping(view, rows), 0.5 * frugal * quick, awake)


class AwakeScore:
    """Domains by the share of the unit's ranks that fit on nodes which are awake. Needed beside `EnergyScore` because the
    domain is chosen before its nodes. The filters other than capacity and being up are not looked at."""

    name = "awake"
    dynamic = True

    def domains(self, view: View, demand: Demand) -> Floats:
        table = view.table
        size = len(table.domain_ids)
        asleep = sleeping(view)
        if not asleep.any():
            return np.ones(size)
        rows = np.flatnonzero(view.up & ~asleep)
        room = view.ranks_that_fit(demand, view.columns(demand), rows)
        sums = np.bincount(table.node_domain[rows], weights=room, minlength=size)
        return np.minimum(sums / max(demand.ranks, 1), 1.0)


class ElectricityScore:
    """Cheap electricity by domain: the fact ``electricity_micro_units_per_kwh`` (D), NaN or 0 unknown and neutral.

    Prices in a currency other than the most common one cannot be compared: neutral.
    """

    name = "electricity"
    dynamic = False

    def domains(self, view: View, demand: Demand) -> Floats:
        prices = by_domain(view, "electricity_micro_units_per_kwh")
        if prices is None:
            prices = np.full(len(view.table.domain_ids), np.nan)
        known = [name for name in view.table.currency if name]
        common = max(sorted(set(known)), key=known.count, default="")
        comparable = np.array([name == common for name in view.table.currency], dtype=np.bool_)
        return least_is_best(np.where(comparable & (prices > 0), prices, np.nan))
