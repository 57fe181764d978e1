"""When capacity goes and comes back: node failures, whole racks, and spot capacity.

A schedule is drawn beforehand from its own seed, so the same failures meet every policy, whatever the policy does. Each
node and each rack has a random stream of its own (numpy ``SeedSequence.spawn``): more domains at the end of a network do
not change the failures of the others. Two parts of a simulation that share a seed must each be given a spawned child of it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from meridian.errors import InvalidArgumentError
from simulation.model import Network, SimDomain

Distribution = Literal["exponential", "weibull"]
Repair = Literal["fixed", "exponential", "lognormal"]
Reclaim = Literal["newest", "random"]


class NodeEvent(NamedTuple):
    """A node goes down or comes up again."""

    time_s: float
    node_id: str
    change: Literal["down", "up"]


class SpotEvent(NamedTuple):
    """From now on ``available`` accelerators of the domain may be used."""

    time_s: float
    domain_id: str
    available: int


class Holding(NamedTuple):
    """What a job holds of a spot domain: the victims of a reclaim are chosen among these."""

    job_id: str
    allocated_at_s: float
    accelerators: float


@dataclass(frozen=True, slots=True)
class FailureModel:
    """The laws of failure and repair.

    The time from a repair to the next failure has the mean ``mtbf_node_s`` of the domain: exponential, or Weibull with
    ``shape`` (default 0.7: Schroeder and Gibson, DSN 2006, found 0.7-0.8, so failures come in clusters). The time of
    repair has the mean ``mttr_node_s``: fixed, exponential, or lognormal with ``repair_sigma`` of its logarithm (default
    1.9: mean about 6 h at a median of 1 h in the same study).

    ``rack_share`` of a node's failures are those of its whole rack: its own law then has the mean ``mtbf / (1 - share)``,
    that of its rack ``mtbf / share``, so the rate of a node stays 1 / mtbf (exactly for exponential). A node without a
    rack fails alone.
    """

    distribution: Distribution = "exponential"
    shape: float = 0.7
    repair: Repair = "fixed"
    repair_sigma: float = 1.9
    rack_share: float = 0.0

    def __post_init__(self) -> None:
        if self.distribution not in {"exponential", "weibull"}:
            raise InvalidArgumentError(f"distribution: no {self.distribution!r}")
        if self.repair not in {"fixed", "exponential", "lognormal"}:
            raise InvalidArgumentError(f"repair: no {self.repair!r}")
        if not 0 < self.shape < math.inf:
            raise InvalidArgumentError(f"shape: {self.shape} is not above 0")
        if not 0 <= self.repair_sigma < math.inf:
            raise InvalidArgumentError(f"repair_sigma: {self.repair_sigma} is not a number of 0 or more")
        if not 0 <= self.rack_share <= 1:
            raise InvalidArgumentError(f"rack_share: {self.rack_share} is not within 0-1")

    def draw_up_s(self, mean_s: float, generator: np.random.Generator) -> float:
        """Seconds until the next failure."""
        if self.distribution == "exponential":
            return mean_s * float(generator.standard_exponential())
        return mean_s / math.gamma(1 + 1 / self.shape) * float(generator.weibull(self.shape))

    def draw_down_s(self, mean_s: float, generator: np.random.Generator) -> float:
        """Seconds of repair."""
        if self.repair == "fixed" or mean_s == 0:
            return mean_s
        if self.repair == "exponential":
            return mean_s * float(generator.standard_exponential())
        sigma = self.repair_sigma
        return float(generator.lognormal(math.log(mean_s) - sigma * sigma / 2, sigma))


@dataclass(slots=True)
class _Source:
    """A renewal process that takes ``nodes`` (places in the network) down together."""

    nodes: tuple[int, ...]
    up_mean_s: float
    down_mean_s: float
    generator: np.random.Generator
    failed: bool = False


class NodeFailures:
    """The failures of all nodes of a network whose domain has an MTBF.

    Steps: 1. every node and every rack draws the time of its first failure; 2. the earliest change of all is taken, its
    end or next failure drawn and put back; 3. a node is down while its own or its rack's repair lasts, and only a change
    of that is told. The law of a rack goes on while its nodes are down for another reason, and the reverse.
    """

    def __init__(self, network: Network, seed: int | np.random.SeedSequence, model: FailureModel | None = None) -> None:
        self._model = model or FailureModel()
        self._seed = np.random.SeedSequence(seed) if isinstance(seed, int) else seed
        self._network = network
        for domain in network.domains:
            if not math.isnan(domain.mtbf_node_s) and not domain.mtbf_node_s > 0:
                raise InvalidArgumentError(f"mtbf_node_s: {domain.mtbf_node_s} of domain {domain.domain_id!r}")
            if not 0 <= domain.mttr_node_s < math.inf:
                raise InvalidArgumentError(f"mttr_node_s: {domain.mttr_node_s} of domain {domain.domain_id!r}")

    def events(self, until_s: float = math.inf) -> Iterator[NodeEvent]:
        """Every change up to and with ``until_s`` in order of time (then of the network); endless without it.

        Each call begins the same schedule anew.
        """
        model = self._model
        sources = self._sources()
        ids = [node.node_id for node in self._network.nodes]
        reasons = [0] * len(ids)
        pending = [(model.draw_up_s(source.up_mean_s, source.generator), place) for place, source in enumerate(sources)]
        heapq.heapify(pending)
        while pending and pending[0][0] <= until_s:
            time_s, place = pending[0]
            source = sources[place]
            source.failed = not source.failed
            if source.failed:
                after_s = model.draw_down_s(source.down_mean_s, source.generator)
            else:
                after_s = model.draw_up_s(source.up_mean_s, source.generator)
            heapq.heapreplace(pending, (time_s + after_s, place))
            for node in source.nodes:
                reasons[node] += 1 if source.failed else -1
                if source.failed and reasons[node] == 1:
                    yield NodeEvent(time_s, ids[node], "down")
                elif not source.failed and reasons[node] == 0:
                    yield NodeEvent(time_s, ids[node], "up")

    def _sources(self) -> list[_Source]:
        share = self._model.rack_share
        # A copy: spawning from the caller's own sequence would change what it gives next.
        seed = np.random.SeedSequence(self._seed.entropy, spawn_key=self._seed.spawn_key)
        node_seeds, rack_seeds = seed.spawn(2)
        nodes: list[_Source] = []
        racks: list[_Source] = []
        place = 0
        for domain in self._network.domains:
            members: dict[str, list[int]] = {}
            fails = not math.isnan(domain.mtbf_node_s) and not math.isinf(domain.mtbf_node_s)
            for node in domain.nodes:
                generator = np.random.default_rng(node_seeds.spawn(1)[0])
                own_share = 1 - share if node.rack else 1.0
                if fails and own_share > 0:
                    mean_s = domain.mtbf_node_s / own_share
                    nodes.append(_Source((place,), mean_s, domain.mttr_node_s, generator))
                if node.rack:
                    members.setdefault(node.rack, []).append(place)
                place += 1
            for rack in members.values():
                generator = np.random.default_rng(rack_seeds.spawn(1)[0])
                if fails and share > 0:
                    racks.append(_Source(tuple(rack), domain.mtbf_node_s / share, domain.mttr_node_s, generator))
        return nodes + racks


def spot_events(domains: Sequence[SimDomain], start_s: float = 0.0) -> Iterator[SpotEvent]:
    """The changes of the spot series of several domains in order of time (then of domain); the series begin at ``start_s``.

    A series without change is told once; equal neighbours are told as one. Before its first entry, all is available.
    Errors: times that do not rise, numbers below 0, naming domain and place.
    """
    series: list[list[tuple[float, int, int]]] = []
    for place, domain in enumerate(domains):
        told: list[tuple[float, int, int]] = []
        last_s, last = -math.inf, None
        for entry, (time_s, available) in enumerate(domain.spot):
            if not (last_s < time_s < math.inf) or available < 0:
                raise InvalidArgumentError(
                    f"spot[{entry}] of domain {domain.domain_id!r}: ({time_s}, {available}) must rise in time, be 0 or more"
                )
            if available != last:
                told.append((time_s, place, available))
            last_s, last = time_s, available
        series.append(told)
    for time_s, place, available in heapq.merge(*series):
        yield SpotEvent(start_s + time_s, domains[place].domain_id, available)


def reclaimed(
    holdings: Sequence[Holding],
    available: float,
    rule: Reclaim = "newest",
    generator: np.random.Generator | None = None,
) -> list[str]:
    """The jobs that lose their accelerators when only ``available`` are left, in the order in which they are hit.

    Free accelerators go first. Then jobs, whole (a job that loses one of its accelerators stops), until the rest fits:
    the newest allocation first (then the greater ``job_id``), or in random order from ``generator``.
    """
    if not available >= 0:
        raise InvalidArgumentError(f"available: {available} is below 0")
    if rule == "newest":
        order = sorted(holdings, key=lambda held: (held.allocated_at_s, held.job_id), reverse=True)
    elif rule == "random":
        if generator is None:
            raise InvalidArgumentError("generator: the rule 'random' needs one")
        ranked = sorted(holdings, key=lambda held: held.job_id)
        order = [ranked[place] for place in generator.permutation(len(ranked))]
    else:
        raise InvalidArgumentError(f"rule: no {rule!r}")
    held = math.fsum(holding.accelerators for holding in holdings)
    victims: list[str] = []
    for holding in order:
        if held <= available + 1e-9:
            break
        if holding.accelerators > 0:
            victims.append(holding.job_id)
            held -= holding.accelerators
    return victims
