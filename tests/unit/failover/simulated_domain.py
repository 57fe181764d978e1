"""A domain in virtual time: nodes beat to an agent over one lossy path, the agent sends summaries over another."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from services.failover.detector import Beat, Detector, Summary, Transition


@dataclass(frozen=True, slots=True)
class Path:
    """A path that delays, loses and, in bursts, blocks what travels on it. Delivery keeps the order, as TCP does."""

    delay_s: float = 0.03
    jitter_s: float = 0.02
    loss: float = 0.0
    # Mean time between bursts and mean length of a burst, in which everything is lost; 0: no bursts.
    burst_every_s: float = 0.0
    burst_s: float = 0.0


@dataclass(slots=True)
class _Channel:
    path: Path
    random: random.Random
    burst_from_s: float = 0.0
    burst_to_s: float = -1.0
    last_s: float = 0.0

    def __post_init__(self) -> None:
        self._plan_burst(0.0)

    def _plan_burst(self, after_s: float) -> None:
        if self.path.burst_every_s > 0:
            self.burst_from_s = after_s + self.random.expovariate(1 / self.path.burst_every_s)
            self.burst_to_s = self.burst_from_s + self.random.expovariate(1 / self.path.burst_s)

    def arrival_s(self, sent_s: float) -> float | None:
        """When something sent at ``sent_s`` arrives; None when it is lost."""
        while self.path.burst_every_s > 0 and sent_s > self.burst_to_s:
            self._plan_burst(self.burst_to_s)
        lost = self.random.random() < self.path.loss
        if lost or (self.path.burst_every_s > 0 and self.burst_from_s <= sent_s <= self.burst_to_s):
            return None
        delay_s = self.path.delay_s + self.random.expovariate(1 / self.path.jitter_s)
        self.last_s = max(self.last_s, sent_s + delay_s)
        return self.last_s


@dataclass(slots=True)
class SimulatedDomain:
    """``deaths``: node -> time from which it is silent. ``agent_dies_s``: when the agent falls silent."""

    domain_id: str
    node_ids: tuple[str, ...]
    seed: int
    to_agent: Path
    to_failover: Path
    interval_s: float = 0.2
    agent_interval_s: float = 0.2
    lease_s: float = 10.0
    deaths: dict[str, float] = field(default_factory=dict)
    agent_dies_s: float = float("inf")


def simulate(
    domains: list[SimulatedDomain], detector: Detector, end_s: float, tick_s: float = 0.1
) -> list[tuple[float, Transition]]:
    """Run to ``end_s``; returns the transitions with their times. The detector must have been made for time 0."""
    events: list[tuple[float, int, Callable[[float], None]]] = []
    number = 0
    found: list[tuple[float, Transition]] = []

    def at(time_s: float, action: Callable[[float], None]) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (time_s, number, action))

    for domain in domains:
        _start(domain, at, detector)

    def tick(now_s: float) -> None:
        found.extend((now_s, transition) for transition in detector.tick(now_s))
        at(now_s + tick_s, tick)

    at(0.0, tick)
    while events and events[0][0] <= end_s:
        now_s, _, action = heapq.heappop(events)
        action(now_s)
    return found


def _start(domain: SimulatedDomain, at: Callable[[float, Callable[[float], None]], None], detector: Detector) -> None:
    chance = random.Random(f"{domain.seed}/{domain.domain_id}")
    uplink = _Channel(domain.to_failover, random.Random(chance.random()))
    heard_s = dict.fromkeys(domain.node_ids, 0.0)
    sequence = 0

    def start_node(node_id: str) -> None:
        channel = _Channel(domain.to_agent, random.Random(chance.random()))

        def heard(now_s: float) -> None:
            heard_s[node_id] = now_s

        def beat(now_s: float) -> None:
            if now_s >= domain.deaths.get(node_id, float("inf")):
                return
            arrival_s = channel.arrival_s(now_s)
            if arrival_s is not None:
                at(arrival_s, heard)
            at(now_s + domain.interval_s, beat)

        at(chance.random() * domain.interval_s, beat)

    def send(now_s: float) -> None:
        nonlocal sequence
        if now_s >= domain.agent_dies_s:
            return
        sequence += 1
        beats = tuple(Beat(node_id, 1, now_s - heard_s[node_id]) for node_id in domain.node_ids)
        summary = Summary(
            domain.domain_id, "agent", 1, sequence, now_s, domain.agent_interval_s, domain.lease_s, beats
        )
        arrival_s = uplink.arrival_s(now_s)
        if arrival_s is not None:
            at(arrival_s, lambda arrived_s: _observe(detector, summary, arrived_s))
        at(now_s + domain.agent_interval_s, send)

    for node_id in domain.node_ids:
        start_node(node_id)
    at(chance.random() * domain.agent_interval_s, send)


def _observe(detector: Detector, summary: Summary, now_s: float) -> None:
    detector.observe(summary, now_s)
