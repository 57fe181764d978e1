"""Rates and times of collectives over groups that are placed on nodes in the order tp, cp, dp, pp.

A ring over g members in each node has g network interfaces of every node when the other groups of the node use theirs
at the same time, and never more than the link within the node (NCCL; Narayanan 2021 section 3.2). Ring costs: Thakur et
al. 2005.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.forecast.cost_model.efficiency import Efficiency
from services.forecast.cost_model.layout import TrainingLayout
from services.forecast.cost_model.machine import Machine


@dataclass(frozen=True, slots=True)
class Group:
    """``size`` members, ``stride`` ranks apart."""

    size: int
    stride: int


def groups(layout: TrainingLayout) -> dict[str, Group]:
    """The groups of a layout by kind of parallelism."""
    inner = layout.tp * layout.cp
    return {
        "tp": Group(layout.tp, 1),
        "cp": Group(layout.cp, layout.tp),
        "dp": Group(layout.dp * layout.cp, layout.tp),
        # Experts are spread over the ranks of a stage, tensor ranks first.
        "ep": Group(layout.ep, 1),
        "pp": Group(layout.pp, inner * layout.dp),
    }


def sent_away(places: float, copies: int, *, once: bool) -> float:
    """Copies of a token that leave its place, of ``copies`` for experts spread evenly over ``places``.

    ``once``: one for each other place that is chosen at all, on average.
    """
    if once:
        return (places - 1) * (1 - (1 - 1 / places) ** copies)
    return (places - 1) / places * copies


class Links:
    """Times of transfers on one machine."""

    def __init__(self, machine: Machine, efficiency: Efficiency) -> None:
        self._machine = machine
        self._link = machine.link_bytes_per_s * efficiency.link
        self._fabric = machine.fabric_bytes_per_s * efficiency.fabric
        self._start = efficiency.collective_s

    def crosses(self, group: Group) -> bool:
        """Whether the group spans nodes."""
        return group.size > 1 and group.size * group.stride > self._machine.node_size

    def rate(self, group: Group) -> float:
        """Bytes per second of a ring over the group, per member."""
        if not self.crosses(group):
            return self._link
        inside = max(1, min(group.size, self._machine.node_size // group.stride))
        return min(self._link, inside * self._fabric)

    def gather(self, size_bytes: float, group: Group) -> float:
        """All-gather or reduce-scatter of ``size_bytes`` in all; an all-reduce is both."""
        if group.size <= 1:
            return 0.0
        share = (group.size - 1) / group.size
        return share * size_bytes / self.rate(group) + self._start * (1 + math.log2(group.size)) / 2

    def exchange(self, size_bytes: float, group: Group, copies: int, *, once: bool = True) -> float:
        """All-to-all of ``size_bytes`` per member, which are ``copies`` of each token, spread evenly.

        ``once``: a token is sent once to each node that needs it and there once to each chip (DeepEP; DeepSeek-V3 section
        3.2), else as often as experts there are chosen.
        """
        if group.size <= 1:
            return 0.0
        each = size_bytes / copies
        away = sent_away(group.size, copies, once=once) * each
        start = self._start * (1 + math.log2(group.size)) / 2
        if not self.crosses(group):
            return away / self._link + start
        inside = max(1, min(group.size, self._machine.node_size // group.stride))
        outside = sent_away(group.size / inside, copies, once=once) * each
        return max(outside / self._fabric, away / self._link) + start

    def send(self, size_bytes: float, group: Group) -> float:
        """To the next member."""
        if group.size <= 1:
            return 0.0
        rate = self._fabric if self.crosses(group) else self._link
        return size_bytes / rate + self._start / 2
