"""How old the graph is and how soon a fault is seen in it, and what it costs as the network grows.

`live`: five domains of 200 nodes report through the real broker to telemetry and graph; faults are put into what the emulated
agents read. *Age* is now less the time of the oldest reading that the newest published update of a domain relies on, sampled
ten times a second. *Recognition* is from the fault to the arrival of the node's new state at a consumer. Twice in one run: as agents
and graph ship (a report every 3 s, changed vital signs within half a second), and with a report every 5 s as the
baseline. Failover's word is a fault of its own kind.

`replay`: observations of 50 domains are handed to the intake of the graph with a real database, without a broker: processor time of
one observation of every domain, at 1,000, 10,000 and 100,000 nodes, with the exponent by which it grows.

`model`: processor time of one answer of the model of node states at 200 and 2,000 nodes.

    python -m bench.graph [--seconds 40] [--replay-nodes 20 200 2000] [--domains 50] [--played 50] [--json OUT]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from bench.result import Row, Setting, command_line, print_table, write
from bench.servers import Servers, cpu_s, servers, service
from bench.telemetry import growth_exponent, producing, report, send
from learning.node_state.parity import random_graph
from meridian.catalogue import catalogue
from meridian.clock import SystemClock
from meridian.codec import Envelope, Record, decode, encode
from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.graph.v1.graph_pb2 import (
    NODE_STATE_DEGRADED,
    NODE_STATE_FAILING,
    NODE_STATE_UNREACHABLE,
    GraphUpdated,
    NodeStateChanged,
)
from meridian.contracts.resource.v1 import resource_pb2 as pb
from meridian.contracts.telemetry.v1 import telemetry_pb2
from meridian.database import Database
from meridian.ids import new_id
from meridian.outbox import Outbox
from services.graph.app import shipped_model
from services.graph.events import GraphIntake
from services.graph.measures import GraphMeasures
from services.graph.publication import Publication
from services.graph.recognition.features import QUANTITIES, WINDOW, Floats
from services.graph.recognition.neighbourhood import Neighbourhood
from services.graph.recognition.recogniser import Recogniser
from services.graph.settings import GraphSettings

DOMAINS, NODES = 5, 200
UPDATES_TOPIC = catalogue().event_of(GraphUpdated).topic
# Reporting interval of the agents, how often they look at vital signs (0: never), and the least time between updates of
# metrics alone, seconds: as agent and graph ship, and as they did before.
PACES = {"shipped": (3.0, 0.5, 2.0), "every 5 s": (5.0, 0.0, 5.0)}
FAULT_EVERY_S, FAULT_LASTS_S, PATIENCE_S = 0.5, 12.0, 30.0


@dataclass(frozen=True, slots=True)
class Fault:
    """What the agent reads from then on, and the state that is right."""

    name: str
    state: int
    change: Callable[[pb.Reading], None] | None = None


def _set(metric: str, value: float) -> Callable[[pb.Reading], None]:
    def change(reading: pb.Reading) -> None:
        if reading.metric == metric:
            reading.value = value

    return change


FAULTS = (
    Fault("95 Cel", NODE_STATE_DEGRADED, _set("hw.temperature", 95.0)),
    Fault("health 0", NODE_STATE_FAILING, _set("cpn.health", 0.0)),
    Fault("health 0.5", NODE_STATE_DEGRADED, _set("cpn.health", 0.5)),
    Fault("impossible value", NODE_STATE_DEGRADED, _set("hw.gpu.utilization", 1.7)),
    Fault("suspected by failover", NODE_STATE_UNREACHABLE),
)


@dataclass(slots=True)
class Published:
    """What a consumer of the graph has seen."""

    oldest_s: dict[str, float] = field(default_factory=dict)
    # Node -> states with the times at which they arrived.
    states: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    async def follow(self, bootstrap_servers: str) -> None:
        """Read until cancelled."""
        consumer = AIOKafkaConsumer(
            UPDATES_TOPIC.name, bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", fetch_max_wait_ms=50
        )
        await consumer.start()
        try:
            async for record in consumer:
                event = decode(record.value, record.headers).data
                if isinstance(event, GraphUpdated):
                    self.oldest_s[event.domain_id] = event.oldest_reading_at.ToNanoseconds() / 1e9
                elif isinstance(event, NodeStateChanged):
                    self.states.setdefault(event.node_id, []).append((event.state, time.time()))
        finally:
            await consumer.stop()


class EmulatedAgents:
    """One task per domain: all of its nodes at an interval, and at once those whose vital signs changed, as the agent does it."""

    def __init__(self, producer: AIOKafkaProducer, prefix: str, interval_s: float, watch_s: float) -> None:
        self.domains = [f"{prefix}{number}" for number in range(DOMAINS)]
        self.faulty: dict[str, Fault] = {}
        self._producer = producer
        self._interval_s = interval_s
        self._watch_s = watch_s

    async def send_word(self, word: Message) -> None:
        """What failover publishes."""
        await send(self._producer, [_record(word)])

    async def run(self, domain_id: str, place: int) -> None:
        """Until cancelled; domains report in turns."""
        await asyncio.sleep(self._interval_s * place / DOMAINS)
        number, due_s, told = 0, time.monotonic(), self._faults_of(domain_id)
        while True:
            told = self._faults_of(domain_id)
            await send(self._producer, [_record(self._report(domain_id, number))])
            number += 1
            due_s = max(due_s + self._interval_s, time.monotonic())
            while (left_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(min(left_s, self._watch_s or left_s))
                present = self._faults_of(domain_id)
                if self._watch_s and present != told:
                    changed = {node_id for node_id in present | told if present.get(node_id) is not told.get(node_id)}
                    told = present
                    await send(self._producer, [_record(self._report(domain_id, number, changed))])

    def _faults_of(self, domain_id: str) -> dict[str, Fault]:
        return {
            node_id: fault
            for node_id, fault in self.faulty.items()
            if node_id.startswith(f"{domain_id}-") and fault.change is not None
        }

    def _report(self, domain_id: str, number: int, only: Collection[str] | None = None) -> pb.ResourceReported:
        message = report(domain_id, NODES, number, time.time())
        if only is not None:
            kept = [reading for reading in message.readings if reading.node_id in only]
            del message.readings[:]
            message.readings.extend(kept)
        for reading in message.readings:
            fault = self.faulty.get(reading.node_id)
            if fault is not None and fault.change is not None:
                fault.change(reading)
        return message


def _record(message: Message) -> Record:
    return encode(message, event_id=new_id("bench"), source="/bench", time=datetime.now(UTC))


@dataclass(slots=True)
class Seen:
    """Ages of domains and recognition times by kind of fault, seconds; ``missed`` faults were not seen in `PATIENCE_S`."""

    ages: list[float] = field(default_factory=list)
    recognised: dict[str, list[float]] = field(default_factory=dict)
    missed: int = 0


async def watch(where: Servers, pace: str, seconds: float, seed: int) -> tuple[Seen, dict[str, float]]:
    """Run one pace; the second figures are the shares of a processor that telemetry and graph took."""
    interval_s, watch_s, refresh_s = PACES[pace]
    chance = random.Random(seed)
    seen, published = Seen(), Published()
    prefix = f"{pace.split(maxsplit=1)[0]}-"
    async with (
        service(where, "telemetry") as telemetry,
        service(where, "graph", MERIDIAN_GRAPH_METRIC_REFRESH_S=str(refresh_s)) as graph,
        producing(where.bootstrap_servers) as producer,
    ):
        agents = EmulatedAgents(producer, prefix, interval_s, watch_s)
        tasks = [asyncio.create_task(published.follow(where.bootstrap_servers))]
        tasks += [asyncio.create_task(agents.run(domain_id, place)) for place, domain_id in enumerate(agents.domains)]
        try:
            # Windows of the model fill first: recognition is that of a graph that has been running.
            await asyncio.sleep(4 * interval_s + 2)
            if not set(agents.domains) <= published.oldest_s.keys():
                raise RuntimeError("not every domain appeared in the graph")
            before = cpu_s(telemetry.process), cpu_s(graph.process)
            began_s = time.monotonic()
            waiting: list[asyncio.Task[None]] = []
            sampling = asyncio.create_task(_sample(seen, published, agents.domains))
            while time.monotonic() - began_s < seconds:
                waiting.append(asyncio.create_task(_strike(agents, published, seen, chance)))
                await asyncio.sleep(FAULT_EVERY_S * chance.uniform(0.5, 1.5))
            took_s = time.monotonic() - began_s
            spent = {
                "telemetry": (cpu_s(telemetry.process) - before[0]) / took_s,
                "graph": (cpu_s(graph.process) - before[1]) / took_s,
            }
            await asyncio.gather(*waiting)
            sampling.cancel()
            return seen, spent
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _sample(seen: Seen, published: Published, domains: Sequence[str]) -> None:
    while True:
        now_s = time.time()
        seen.ages += [now_s - published.oldest_s[domain_id] for domain_id in domains]
        await asyncio.sleep(0.1)


async def _strike(agents: EmulatedAgents, published: Published, seen: Seen, chance: random.Random) -> None:
    """One fault on a node that has none, until it was seen and a little longer."""
    domain_id = chance.choice(agents.domains)
    node_id = f"{domain_id}-{chance.randrange(NODES)}"
    fault = chance.choice(FAULTS)
    history = published.states.setdefault(node_id, [])
    if node_id in agents.faulty or (history and history[-1][0] == fault.state):
        return
    agents.faulty[node_id] = fault
    struck_s, known = time.time(), len(history)
    if fault.change is None:
        word = failover_pb2.NodeSuspected(domain_id=domain_id, node_id=node_id, incident_id=node_id, reason="bench")
        word.at.FromNanoseconds(int(struck_s * 1e9))
        await agents.send_word(word)
    while time.time() - struck_s < PATIENCE_S:
        arrived = [at_s for state, at_s in history[known:] if state == fault.state]
        if arrived:
            seen.recognised.setdefault(fault.name, []).append(arrived[0] - struck_s)
            break
        await asyncio.sleep(0.02)
    else:
        seen.missed += 1
    await asyncio.sleep(max(0.0, FAULT_LASTS_S - (time.time() - struck_s)))
    if fault.change is None:
        end = failover_pb2.NodeRecovered(domain_id=domain_id, node_id=node_id, incident_id=node_id)
        end.at.FromNanoseconds(int(time.time() * 1e9))
        await agents.send_word(end)
    agents.faulty.pop(node_id, None)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def measure_live(where: Servers, seconds: float, seed: int, paces: Sequence[str]) -> list[Row]:
    """Rows of the paces."""
    rows = []
    at = f"{DOMAINS} domains x {NODES} nodes"
    for pace in paces:
        seen, shares = await watch(where, pace, seconds, seed)
        baseline = pace != "shipped"
        rows += _figures(f"age of the graph, {pace}", at, seen.ages, baseline)
        everything = [value for values in seen.recognised.values() for value in values]
        rows += _figures(f"recognition, {pace}", at, everything, baseline)
        for name, values in sorted(seen.recognised.items()):
            rows += _figures(f"recognition, {pace}", f"fault={name}", values, baseline)[1:]
        rows.append(Row(f"faults not seen, {pace}", "count", seen.missed, at, n=len(everything), baseline=baseline))
        rows += [
            Row(f"{name}, {pace}", "cpu_share_ratio", share, at, baseline=baseline) for name, share in shares.items()
        ]
    return rows


def _figures(subject: str, at: str, values: Sequence[float], baseline: bool) -> list[Row]:
    if not values:
        return [Row(subject, "p99_s", None, at, n=0, baseline=baseline, reason="nothing was seen")] * 2
    low, high, count = min(values), max(values), len(values)
    return [
        Row(subject, "p50_s", statistics.median(values), at, low, high, count, baseline),
        Row(subject, "p99_s", percentile(values, 0.99), at, low, high, count, baseline),
    ]


# --- replay ----------------------------------------------------------------------------------------------------------


def observation(domain_id: str, nodes: int, number: int, at_s: float) -> telemetry_pb2.ObservationRecorded:
    """What telemetry makes of `report`."""
    message = report(domain_id, nodes, number, at_s)
    found = telemetry_pb2.ObservationRecorded(
        domain_id=domain_id, agent_id="agent", incarnation=1, inventory=message.inventory, readings=message.readings
    )
    found.observed_at.FromNanoseconds(int(at_s * 1e9))
    return found


async def replay(where: Servers, domains: int, nodes: int) -> tuple[float, float]:
    """Processor time in seconds that one more observation of each domain takes: of the graph, of the database."""
    clock = SystemClock()
    database = Database(where.database_url, "graph")
    outbox = Outbox(database, "/bench", clock, new_id)
    recogniser = Recogniser(shipped_model(""), clock, slowest_s=60.0)
    intake = GraphIntake(clock, Publication(GraphSettings(), GraphMeasures(CollectorRegistry()), recogniser))
    own_s = database_s = 0.0
    event_type = catalogue().event_of(telemetry_pb2.ObservationRecorded)
    try:
        for domain in range(domains):
            domain_id = f"r{nodes}-{domain}"
            for number in range(3):
                data = observation(domain_id, nodes, number, time.time())
                envelope = Envelope(new_id("b"), event_type, "/bench", clock.now(), domain_id, data)
                database_before_s = cpu_s(where.database)
                # Looking at the processes of the database takes milliseconds, which are not the graph's.
                own_before_s = time.process_time()
                async with outbox.transaction() as transaction:
                    await intake.handle(transaction, [envelope])
                if number == 2:
                    own_s += time.process_time() - own_before_s
                    database_s += cpu_s(where.database) - database_before_s
    finally:
        await database.close()
    return own_s, database_s


async def measure_replay(where: Servers, domains: int, played: int, sizes: Sequence[int]) -> list[Row]:
    """Rows per size, and the exponent. ``played`` of the domains are replayed: none knows of another, so the rest costs the same."""
    rows, costs = [], []
    for nodes in sizes:
        count = min(domains, played)
        own_s, database_s = (found * domains / count for found in await replay(where, count, nodes))
        costs.append(own_s)
        at = f"{domains} domains x {nodes} nodes"
        each = domains * nodes / 1000
        rows.append(Row("graph, replay", "cpu_per_observed_node_ms", own_s / each, at, n=count))
        rows.append(Row("postgresql, replay", "cpu_per_observed_node_ms", database_s / each, at, n=count))
        rows.append(Row("graph, replay", "cpu_per_round_s", own_s, at, n=count))
    if len(sizes) > 1:
        exponent = growth_exponent([domains * nodes for nodes in sizes], costs)
        rows.append(Row("graph, replay", "cpu_growth_exponent", exponent, "over nodes", n=len(sizes)))
    return rows


# --- the model -------------------------------------------------------------------------------------------------------


def measure_model(repeats: int = 60) -> list[Row]:
    """Processor time of one answer for a domain, on one thread: of the network alone, and with the encoding of the windows."""
    model = shipped_model("")
    if model is None:
        return []
    rows = []
    for nodes, switches, sites in ((200, 40, 10), (2000, 250, 40)):
        inputs, around = random_graph(nodes, switches, sites, seed=1)
        windows = np.random.default_rng(1).random((nodes, WINDOW, QUANTITIES)).astype(np.float32)
        at = f"{nodes} nodes, {switches} switches"

        def network(inputs: Floats = inputs, around: Neighbourhood = around) -> None:
            model.run(inputs, around)

        def whole(windows: Floats = windows, around: Neighbourhood = around) -> None:
            model.answer(windows, around)

        for subject, run in (("model, network", network), ("model, windows to states", whole)):
            for _ in range(5):
                run()
            took = []
            for _ in range(repeats):
                began_s = time.process_time()
                run()
                took.append(1000 * (time.process_time() - began_s))
            low, high = min(took), max(took)
            rows.append(Row(subject, "cpu_p50_ms", statistics.median(took), at, low, high, repeats))
    return rows


async def measure(options: argparse.Namespace) -> list[Row]:
    """All rows."""
    async with servers("telemetry", "graph") as where:
        live = await measure_live(where, options.seconds, options.seed, options.pace) if options.seconds > 0 else []
        return [
            *measure_model(),
            *live,
            *await measure_replay(where, options.domains, options.played, options.replay_nodes),
        ]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.graph", description="Age, recognition and cost of the graph."
    )
    parser.add_argument("--seconds", type=float, default=40.0, help="time per pace of the live part; 0: none")
    parser.add_argument("--pace", nargs="*", default=list(PACES), choices=list(PACES), help="paces of the live part")
    parser.add_argument("--domains", type=int, default=50, help="of the replay")
    parser.add_argument(
        "--played", type=int, default=50, help="domains of the replay that are played; the rest is scaled"
    )
    parser.add_argument("--replay-nodes", type=int, nargs="*", default=[20, 200, 2000], help="nodes per domain")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args()
    rows = asyncio.run(measure(options))
    print_table(rows)
    if options.json:
        write(options.json, command_line("bench.graph"), [], options.seed, Setting.REAL, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
