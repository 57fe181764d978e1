"""Reads the orders for this domain and carries them out; the position moves on after they stand in the journal.

The agent assigns itself all partitions and keeps its position with the broker, without a group's membership: after a
crash it goes on at once, no session of its predecessor has to run out. A domain that has no position yet begins at the
end: orders from before its first start were not meant for it. A partition that is added later is read from its beginning.

An order that was given while the agent was out of contact for longer than its lease is refused: others may have been
told to run the unit since.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.errors import KafkaError

from agent import contract_messages
from agent.bus_clients import METADATA_MAX_AGE_MS, Producer, fetched, until_taken
from agent.engines.base import Engine, FailureKind, RunFailed, RunRefused
from agent.lease import Lease
from agent.partitions import AllPartitions
from agent.settings import AgentSettings
from meridian.catalogue import catalogue
from meridian.clock import Clock
from meridian.codec import decode
from meridian.contracts.run.v1.run_pb2 import (
    ASSIGNMENT_ACTION_ADJUST,
    ASSIGNMENT_ACTION_SLEEP,
    ASSIGNMENT_ACTION_START,
    ASSIGNMENT_ACTION_STOP,
    ASSIGNMENT_ACTION_WAKE,
    Assignment,
)
from meridian.errors import ContractError, InvalidArgumentError

_log = logging.getLogger(__name__)

COMMIT_EVERY_S = 3600.0
"""So often the position is told though no order came: a broker forgets, after a week as a rule, one that nobody tells."""
MOST_TRACES = 10_000
"""Of so many runs the trace is known to which their reports belong; an order for a run that has ended leaves one behind."""
UnitKey = tuple[str, int]


def without_superseded(orders: Iterable[Assignment]) -> list[Assignment]:
    """One unit's orders without the starts that a later order makes void, so that a backlog starts nothing in vain."""
    kept: list[Assignment] = []
    void_to = -1
    for order in reversed(list(orders)):
        if order.action == ASSIGNMENT_ACTION_START and order.epoch <= void_to:
            continue
        void_to = max(void_to, order.epoch if order.action == ASSIGNMENT_ACTION_STOP else order.epoch - 1)
        kept.append(order)
    return kept[::-1]


def is_expired(order: Assignment, contact_since: datetime, lease_s: float) -> bool:
    """Whether a start was given longer than a lease before the agent (again) had contact."""
    if order.action != ASSIGNMENT_ACTION_START or not order.HasField("assigned_at"):
        return False
    # In seconds: the wire carries times that are none in any year, and such an order would come again at every start.
    assigned_s = order.assigned_at.seconds + order.assigned_at.nanos / 1e9
    return assigned_s + lease_s < contact_since.timestamp()


class Orders:
    """This domain's share of the assignments topic."""

    def __init__(
        self,
        settings: AgentSettings,
        engine: Engine,
        producer: Producer,
        lease: Lease,
        clock: Clock,
        traces: dict[str, str],
        why_refused: Callable[[Assignment], str] = lambda order: "",
    ) -> None:
        """``why_refused`` says why a START is not carried out; empty: it is."""
        self._settings = settings
        self._domain_id = settings.domain.domain_id
        self._engine = engine
        self._producer = producer
        self._lease = lease
        self._clock = clock
        self._traces = traces
        self._why_refused = why_refused
        self._topic = catalogue().event_of(Assignment()).topic
        self._consumer, self._partitions = self._reader()
        self._committed_s = 0.0
        self.handled_count = 0
        self.unreadable_count = 0

    def _reader(self) -> tuple[AIOKafkaConsumer, AllPartitions]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._settings.kafka_bootstrap_servers,
            client_id=f"agent-{self._domain_id}",
            group_id=f"agent.{self._domain_id}",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )
        return consumer, AllPartitions(self._topic.name, consumer, self._producer)

    async def start(self) -> None:
        """Take the position up; waits for broker and topic."""
        await until_taken(self._consumer.start, "orders")
        await until_taken(self._take_position, "orders")

    async def _take_position(self) -> None:
        known = await self._partitions.known()
        committed = {partition: await self._consumer.committed(partition) for partition in known}
        kept = {partition: offset for partition, offset in committed.items() if offset is not None}
        positions = kept | await self._partitions.starts(known, kept)
        self._partitions.read_from(positions)
        await self._consumer.commit(positions)
        self._committed_s = self._clock.monotonic_s()

    async def stop(self) -> None:
        """Leave the bus."""
        await self._consumer.stop()

    async def run(self) -> None:
        """Carry orders out until cancelled."""
        while True:
            found = await fetched(self._consumer, 1.0, "orders")
            if found is None:
                continue
            units: dict[UnitKey, list[Assignment]] = {}
            for records in found.values():
                for record in records:
                    order = await self._read(record)
                    if order is not None:
                        units.setdefault((order.job_id, order.unit_index), []).append(order)
            if units:
                await asyncio.gather(*(self._carry_out(orders) for orders in units.values()))
            if units or self._clock.monotonic_s() - self._committed_s >= COMMIT_EVERY_S:
                await self._commit()
            await self._read_added()

    async def _read_added(self) -> None:
        """Where partitions were added, begin again from the position, with all of them."""
        try:
            if not await self._partitions.lack():
                return
            await self._consumer.commit()
        except KafkaError as error:
            _log.warning("orders: partitions are not known, or the position is not kept: %r", error)
            return
        _log.info("orders: partitions were added")
        await self._consumer.stop()
        self._consumer, self._partitions = self._reader()
        await self.start()

    async def _commit(self) -> None:
        try:
            await self._consumer.commit()
            self._committed_s = self._clock.monotonic_s()
        except KafkaError as error:
            _log.warning("position of orders not kept: %s", error)  # they come again, and are known

    async def _read(self, record: ConsumerRecord[Any, Any]) -> Assignment | None:
        if record.key is not None and record.key != self._domain_id.encode():
            return None
        try:
            envelope = decode(record.value, record.headers)
        except ContractError as error:
            self.unreadable_count += 1
            await self._producer.set_aside(record, consumer=f"agent.{self._domain_id}", reason=error.detail)
            return None
        order = envelope.data
        if not isinstance(order, Assignment) or order.domain_id != self._domain_id:
            return None
        if envelope.traceparent:
            self._traces.pop(order.run_id, None)
            self._traces[order.run_id] = envelope.traceparent
            if len(self._traces) > MOST_TRACES:
                del self._traces[next(iter(self._traces))]
        return order

    async def _carry_out(self, orders: list[Assignment]) -> None:
        for order in without_superseded(orders):
            self.handled_count += 1
            if order.action == ASSIGNMENT_ACTION_STOP:
                await self._engine.stop(contract_messages.stop_request(order))
            elif order.action == ASSIGNMENT_ACTION_START:
                await self._start(order)
            elif order.action == ASSIGNMENT_ACTION_ADJUST:
                await self._engine.adjust(contract_messages.adjust_request(order))
            elif order.action == ASSIGNMENT_ACTION_WAKE:
                await self._engine.wake(order.node_ids)
            elif order.action == ASSIGNMENT_ACTION_SLEEP:
                await self._engine.put_to_sleep(order.node_ids)
            else:
                _log.error("order for run %r has no action", order.run_id)

    async def _start(self, order: Assignment) -> None:
        identity = (order.run_id, order.job_id, order.unit_index, order.epoch, self._clock.now())
        if is_expired(order, self._contact_since(), self._settings.lease_s):
            reason = "the order was given while this domain was out of contact for longer than its lease"
        else:
            reason = self._why_refused(order)
        if reason:
            self._engine.report(RunRefused(*identity, highest_epoch=0, reason=reason))
            return
        try:
            request = contract_messages.launch_request(order, self._settings.checkpoints)
        except InvalidArgumentError as error:
            fields = "; ".join(f"{field.pointer}: {field.detail}" for field in error.errors)
            self._engine.report(
                RunFailed(*identity, kind=FailureKind.NOT_STARTABLE, reason=f"{error.detail}: {fields}")
            )
            return
        await self._engine.launch(request)

    def _contact_since(self) -> datetime:
        return self._clock.now() - timedelta(seconds=self._clock.monotonic_s() - self._lease.held_since_s)
