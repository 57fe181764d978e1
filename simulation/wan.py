"""What moves between domains, and how fast: transfers and steady flows that share directed links.

The model is fluid: every link gives its capacity to the transfers and flows on it by max-min fairness (progressive
filling; Bertsekas and Gallager, Data Networks, 2nd ed., 6.5.2), each transfer wanting all it can get, each flow no more
than it demands. A domain may also have one cap on everything that leaves it. A pair of domains is one hop.

All transfers on a link have the same rate at every instant, so the link keeps one number, the bytes that each of them has
been given since the link was last idle (the virtual time of generalised processor sharing; Parekh and Gallager 1993). A
transfer ends when that number has grown by its size; an event costs O(log transfers + links of the domain + flows).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from meridian.errors import InvalidArgumentError
from simulation.checks import at_least_zero
from simulation.model import Network, SimLink

GIB = 2**30
Pair = tuple[str, str]


@dataclass(slots=True)
class _Transfer:
    """``until_bytes`` is the link's served bytes per transfer at which this one has all of its ``size_bytes``."""

    link: _Link
    size_bytes: int
    until_bytes: float
    sent: bool = False


@dataclass(slots=True)
class _Flow:
    """``moved_bytes`` up to ``since_s``, where its rate last changed."""

    link: _Link
    demanded: float
    since_s: float
    moved_bytes: float = 0.0


@dataclass(slots=True)
class _Link:
    """``level`` is the rate of every transfer, and the most that a flow gets; ``served`` is its integral to ``since_s``."""

    spec: SimLink
    capacity: float
    level: float = math.inf
    own_level: float = math.inf
    served: float = 0.0
    since_s: float = 0.0
    epoch: int = 0
    settled_bytes: int = 0
    sending: dict[str, _Transfer] = field(default_factory=dict)
    order: list[tuple[float, int, str]] = field(default_factory=list)
    flows: dict[str, _Flow] = field(default_factory=dict)
    demands: list[tuple[float, str]] = field(default_factory=list)

    def served_at(self, now_s: float) -> float:
        """Bytes given to each transfer since the link was idle."""
        return self.served + self.level * (now_s - self.since_s) if self.sending else 0.0

    def used(self) -> float:
        """Bytes per second taken by everything on the link if the domain had no cap."""
        level = self.own_level
        return sum(min(demand, level) for demand, _ in self.demands) + (
            len(self.sending) * level if self.sending else 0.0
        )


def water_level(capacity: float, wants: Iterable[tuple[float, int]], unbounded: int = 0) -> float:
    """The max-min fair level: everybody gets the lesser of what they want and the level.

    ``wants`` are (wanted, how many want so much) in rising order, in the unit of ``capacity``; ``unbounded`` more want all
    they can get. Infinite when all wants are met.
    """
    pending = list(wants)
    left = capacity
    count = unbounded + sum(number for _, number in pending)
    for wanted, number in pending:
        if wanted * count > left:
            break
        left -= wanted * number
        count -= number
    return max(left, 0.0) / count if count else math.inf


class Wan:
    """Transfers and flows between the domains of a network. Times in seconds, never going back; sizes in whole bytes.

    Every call brings the network to its ``now_s`` first, ending what ends by then at its own exact instant; so the outcome
    does not depend on how often `advance` is called. The round trip of a link passes after the last byte has left (the
    request's half and the last byte's half together), without using capacity.

    Money is integer arithmetic: the whole bytes of a pair in total, times the price per GiB, divided by 2^30 and rounded
    to the nearest micro-unit, halves up, once per pair and not per transfer. A cancelled transfer pays for the whole bytes
    that had left.

    ``egress_bytes_per_s`` caps all that leaves a domain; a domain not in it has no cap.
    """

    def __init__(self, network: Network, egress_bytes_per_s: Mapping[str, float] | None = None) -> None:
        domains = {domain.domain_id for domain in network.domains}
        self._links: dict[Pair, _Link] = {}
        self._leaving: dict[str, list[_Link]] = {}
        for index, spec in enumerate(network.links):
            pair = (spec.from_domain, spec.to_domain)
            if not domains.issuperset(pair):
                raise InvalidArgumentError(f"links[{index}]: {pair} names a domain that the network does not have")
            if pair in self._links or pair[0] == pair[1]:
                raise InvalidArgumentError(f"links[{index}]: {pair} is given twice, or leads nowhere")
            at_least_zero(f"links[{index}].rtt_s", spec.rtt_s)
            at_least_zero(f"links[{index}].price_micro_units_per_gib", spec.price_micro_units_per_gib)
            at_least_zero(f"links[{index}].bandwidth_bytes_per_s", spec.bandwidth_bytes_per_s)
            link = _Link(spec, spec.bandwidth_bytes_per_s)
            self._links[pair] = link
            self._leaving.setdefault(pair[0], []).append(link)
        self._egress = dict(egress_bytes_per_s or {})
        for domain, cap in self._egress.items():
            if domain not in domains:
                raise InvalidArgumentError(f"egress_bytes_per_s: no domain {domain!r}")
            at_least_zero(f"egress_bytes_per_s[{domain!r}]", cap)
        self._transfers: dict[str, _Transfer] = {}
        self._flows: dict[str, _Flow] = {}
        self._ends: list[tuple[float, int, int, _Link]] = []
        self._arrivals: list[tuple[float, int, str]] = []
        self._finished: list[str] = []
        self._changed: set[str] = set()
        self._started = 0
        self._pushed = 0
        self._now_s = 0.0

    def start(self, transfer_id: str, from_domain: str, to_domain: str, size_bytes: float, now_s: float) -> None:
        """Begin to move ``size_bytes`` (rounded to whole bytes). Errors: a known id, no such link, a size below 0."""
        link = self._link(from_domain, to_domain)
        if transfer_id in self._transfers or transfer_id in self._flows:
            raise InvalidArgumentError(f"transfer_id: {transfer_id!r} is moving already")
        at_least_zero("size_bytes", size_bytes)
        self._run(now_s)
        size = round(size_bytes)
        if not link.sending:
            link.served, link.since_s = 0.0, now_s
            until = float(size)
        else:
            until = link.served_at(now_s) + size
        transfer = _Transfer(link, size, until)
        self._transfers[transfer_id] = link.sending[transfer_id] = transfer
        self._started += 1
        heapq.heappush(link.order, (until, self._started, transfer_id))
        self._share(link, now_s)

    def flow(self, flow_id: str, from_domain: str, to_domain: str, bytes_per_s: float, now_s: float) -> float:
        """Begin a steady flow that demands ``bytes_per_s``, or change the demand of a running one; the granted rate.

        The grant changes as others come and go: see `rate` and `take_changed_flows`. It ends by `cancel`.
        """
        link = self._link(from_domain, to_domain)
        running = self._flows.get(flow_id)
        if flow_id in self._transfers or (running is not None and running.link is not link):
            raise InvalidArgumentError(f"flow_id: {flow_id!r} is in use for another pair or a transfer")
        at_least_zero("bytes_per_s", bytes_per_s)
        self._run(now_s)
        if running is None:
            running = self._flows[flow_id] = link.flows[flow_id] = _Flow(link, bytes_per_s, now_s)
        else:
            _settle(running, now_s)
            link.demands.remove((running.demanded, flow_id))
            running.demanded = bytes_per_s
        insort(link.demands, (bytes_per_s, flow_id))
        self._share(link, now_s)
        self._changed.discard(flow_id)
        return self.rate(flow_id)

    def cancel(self, moving_id: str, now_s: float) -> int:
        """End a transfer or a flow; the whole bytes that had left. A transfer whose end was not told yet is not told."""
        self._run(now_s)
        flow = self._flows.pop(moving_id, None)
        if flow is not None:
            _settle(flow, now_s)
            moved = math.floor(flow.moved_bytes)
            del flow.link.flows[moving_id]
            flow.link.demands.remove((flow.demanded, moving_id))
            self._changed.discard(moving_id)
            flow.link.settled_bytes += moved
            self._share(flow.link, now_s)
            return moved
        transfer = self._transfers.pop(moving_id, None)
        if transfer is None:
            raise InvalidArgumentError(f"moving_id: nothing called {moving_id!r} is moving")
        if transfer.sent:
            self._finished = [finished for finished in self._finished if finished != moving_id]
            self._arrivals = [arrival for arrival in self._arrivals if arrival[2] != moving_id]
            heapq.heapify(self._arrivals)
            return transfer.size_bytes
        link = transfer.link
        moved = _moved(transfer, now_s)
        link.settled_bytes += moved
        link.served, link.since_s = link.served_at(now_s), now_s
        del link.sending[moving_id]
        link.order = [entry for entry in link.order if entry[2] != moving_id]
        heapq.heapify(link.order)
        self._share(link, now_s)
        return moved

    def advance(self, now_s: float) -> list[str]:
        """Go to ``now_s``; the transfers that arrived since the last call, in order of arrival (then of start)."""
        self._run(now_s)
        finished, self._finished = self._finished, []
        for transfer_id in finished:
            del self._transfers[transfer_id]
        return finished

    def next_finish(self) -> tuple[float, str] | None:
        """When, and at which transfer, something happens by itself next; None when nothing will.

        That is an arrival, or, on a link with a round-trip time, already the instant at which a last byte leaves: the
        rates of the others change then. `advance` to an instant of the second kind returns no id.
        """
        if self._finished:
            return self._now_s, self._finished[0]
        end = self._next_end()
        if self._arrivals and (end is None or self._arrivals[0][0] <= end[0]):
            return self._arrivals[0][0], self._arrivals[0][2]
        return None if end is None else (end[0], end[1].order[0][2])

    def rate(self, moving_id: str) -> float:
        """Bytes per second granted at present; 0 for a transfer whose last byte has left."""
        flow = self._flows.get(moving_id)
        if flow is not None:
            return min(flow.demanded, flow.link.level)
        transfer = self._transfers.get(moving_id)
        if transfer is None:
            raise InvalidArgumentError(f"moving_id: nothing called {moving_id!r} is moving")
        return 0.0 if transfer.sent else transfer.link.level

    def take_changed_flows(self) -> set[str]:
        """The flows whose granted rate may have changed since the last call, other than by their own `flow` call."""
        changed, self._changed = self._changed, set()
        return changed

    def set_bandwidth(self, from_domain: str, to_domain: str, bytes_per_s: float, now_s: float) -> None:
        """The capacity of a link from ``now_s`` on; 0 stops it."""
        link = self._link(from_domain, to_domain)
        at_least_zero("bytes_per_s", bytes_per_s)
        self._run(now_s)
        link.capacity = bytes_per_s
        self._share(link, now_s)

    def bandwidth(self, from_domain: str, to_domain: str) -> float:
        """The present capacity of a link, bytes per second."""
        return self._link(from_domain, to_domain).capacity

    def transfer_time_s(self, from_domain: str, to_domain: str, size_bytes: float) -> float:
        """Seconds that a transfer alone would take now: the round trip, and the size at the full rate. 0 within a domain."""
        if from_domain == to_domain:
            return 0.0
        link = self._link(from_domain, to_domain)
        if size_bytes <= 0:
            return link.spec.rtt_s
        speed = min(link.capacity, self._egress.get(from_domain, math.inf))
        return link.spec.rtt_s + size_bytes / speed if speed > 0 else math.inf

    def moved_bytes(self) -> dict[Pair, int]:
        """Whole bytes that have left by the time of the last call, by pair, with those still moving."""
        return {pair: self._pair_bytes(link) for pair, link in self._links.items()}

    def money_micro_units(self) -> dict[Pair, int]:
        """What `moved_bytes` cost, by pair."""
        return {
            pair: (self._pair_bytes(link) * link.spec.price_micro_units_per_gib + GIB // 2) // GIB
            for pair, link in self._links.items()
        }

    def _pair_bytes(self, link: _Link) -> int:
        sending = sum(_moved(transfer, self._now_s) for transfer in link.sending.values())
        flowing = sum(
            math.floor(flow.moved_bytes + min(flow.demanded, link.level) * (self._now_s - flow.since_s))
            for flow in link.flows.values()
        )
        return link.settled_bytes + sending + flowing

    def _link(self, from_domain: str, to_domain: str) -> _Link:
        link = self._links.get((from_domain, to_domain))
        if link is None:
            raise InvalidArgumentError(f"from_domain, to_domain: no link from {from_domain!r} to {to_domain!r}")
        return link

    def _run(self, now_s: float) -> None:
        """End everything that ends up to ``now_s``, each at its own instant."""
        if not now_s >= self._now_s or math.isinf(now_s):
            raise InvalidArgumentError(f"now_s: {now_s} is before {self._now_s}, or no time at all")
        while (end := self._next_end()) is not None and end[0] <= now_s:
            at_s, link = end
            until, started, transfer_id = heapq.heappop(link.order)
            transfer = link.sending.pop(transfer_id)
            transfer.sent = True
            link.settled_bytes += transfer.size_bytes
            link.served, link.since_s = until, at_s
            heapq.heappush(self._arrivals, (at_s + link.spec.rtt_s, started, transfer_id))
            self._share(link, at_s)
        self._now_s = now_s
        while self._arrivals and self._arrivals[0][0] <= now_s:
            self._finished.append(heapq.heappop(self._arrivals)[2])

    def _next_end(self) -> tuple[float, _Link] | None:
        while self._ends:
            at_s, _, epoch, link = self._ends[0]
            if epoch == link.epoch:
                return at_s, link
            heapq.heappop(self._ends)
        return None

    def _share(self, link: _Link, now_s: float) -> None:
        """Progressive filling after a change on ``link``.

        1. The level of the link alone. 2. If its domain has a cap that all its links together exceed, one level for the
        domain, below which each link's own still holds. 3. On every link whose level changed: settle at the old one,
        go on with the new one, and foretell its next end.
        """
        link.own_level = water_level(link.capacity, ((demand, 1) for demand, _ in link.demands), len(link.sending))
        domain = link.spec.from_domain
        cap = self._egress.get(domain)
        if cap is None:
            self._retune(link, link.own_level, now_s)
            return
        links = self._leaving[domain]
        shared = math.inf
        if sum(each.used() for each in links) > cap:
            shared = water_level(cap, sorted(want for each in links for want in _wants(each)))
        for each in links:
            level = min(each.own_level, shared)
            if each is link or level != each.level:
                self._retune(each, level, now_s)

    def _retune(self, link: _Link, level: float, now_s: float) -> None:
        if level != link.level:
            for _, flow_id in link.demands[bisect_right(link.demands, min(level, link.level), key=lambda d: d[0]) :]:
                _settle(link.flows[flow_id], now_s)
                self._changed.add(flow_id)
            if link.sending:
                if now_s > link.since_s:
                    link.served += link.level * (now_s - link.since_s)
                link.since_s = now_s
            link.level = level
        link.epoch += 1
        if link.order and level > 0:
            end_s = link.since_s + (link.order[0][0] - link.served) / level
            self._pushed += 1
            heapq.heappush(self._ends, (max(end_s, now_s), self._pushed, link.epoch, link))
            if len(self._ends) > 64 + 4 * len(self._links):
                self._ends = [foretold for foretold in self._ends if foretold[2] == foretold[3].epoch]
                heapq.heapify(self._ends)


def _settle(flow: _Flow, now_s: float) -> None:
    if now_s > flow.since_s:
        flow.moved_bytes += min(flow.demanded, flow.link.level) * (now_s - flow.since_s)
        flow.since_s = now_s


def _moved(transfer: _Transfer, now_s: float) -> int:
    """Whole bytes of a transfer still sending; a shortfall of rounding (1 in 10^9) is not taken for a missing byte."""
    left = transfer.until_bytes - transfer.link.served_at(now_s)
    return min(max(math.floor(transfer.size_bytes - left + 1e-9 * transfer.size_bytes), 0), transfer.size_bytes)


def _wants(link: _Link) -> list[tuple[float, int]]:
    wants = [(min(demand, link.own_level), 1) for demand, _ in link.demands]
    if link.sending:
        wants.append((link.own_level, len(link.sending)))
    return wants
