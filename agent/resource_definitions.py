"""Reads what the network says of user-defined resources: the whole topic first, then every change."""

from __future__ import annotations

import asyncio
import logging

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from agent.bus_clients import METADATA_MAX_AGE_MS, Producer
from agent.partitions import AllPartitions
from agent.settings import AgentSettings
from agent.user_resources import UserResources
from meridian.catalogue import catalogue
from meridian.codec import decode
from meridian.contracts.resource.v1.resource_pb2 import ResourceDefined, ResourceDefinition
from meridian.errors import ContractError, InvalidArgumentError
from meridian.resource_model import ResourceModel, resource_from

_log = logging.getLogger(__name__)


class ResourceDefinitions:
    """Keeps `UserResources` as the network tells. A definition that cannot be is left out and logged."""

    def __init__(self, settings: AgentSettings, resources: UserResources, producer: Producer) -> None:
        """``producer`` hears of the topic's partitions."""
        self._settings = settings
        self._resources = resources
        self._producer = producer
        self._topic = catalogue().event_of(ResourceDefined()).topic

    async def run(self) -> None:
        """Follow until cancelled; after an error of the bus from the beginning again."""
        while True:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._settings.kafka_bootstrap_servers,
                client_id=f"agent-{self._settings.domain.domain_id}-resources",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                metadata_max_age_ms=METADATA_MAX_AGE_MS,
            )
            partitions = AllPartitions(self._topic.name, consumer, self._producer)
            try:
                await consumer.start()
                partitions.read_from(dict(await consumer.beginning_offsets(await partitions.known())))
                while True:
                    for records in (await consumer.getmany(timeout_ms=1000)).values():
                        for record in records:
                            self._take(record.value, record.headers)
                    await partitions.take_added()
            except KafkaError as error:
                _log.warning("resource definitions: %s", error)
                await asyncio.sleep(2.0)
            finally:
                await consumer.stop()

    def _take(self, value: bytes, headers: object) -> None:
        try:
            event = decode(value, headers).data  # type: ignore[arg-type]  # aiokafka is not typed
        except ContractError as error:
            _log.warning("a resource definition cannot be read: %s", error)
            return
        if not isinstance(event, ResourceDefined):
            return
        if event.removed:
            self._resources.tell(event.name, None)
            return
        if event.definition.name != event.name:
            _log.warning("the definition of resource %s is that of %r", event.name, event.definition.name)
            return
        try:
            self._resources.tell(event.name, model_of(event.definition))
        except InvalidArgumentError as error:
            _log.warning("the definition of resource %s cannot be used: %s", event.name, error.detail)


def model_of(message: ResourceDefinition) -> ResourceModel:
    """The definition as the model has it.

    :raises InvalidArgumentError: it cannot be.
    """
    return resource_from(
        {
            "name": message.name,
            "description": message.description,
            "dynamic": message.dynamic,
            "consumable": message.consumable,
            "shareable": message.shareable,
            "value": message.value if message.HasField("value") else None,
            "command": tuple(message.command),
            "interval_s": message.interval_s or None,
            "scope": tuple(message.scope),
        }
    )
