"""What the nodes draw: joules, carbon and electricity money, integrated exactly between the events of a simulation.

A node awake draws its idle watts plus so many per busy accelerator, a node asleep its sleep watts, a node waking up its
wake watts until it is ready. Power is constant between events, so energy is a sum of products; the carbon intensity of a
domain is constant within an hour of the day, so its integral to any instant is one table look-up and one product. Every
event touches one node, whose sums are brought up to date then; totals are array operations over all nodes.

A node under repair is on: with nothing busy it draws its idle watts (a caller who sees it otherwise puts it to sleep).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meridian.errors import InvalidArgumentError
from simulation.checks import at_least_zero
from simulation.model import Network, SimDomain, SimNode

JOULES_PER_KWH = 3.6e6
HOUR_S = 3600.0
HOURS = (1, 24)


@dataclass(frozen=True, slots=True)
class DomainEnergy:
    """Totals of a domain since the beginning: money in micro-units of its currency, rounded to the nearest, once."""

    joules: float
    carbon_g: float
    money_micro_units: int
    currency: str


class CarbonSeries:
    """Carbon intensity by hour of the day, g/kWh: one value for always, or 24, periodic.

    ``day_offset_s`` is the time of day at time 0. `integral` is in g/kWh x s from time 0.
    """

    def __init__(self, g_per_kwh: tuple[float, ...], day_offset_s: float = 0.0) -> None:
        if len(g_per_kwh) not in HOURS:
            raise InvalidArgumentError(f"carbon_g_per_kwh: {len(g_per_kwh)} values, not 1 or 24")
        for hour, value in enumerate(g_per_kwh):
            at_least_zero(f"carbon_g_per_kwh[{hour}]", value)
        self._offset_s = day_offset_s
        self._hourly = g_per_kwh * (24 // len(g_per_kwh))
        before = [0.0]
        for value in self._hourly:
            before.append(before[-1] + value * HOUR_S)
        self._before = before
        self._constant = len(set(g_per_kwh)) == 1
        self._at_zero = 0.0
        self._piece = self._piece_at(0.0)
        self._at_zero = self.integral(0.0)
        self._piece = self._piece_at(0.0)

    def intensity(self, time_s: float) -> float:
        """G/kWh at an instant; an hour begins with its first instant."""
        return self._hourly[math.floor((time_s + self._offset_s) / HOUR_S) % 24]

    def integral(self, time_s: float) -> float:
        """From time 0 to ``time_s``. The hour asked for last is kept: events of a simulation mostly fall into it again."""
        begin_s, end_s, before, value = self._piece
        if not begin_s <= time_s < end_s:
            self._piece = begin_s, end_s, before, value = self._piece_at(time_s)
        return before + value * (time_s - begin_s)

    def _piece_at(self, time_s: float) -> tuple[float, float, float, float]:
        """Begin and end of the hour around an instant, the integral up to its begin, and its intensity."""
        if self._constant:
            return 0.0, math.inf, 0.0, self._hourly[0]
        hour = math.floor((time_s + self._offset_s) / HOUR_S)
        begin_s = hour * HOUR_S - self._offset_s
        days, of_day = divmod(hour, 24)
        before = days * self._before[24] + self._before[of_day] - self._at_zero
        return begin_s, begin_s + HOUR_S, before, self._hourly[of_day]


class Energy:
    """Energy of every node of a network from ``start_s`` on, all awake and idle at first.

    ``wake_watts`` by node id is what it draws while waking (default: its idle watts). Steps of an event on a node: settle
    its sums up to ``now_s`` at the old power; set the new power. Times per node never go back. Errors
    (`InvalidArgumentError`) name the node, and change nothing.
    """

    def __init__(
        self,
        network: Network,
        *,
        start_s: float = 0.0,
        day_offset_s: float = 0.0,
        wake_watts: Mapping[str, float] | None = None,
    ) -> None:
        nodes = network.nodes
        extra = wake_watts or {}
        for node in nodes:
            _check_node(node, extra.get(node.node_id, 0.0))
        self._index = {node.node_id: place for place, node in enumerate(nodes)}
        if len(self._index) != len(nodes):
            raise InvalidArgumentError("nodes: a node_id is given twice")
        if unknown := set(extra) - set(self._index):
            raise InvalidArgumentError(f"wake_watts: no node {min(unknown)!r}")
        self._domains: list[SimDomain] = network.domains
        self._carbon = [CarbonSeries(domain.carbon_g_per_kwh, day_offset_s) for domain in network.domains]
        self._nodes = nodes
        self._domain_of = [place for place, domain in enumerate(network.domains) for _ in domain.nodes]
        self._domain_array = np.array(self._domain_of, dtype=np.int64)
        self._wake_watts = [extra.get(node.node_id, node.idle_watts) for node in nodes]
        # Events read and write single values, totals whole arrays: both see the same memory, each in its fast form.
        self._watts = array("d", [node.idle_watts for node in nodes])
        self._joules = array("d", [0.0] * len(nodes))
        self._grams = array("d", [0.0] * len(nodes))
        self._since_s = array("d", [start_s] * len(nodes))
        self._since_carbon = array("d", [self._carbon[place].integral(start_s) for place in self._domain_of])
        self._watts_array = _shared(self._watts)
        self._joules_array = _shared(self._joules)
        self._grams_array = _shared(self._grams)
        self._since_array = _shared(self._since_s)
        self._since_carbon_array = _shared(self._since_carbon)
        self._asleep = bytearray(len(nodes))
        self._busy = [0.0] * len(nodes)
        self._waking: dict[int, float] = {}

    def set_busy(self, node_id: str, accelerators: float, now_s: float) -> None:
        """The number of busy accelerators (a shared one counts by its share) from ``now_s`` on.

        Errors: more than the node has, or some while it is asleep or not yet ready.
        """
        place = self._place(node_id)
        node = self._nodes[place]
        if not 0 <= accelerators <= node.accelerators:
            raise InvalidArgumentError(
                f"accelerators: {accelerators} busy on {node_id!r}, which has {node.accelerators}"
            )
        if self._asleep[place] and accelerators > 0:
            raise InvalidArgumentError(f"accelerators: {node_id!r} is asleep")
        if self._waking and accelerators > 0 and self._waking.get(place, now_s) > now_s:
            raise InvalidArgumentError(f"accelerators: {node_id!r} is ready only at {self._waking[place]} s")
        self._settle(place, now_s)
        self._busy[place] = accelerators
        if not self._asleep[place]:
            self._watts[place] = node.idle_watts + accelerators * node.busy_watts_per_accelerator

    def sleep(self, node_id: str, now_s: float) -> None:
        """Put an idle node to sleep at once (also one that is waking). Errors: a node with busy accelerators."""
        place = self._place(node_id)
        if self._busy[place] > 0:
            raise InvalidArgumentError(f"node_id: {node_id!r} has {self._busy[place]:g} busy accelerators")
        self._settle(place, now_s)
        self._waking.pop(place, None)
        self._asleep[place] = 1
        self._watts[place] = self._nodes[place].sleep_watts

    def wake(self, node_id: str, now_s: float) -> float:
        """Wake a node; when it is ready, s. ``now_s`` for one that is awake, the known time for one that is waking."""
        place = self._place(node_id)
        if not self._asleep[place]:
            return max(self._waking.get(place, now_s), now_s)
        self._settle(place, now_s)
        node = self._nodes[place]
        self._asleep[place] = 0
        self._watts[place] = node.idle_watts
        ready_s = now_s + node.wake_s
        if node.wake_s > 0:
            self._waking[place] = ready_s
        return ready_s

    def is_asleep(self, node_id: str) -> bool:
        """Whether a node sleeps (one that is waking does not)."""
        return bool(self._asleep[self._place(node_id)])

    def watts(self, node_id: str, now_s: float) -> float:
        """What a node draws at ``now_s``, its last event or later."""
        place = self._place(node_id)
        return self._wake_watts[place] if self._waking.get(place, now_s) > now_s else self._watts[place]

    def node_joules(self, now_s: float) -> NDArray[np.float64]:
        """Joules of each node up to ``now_s``, shape (nodes,), in the order of ``network.nodes``."""
        return self._sums(now_s)[0]

    def totals(self, now_s: float) -> dict[str, DomainEnergy]:
        """Joules, carbon and electricity money by domain up to ``now_s``; nothing is changed. O(nodes)."""
        joules, grams = self._sums(now_s)
        count = len(self._domains)
        joules_by = np.bincount(self._domain_array, weights=joules, minlength=count)
        grams_by = np.bincount(self._domain_array, weights=grams, minlength=count)
        return {
            domain.domain_id: DomainEnergy(
                float(joules_by[place]),
                float(grams_by[place]),
                round(float(joules_by[place]) / JOULES_PER_KWH * domain.electricity_micro_units_per_kwh),
                domain.currency,
            )
            for place, domain in enumerate(self._domains)
        }

    def _sums(self, now_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if not math.isfinite(now_s) or (self._since_array > now_s).any():
            raise InvalidArgumentError(f"now_s: {now_s} is before an event, or no time at all")
        carbon = np.array([series.integral(now_s) for series in self._carbon])[self._domain_array]
        joules = self._joules_array + self._watts_array * (now_s - self._since_array)
        grams = self._grams_array + self._watts_array * (carbon - self._since_carbon_array) / JOULES_PER_KWH
        for place, ready_s in self._waking.items():
            more_joules, more_grams = self._wake_extra(place, min(ready_s, now_s))
            joules[place] += more_joules
            grams[place] += more_grams
        return joules, grams

    def _settle(self, place: int, now_s: float) -> None:
        since_s = self._since_s[place]
        if not now_s >= since_s or math.isinf(now_s):
            raise InvalidArgumentError(f"now_s: {now_s} is before {since_s} at node {self._nodes[place].node_id!r}")
        watts = self._watts[place]
        carbon = self._carbon[self._domain_of[place]].integral(now_s)
        joules = watts * (now_s - since_s)
        grams = watts * (carbon - self._since_carbon[place]) / JOULES_PER_KWH
        if self._waking and place in self._waking:
            ready_s = self._waking[place]
            more_joules, more_grams = self._wake_extra(place, min(ready_s, now_s))
            joules += more_joules
            grams += more_grams
            if ready_s <= now_s:
                del self._waking[place]
        self._joules[place] += joules
        self._grams[place] += grams
        self._since_s[place] = now_s
        self._since_carbon[place] = carbon

    def _wake_extra(self, place: int, until_s: float) -> tuple[float, float]:
        """Joules and grams that a waking node draws beyond its idle watts, up to ``until_s``."""
        more_watts = self._wake_watts[place] - self._watts[place]
        carbon = self._carbon[self._domain_of[place]].integral(until_s) - self._since_carbon[place]
        return more_watts * (until_s - self._since_s[place]), more_watts * carbon / JOULES_PER_KWH

    def _place(self, node_id: str) -> int:
        place = self._index.get(node_id)
        if place is None:
            raise InvalidArgumentError(f"node_id: no node {node_id!r}")
        return place


def _shared(values: array[float]) -> NDArray[np.float64]:
    return np.frombuffer(values, dtype=np.float64)


def _check_node(node: SimNode, wake_watts: float) -> None:
    for name, value in (
        ("idle_watts", node.idle_watts),
        ("busy_watts_per_accelerator", node.busy_watts_per_accelerator),
        ("sleep_watts", node.sleep_watts),
        ("wake_s", node.wake_s),
        ("wake_watts", wake_watts),
    ):
        at_least_zero(f"{name} of node {node.node_id!r}", value)
