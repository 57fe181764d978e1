"""Scores: how good a place is, from 0 to 1, greater is better.

Placing has two levels, so there are three kinds of score plugins, told apart by their method:
  DomainScore  ``domains(view, demand)``       a value per domain
  NodeScore    ``nodes(view, demand, rows)``   a value per node of ``rows``
  SetScore     ``domain_set(view, demand, ds)`` one value for a set of domains that a job would span
``dynamic`` says that the value reads what is free and changes while a cycle places. A node score with ``per_rank`` True promises that how
many ranks a demand asks for changes nothing in its values. `register` adds a plugin; the policy
names those that apply, with weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import configured
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Floats
from services.scheduler.core.view import View


@runtime_checkable
class DomainScore(Protocol):
    name: str
    dynamic: bool

    def domains(self, view: View, demand: Demand) -> Floats:
        """Value per domain."""
        ...


@runtime_checkable
class NodeScore(Protocol):
    name: str
    dynamic: bool

    def nodes(self, view: View, demand: Demand, rows: Any) -> Floats:
        """Value per node of ``rows``. A score may have ``node(view, demand, row)`` too, the same number for one node: quicker
        where few are asked about."""
        ...


@runtime_checkable
class SetScore(Protocol):
    name: str

    def domain_set(self, view: View, demand: Demand, domains: Sequence[int]) -> float:
        """Value of spanning these domains."""
        ...


Score = DomainScore | NodeScore | SetScore

NEUTRAL = 0.5
"""The value where a fact is unknown."""


def least_is_best(values: Floats) -> Floats:
    """Values scaled so that the least gives 1 and the greatest 0; unknown (NaN) gives `NEUTRAL`, equal ones give 1."""
    known = ~np.isnan(values)
    if not known.any():
        return np.full(values.shape, NEUTRAL)
    low, high = values[known].min(), values[known].max()
    if high <= low:
        return np.where(known, 1.0, NEUTRAL)
    return np.where(known, (high - np.nan_to_num(values)) / (high - low), NEUTRAL)


class PriceScore:
    """Cheap accelerator hours. Prices in a currency other than the most common one cannot be compared: neutral."""

    name = "price"
    dynamic = False

    def domains(self, view: View, demand: Demand) -> Floats:
        if not demand.accelerators:
            return np.ones(len(view.table.domain_ids))
        known = [name for name in view.table.currency if name]
        common = max(sorted(set(known)), key=known.count, default="")
        comparable = np.array([name == common for name in view.table.currency], dtype=np.bool_)
        return least_is_best(np.where(comparable, view.table.price, np.nan))


class CarbonScore:
    """Clean electricity: the fact ``carbon_g_per_kwh`` (D, NaN unknown) where it is kept, else what the domains state."""

    name = "carbon"
    dynamic = False

    def domains(self, view: View, demand: Demand) -> Floats:
        values = view.facts.get("carbon_g_per_kwh")
        return least_is_best(view.table.carbon if values is None else np.asarray(values, dtype=np.float64))


def _share(free: Floats, total: Floats) -> Floats:
    """Nodes that came up since the table was made are free but not in its totals: never more than 1."""
    return _within_one(free / np.maximum(total, 1.0))


def _within_one(values: Floats) -> Floats:
    """``np.clip`` to 0-1; a few values are clipped quicker so."""
    np.maximum(values, 0.0, out=values)
    return np.minimum(values, 1.0, out=values)


class SpreadScore:
    """The domain's free share of what the demand needs most: accelerators, else cpus. Keeps domains evenly loaded."""

    name = "spread"
    dynamic = True

    def domains(self, view: View, demand: Demand) -> Floats:
        if demand.accelerators:
            return _share(view.domain_free_devices, view.table.domain_devices)
        return _share(view.domain_free_cpus, view.table.domain_cpus)


class LocalityScore:
    """Near the checkpoint: 1 in its domain, elsewhere less with the time its transfer takes (half after a minute)."""

    name = "locality"
    dynamic = False

    def domains(self, view: View, demand: Demand) -> Floats:
        table = view.table
        if demand.checkpoint_domain not in table.domain_ids:
            return np.ones(len(table.domain_ids))
        home = table.domain_ids.index(demand.checkpoint_domain)
        transfer_s = demand.checkpoint_bytes / table.bandwidth_bytes_per_s[home]
        values = np.where(np.isnan(transfer_s), 0.0, 60.0 / (60.0 + np.nan_to_num(transfer_s)))
        # Elsewhere is never as good as here, however fast the link.
        values = np.minimum(values, 0.9)
        values[home] = 1.0
        return values


class ExpectedDemandScore:
    """Away from domains that are forecast to need their accelerators soon."""

    name = "expected_demand"
    dynamic = False

    def domains(self, view: View, demand: Demand) -> Floats:
        expected = view.table.expected_demand / np.maximum(view.table.domain_devices, 1.0)
        return np.where(np.isnan(expected), NEUTRAL, 1.0 - np.clip(np.nan_to_num(expected), 0.0, 1.0))


class RttScore:
    """Short ways inside the job: 1 in one domain, half at 20 ms between the farthest two; an unknown way counts as far."""

    name = "rtt"

    def domain_set(self, view: View, demand: Demand, domains: Sequence[int]) -> float:
        if len(domains) < 2:
            return 1.0
        ways = view.table.rtt_s[np.ix_(list(domains), list(domains))]
        if np.isnan(ways).any():
            return 0.0
        return float(0.02 / (0.02 + ways.max()))


class PackScore:
    """Least fragmentation: the fuller a node is after the placing, the better; cpu work stays off accelerator nodes."""

    name = "pack"
    dynamic = True
    per_rank = True

    def nodes(self, view: View, demand: Demand, rows: Any) -> Floats:
        table = view.table
        used: Floats = 1.0 - (view.free_cpus[rows] - demand.cpus) / np.maximum(table.cpus[rows], 1e-9)
        if demand.accelerators:
            left = (view.free_device_totals[rows] - demand.accelerators) / np.maximum(table.device_totals[rows], 1)
            filled: Floats = 0.8 * (1.0 - left) + 0.2 * used
            return _within_one(filled)
        apart: Floats = 0.5 * used + 0.5 * (table.device_totals[rows] == 0)
        return _within_one(apart)

    def node(self, view: View, demand: Demand, row: int) -> float:
        """`nodes` of one: for a few it is quicker."""
        table = view.table
        used: float = 1.0 - (view.free_cpus.item(row) - demand.cpus) / max(table.cpus.item(row), 1e-9)
        devices = table.device_totals.item(row)
        if demand.accelerators:
            left = (view.free_device_totals.item(row) - demand.accelerators) / max(devices, 1)
            return min(max(0.8 * (1.0 - left) + 0.2 * used, 0.0), 1.0)
        return min(max(0.5 * used + 0.5 * (devices == 0), 0.0), 1.0)


class HealthScore:
    """Nodes in full health before degraded ones."""

    name = "health"
    dynamic = False
    per_rank = True

    def nodes(self, view: View, demand: Demand, rows: Any) -> Floats:
        return np.where(view.table.degraded[rows], 0.0, 1.0)


SCORES: dict[str, Score] = {}


def register(plugin: Score) -> None:
    """Make a score known by its name; PolicyError when the name is taken or it has none of the three methods."""
    if plugin.name in SCORES:
        raise PolicyError(f"a score {plugin.name!r} exists already")
    if not isinstance(plugin, DomainScore | NodeScore | SetScore):
        raise PolicyError(f"score {plugin.name!r} has neither domains, nodes nor domain_set")
    SCORES[plugin.name] = plugin


for _plugin in (
    PriceScore(),
    CarbonScore(),
    SpreadScore(),
    LocalityScore(),
    ExpectedDemandScore(),
    RttScore(),
    PackScore(),
    HealthScore(),
):
    register(_plugin)


@dataclass(frozen=True, slots=True)
class Weighted:
    """The plugins of a policy by kind, each with its weight."""

    domain: tuple[tuple[DomainScore, float], ...]
    node: tuple[tuple[NodeScore, float], ...]
    domain_set: tuple[tuple[SetScore, float], ...]


def weighted(
    weights: Iterable[tuple[str, float]], options_of: Callable[[str], Mapping[str, Any]] = lambda _: {}
) -> Weighted:
    """The score plugins of these names with their weights and options; PolicyError when one does not exist."""
    domain: list[tuple[DomainScore, float]] = []
    node: list[tuple[NodeScore, float]] = []
    domain_set: list[tuple[SetScore, float]] = []
    for name, weight in weights:
        plugin = SCORES.get(name)
        if plugin is not None:
            plugin = configured(plugin, options_of(name))
        if isinstance(plugin, DomainScore):
            domain.append((plugin, weight))
        elif isinstance(plugin, NodeScore):
            node.append((plugin, weight))
        elif isinstance(plugin, SetScore):
            domain_set.append((plugin, weight))
        else:
            raise PolicyError(f"there is no score {name!r}; known are {', '.join(sorted(SCORES))}")
    return Weighted(tuple(domain), tuple(node), tuple(domain_set))
