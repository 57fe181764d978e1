"""Reads what the network says of user-defined resources: the whole topic first, then every change."""

from __future__ import annotations

import asyncio
import logging

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

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

    def __init__(self, settings: AgentSettings, resources: UserResources) -> None:
        self._settings = settings
        self._resources = resources
        self._topic = catalogue().event_of(ResourceDefined()).topic

    async def run(self) -> None:
        """Follow until cancelled; after an error of the bus from the beginning again."""
        while True:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._settings.kafka_bootstrap_servers,
                client_id=f"agent-{self._settings.domain.domain_id}-resources",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
            )
            try:
                await consumer.start()
                numbers = range(self._topic.partitions)
                consumer.assign([TopicPartition(self._topic.name, number) for number in numbers])
                await consumer.seek_to_beginning()
                async for record in consumer:
                    self._take(record.value, record.headers)
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
