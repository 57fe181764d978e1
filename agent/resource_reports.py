"""Publishes the inventory with the newest readings, first at once, then at an interval."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Any

from aiokafka.errors import KafkaError

from agent import contract_messages
from agent.benchmark.rounds import ProbeRounds
from agent.bus_clients import Producer
from agent.collectors.availability import AvailabilityCollector, Look
from agent.collectors.base import Collector, Reading
from agent.collectors.declared import AllocationCollector, DeclaredAccelerator, DeclaredCollector
from agent.collectors.device import Device
from agent.collectors.document import DocumentCollector
from agent.collectors.host import HostCollector
from agent.collectors.peaks import peak_source
from agent.collectors.prometheus import PrometheusCollector
from agent.collectors.table_file import load_table
from agent.contract_messages import ComputeIds, MeasuredLink
from agent.engines.base import Engine, NodeState
from agent.merged_readings import merged
from agent.parts import Divided, PartBook
from agent.probing.service import Probing
from agent.report_parts import in_parts
from agent.resource_definitions import ResourceDefinitions
from agent.scrapes import Scrapes
from agent.sensing_settings import Exporter, Source
from agent.settings import AgentSettings
from agent.user_resources import UserResources
from agent.vital_signs import Signs, changed, vital_signs
from meridian.clock import Clock

_log = logging.getLogger(__name__)


class ResourceReports:
    """What this domain has and how it is.

    :raises ConfigurationError: from the constructor, for an exporter table that cannot be read.
    """

    def __init__(
        self,
        settings: AgentSettings,
        engine: Engine,
        producer: Producer,
        clock: Clock,
        *,
        incarnation: int,
        agent_url: str,
        wanted: asyncio.Event | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._producer = producer
        self._clock = clock
        self._incarnation = incarnation
        self._agent_url = agent_url
        self._in_use: Mapping[str, Set[int]] = {}
        self._machines = Look(frozenset(), frozenset())
        self._sequence = 0
        self.agent_id = ""
        self.compute_ids: ComputeIds = {}
        self.wanted = wanted or asyncio.Event()
        domain = settings.domain
        self.user_resources = UserResources(
            domain.domain_id,
            [node.node_id for node in domain.nodes],
            [item.resource for item in domain.resources],
            settings.resource_commands.policy,
            settings.data_dir,
            shell_names=frozenset(item.resource.name for item in domain.resources if item.shell),
        )
        self._scrapes = Scrapes(clock)
        self._accelerators = {node.node_id: sum(group.count for group in node.accelerators) for node in domain.nodes}
        self._parts = PartBook(settings.data_dir / "parts.json", self._accelerators)
        self._divided: Divided = self._parts_that_take_work()
        self._probing = Probing(settings, clock)
        self._collectors = self._make_collectors()
        self._watched = [item for item in self._collectors if isinstance(item, DeclaredCollector)]
        self._signs: Signs = {}

    def parts(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What runs beside the reports, by name: scrapes, commands of user-defined resources, their definitions."""
        definitions = ResourceDefinitions(self._settings, self.user_resources, self._producer)
        rounds = ProbeRounds(self._settings, self._engine, self._producer, self._clock, lambda: self._parts.divided)
        return {
            **({"probe rounds": rounds.run()} if self._settings.benchmark.enabled else {}),
            "scrapes": self._scrapes.run(),
            "probes": self._probing.run(),
            "user resources": self.user_resources.run(),
            "resource definitions": definitions.run(),
        }

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            due_s = self._clock.monotonic_s() + self._settings.report_interval_s
            await self.report()
            await self._watch(due_s)

    async def _watch(self, due_s: float) -> None:
        """Until the next report is due or wanted; a node whose vital signs changed is reported at once."""
        while not self.wanted.is_set():
            left_s = max(due_s - self._clock.monotonic_s(), 0.1)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, self._settings.watch_interval_s)):
                    await self.wanted.wait()
            if self.wanted.is_set() or self._clock.monotonic_s() >= due_s:
                break
            await self._report_changes()
        self.wanted.clear()

    async def _report_changes(self) -> None:
        now = self._clock.now()
        self._look_at_engine()
        # Only what is read without a state of its own: rates of the host would be those of a shorter time.
        scraped = self._look_at_parts(now)
        readings = merged([scraped, *(item.collect(now) for item in self._watched)])
        signs = vital_signs(readings)
        nodes = changed(self._signs, signs)
        if nodes:
            self._signs = signs
            await self._publish([reading for reading in readings if reading.node_id in nodes], now, only=nodes)

    def _look_at_parts(self, now: datetime) -> list[Reading]:
        """The newest readings of exporters, and what they say of parts."""
        scraped = self._scrapes.newest(now)
        if self._parts.observe(scraped):
            self._divided = self._parts_that_take_work()
        return scraped

    def _parts_that_take_work(self) -> Divided:
        """Nothing where somebody else gives the accelerators away: the domain's own scheduler, or an engine of whole ones."""
        if self._settings.domain.own_scheduler is not None or not self._engine.know_parts(self._parts.by_node()):
            return {}
        return self._parts.divided

    def _look_at_engine(self) -> None:
        nodes, asleep = self._engine.nodes(), self._engine.asleep()
        self._in_use = {node.node_id: node.accelerators_in_use for node in nodes if node.state is NodeState.RUNNING}
        looked_at = [node for node in nodes if node.state is not NodeState.STARTING and node.node_id not in asleep]
        up = {
            node.node_id
            for node in looked_at
            if node.state is NodeState.RUNNING and node.last_beat_age_s < self._settings.lease_s
        }
        self._machines = Look(up, {node.node_id for node in looked_at} - up)

    async def report(self) -> None:
        """Take readings and publish once; a report that the bus does not take is dropped, a newer one follows."""
        now = self._clock.now()
        self._look_at_engine()
        scraped = self._look_at_parts(now)
        taken = await asyncio.gather(*(asyncio.to_thread(collector.collect, now) for collector in self._collectors))
        # What an exporter measures stands before what is declared, and this before what the agent's own machine shows.
        readings = merged([scraped, *reversed(taken)])
        watched = [part for collector, part in zip(self._collectors, taken, strict=True) if collector in self._watched]
        self._signs = vital_signs(merged([scraped, *watched]))
        await self._publish(readings, now)

    async def _publish(self, readings: Sequence[Reading], now: datetime, only: Set[str] | None = None) -> None:
        self._sequence += 1
        message = contract_messages.resource_report(
            domain=contract_messages.inventory(
                self._settings,
                self.compute_ids,
                self._agent_url,
                self._engine.asleep(),
                self._links(now),
                self._divided,
            ),
            agent_id=self.agent_id,
            incarnation=self._incarnation,
            readings=readings,
            now=self._clock.now(),
        )
        contract_messages.add_amounts(message.inventory, self.user_resources.amounts())
        report_id = f"report-{self._incarnation}-{self._sequence}"
        try:
            for part in in_parts(message, report_id, only=only):
                event_id = f"{report_id}-{part.part.number}" if part.HasField("part") else report_id
                await (await self._producer.send(part, event_id=event_id, time=now))
        except KafkaError as error:
            _log.warning("report not sent: %s", error)

    def _links(self, now: datetime) -> dict[str, MeasuredLink]:
        now_s = self._clock.monotonic_s()
        return {
            domain_id: (found, now - timedelta(seconds=now_s - found.measured_at_s))
            for domain_id, found in self._probing.measured().items()
        }

    def _make_collectors(self) -> list[Collector]:
        domain = self._settings.domain
        collectors: list[Collector] = [
            HostCollector(
                tuple(node.node_id for node in domain.nodes), self._settings.data_dir, self._clock.monotonic_s
            ),
            AvailabilityCollector(
                [node.node_id for node in domain.nodes],
                lambda: self._machines,
                self._settings.data_dir / "availability.json",
            ),
        ]
        declared: list[DeclaredAccelerator] = []
        for node in domain.nodes:
            groups = [group for group in node.accelerators for _ in range(group.count)]
            uuids = [uuid for group in node.accelerators for uuid in (*group.uuids, *[""] * group.count)[: group.count]]
            peaks = [group.peak_flops for group in groups]
            for exporter in node.exporters:
                self._add_exporter(exporter, node.node_id, uuids, peaks)
            if domain.emulated:
                declared += [
                    DeclaredAccelerator(
                        node.node_id,
                        index,
                        group.vendor,
                        group.model,
                        group.memory_bytes,
                        group.peak_flops,
                        group.idle_watts,
                        group.peak_watts,
                        group.sleep_watts,
                    )
                    for index, group in enumerate(groups)
                ]
        if declared:
            collectors.append(DeclaredCollector(tuple(declared), lambda: self._in_use, self._engine.asleep))
        else:
            collectors.append(AllocationCollector(self._accelerators, lambda: self._in_use, lambda: self._divided))
        for exporter in domain.exporters:
            self._add_exporter(exporter, "", (), ())
        for source in domain.sources:
            self._add_source(source)
        return collectors

    def _add_exporter(self, exporter: Exporter, node_id: str, uuids: Sequence[str], peaks: Sequence[float]) -> None:
        """``node_id`` empty: an exporter that speaks of the domain, or of nodes by their names."""
        scraping = self._settings.scraping
        deadline_s = exporter.deadline_s or scraping.deadline_s
        table = load_table(exporter.table)
        if exporter.prefix:
            table = table.with_prefix(exporter.prefix)
        collector = PrometheusCollector(
            exporter.url,
            table,
            node_id,
            [Device(index, uuid) for index, uuid in enumerate(uuids)] if table.per_device else [],
            deadline_s=deadline_s,
            max_bytes=scraping.max_bytes,
            limits=scraping.limits,
            peak_of=peak_source(peaks),
        )
        self._scrapes.add(collector, exporter.interval_s or scraping.interval_s, deadline_s)

    def _add_source(self, source: Source) -> None:
        scraping = self._settings.scraping
        deadline_s = source.deadline_s or scraping.deadline_s
        collector = DocumentCollector(
            source.url or source.command[0],
            [node.node_id for node in self._settings.domain.nodes],
            url=source.url,
            command=source.command,
            headers=source.headers,
            deadline_s=deadline_s,
            max_bytes=scraping.max_bytes,
            limits=scraping.limits,
            working_dir=self._settings.data_dir,
        )
        self._scrapes.add(collector, source.interval_s or scraping.interval_s, deadline_s)
