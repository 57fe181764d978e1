"""Heartbeats in virtual time: nodes beat to their agent over one lossy path, the agent sends summaries over another.

Feeds any detector of the shape of `services.failover.detector.Detector`, so that detectors are compared on the same beats.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from services.failover.beliefs import Beat, Summary

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
Action = Callable[[float], None]
At = Callable[[float, Action], None]
Period = tuple[float, float]


class Listener(Protocol[T_co]):
    """What is fed: every summary that arrives, and a tick ten times a second."""

    def observe(self, summary: Summary, now_s: float) -> bool:
        """Take a summary."""
        ...

    def tick(self, now_s: float) -> Iterable[T_co]:
        """What changed."""
        ...


@dataclass(frozen=True, slots=True)
class Path:
    """A path that delays (fixed + exponential), loses at random, and in bursts loses everything. It keeps the order."""

    delay_s: float = 0.03
    jitter_s: float = 0.02
    loss: float = 0.0
    # Mean time between bursts and their mean length; 0: none.
    burst_every_s: float = 0.0
    burst_s: float = 0.0


@dataclass(slots=True)
class SimulatedDomain:
    """``outages``: when each node is dead (it comes back as its next incarnation); ``partitions``: when no summary passes."""

    domain_id: str
    node_ids: tuple[str, ...]
    to_agent: Path
    to_failover: Path
    interval_s: float = 0.2
    lease_s: float = 10.0
    outages: dict[str, list[Period]] = field(default_factory=dict)
    partitions: list[Period] = field(default_factory=list)
    # The agent sees that a dead node's process is gone (kill -9 on a machine that stays up), and says so.
    sees_exits: bool = False


class _Channel:
    def __init__(self, path: Path, chance: random.Random) -> None:
        self._path = path
        self._chance = chance
        self._last_s = 0.0
        self._burst: Period = (0.0, -1.0)

    def arrival_s(self, sent_s: float) -> float | None:
        """When something sent at ``sent_s`` arrives; None when it is lost."""
        path = self._path
        while path.burst_every_s > 0 and sent_s > self._burst[1]:
            start_s = max(self._burst[1], 0.0) + self._chance.expovariate(1 / path.burst_every_s)
            self._burst = (start_s, start_s + self._chance.expovariate(1 / path.burst_s))
        lost = self._chance.random() < path.loss
        if lost or self._burst[0] <= sent_s <= self._burst[1]:
            return None
        delay_s = path.delay_s + (self._chance.expovariate(1 / path.jitter_s) if path.jitter_s > 0 else 0.0)
        self._last_s = max(self._last_s, sent_s + delay_s)
        return self._last_s


def simulate(
    domains: Iterable[SimulatedDomain], listener: Listener[T], end_s: float, *, seed: int = 1, tick_s: float = 0.1
) -> list[tuple[float, T]]:
    """Run from 0 to ``end_s`` seconds; returns what the listener's ticks gave, with its times."""
    events: list[tuple[float, int, Action]] = []
    count = 0
    found: list[tuple[float, T]] = []

    def at(time_s: float, action: Action) -> None:
        nonlocal count
        count += 1
        heapq.heappush(events, (time_s, count, action))

    def tick(now_s: float) -> None:
        found.extend((now_s, item) for item in listener.tick(now_s))
        at(now_s + tick_s, tick)

    for domain in domains:
        _start(domain, at, listener, random.Random(f"{seed}/{domain.domain_id}"))
    at(0.0, tick)
    while events and events[0][0] <= end_s:
        now_s, _, action = heapq.heappop(events)
        action(now_s)
    return found


def _within(periods: Iterable[Period], at_s: float) -> bool:
    return any(start_s <= at_s < end_s for start_s, end_s in periods)


def _start(domain: SimulatedDomain, at: At, listener: Listener[T], chance: random.Random) -> None:
    uplink = _Channel(domain.to_failover, random.Random(chance.random()))
    # Node -> (heard at, incarnation), as its agent knows it.
    heard: dict[str, tuple[float, int]] = dict.fromkeys(domain.node_ids, (0.0, 1))
    sequence = 0

    def start_node(node_id: str) -> None:
        channel = _Channel(domain.to_agent, random.Random(chance.random()))
        outages = domain.outages.get(node_id, [])

        def beat(now_s: float) -> None:
            at(now_s + domain.interval_s, beat)
            if _within(outages, now_s):
                return
            incarnation = 1 + sum(end_s <= now_s for _, end_s in outages)
            arrival_s = channel.arrival_s(now_s)
            if arrival_s is not None:
                at(arrival_s, lambda arrived_s: heard.__setitem__(node_id, (arrived_s, incarnation)))

        at(chance.random() * domain.interval_s, beat)

    def send(now_s: float) -> None:
        nonlocal sequence
        at(now_s + domain.interval_s, send)
        sequence += 1
        arrival_s = None if _within(domain.partitions, now_s) else uplink.arrival_s(now_s)
        if arrival_s is None:
            return
        beats = tuple(
            Beat(
                node_id,
                heard[node_id][1],
                now_s - heard[node_id][0],
                exited=domain.sees_exits and _within(domain.outages.get(node_id, ()), now_s),
            )
            for node_id in domain.node_ids
        )
        summary = Summary(domain.domain_id, "agent", 1, sequence, now_s, domain.interval_s, domain.lease_s, beats)
        at(arrival_s, lambda arrived_s: _arrive(listener, summary, arrived_s))

    for node_id in domain.node_ids:
        start_node(node_id)
    at(chance.random() * domain.interval_s, send)


def _arrive(listener: Listener[T], summary: Summary, now_s: float) -> None:
    listener.observe(summary, now_s)
