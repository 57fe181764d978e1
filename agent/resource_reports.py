"""Publishes the inventory with the newest readings, first at once, then at an interval."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Set

from aiokafka.errors import KafkaError

from agent import contract_messages
from agent.bus_clients import Producer
from agent.collectors.base import Collector, Reading
from agent.collectors.declared import DeclaredAccelerator, DeclaredCollector
from agent.collectors.host import HostCollector
from agent.collectors.prometheus import PrometheusCollector
from agent.collectors.table_file import load_table
from agent.collectors.translation import Device
from agent.contract_messages import ComputeIds
from agent.engines.base import Engine, NodeState
from agent.settings import AgentSettings
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
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._producer = producer
        self._clock = clock
        self._incarnation = incarnation
        self._agent_url = agent_url
        self._in_use: Mapping[str, Set[int]] = {}
        self._sequence = 0
        self.agent_id = ""
        self.compute_ids: ComputeIds = {}
        self._collectors = self._make_collectors()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            began_s = self._clock.monotonic_s()
            await self.report()
            took_s = self._clock.monotonic_s() - began_s
            await asyncio.sleep(max(self._settings.report_interval_s - took_s, 0.1))

    async def report(self) -> None:
        """Take readings and publish once; a report that the bus does not take is dropped, a newer one follows."""
        now = self._clock.now()
        self._in_use = {
            node.node_id: node.accelerators_in_use for node in self._engine.nodes() if node.state is NodeState.RUNNING
        }
        taken = await asyncio.gather(*(asyncio.to_thread(collector.collect, now) for collector in self._collectors))
        readings: list[Reading] = [reading for part in taken for reading in part]
        self._sequence += 1
        message = contract_messages.resource_report(
            domain=contract_messages.inventory(self._settings, self.compute_ids, self._agent_url),
            agent_id=self.agent_id,
            incarnation=self._incarnation,
            readings=readings,
            now=self._clock.now(),
        )
        try:
            event_id = f"report-{self._incarnation}-{self._sequence}"
            await (await self._producer.send(message, event_id=event_id, time=now))
        except KafkaError as error:
            _log.warning("report not sent: %s", error)

    def _make_collectors(self) -> list[Collector]:
        domain = self._settings.domain
        collectors: list[Collector] = [
            HostCollector(tuple(node.node_id for node in domain.nodes), self._settings.data_dir)
        ]
        declared: list[DeclaredAccelerator] = []
        for node in domain.nodes:
            groups = [group for group in node.accelerators for _ in range(group.count)]
            uuids = [uuid for group in node.accelerators for uuid in (*group.uuids, *[""] * group.count)[: group.count]]
            for exporter in node.exporters:
                table = load_table(exporter.table)
                expected = [Device(index, uuid) for index, uuid in enumerate(uuids)] if table.per_device else []
                collectors.append(PrometheusCollector(exporter.url, table, node.node_id, expected))
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
                    )
                    for index, group in enumerate(groups)
                ]
        if declared:
            collectors.append(DeclaredCollector(tuple(declared), lambda: self._in_use))
        return collectors
