"""All partitions of a topic for one reader that assigns them to itself: also those that are added while it reads, or was away."""

from __future__ import annotations

from aiokafka import AIOKafkaConsumer, TopicPartition

from agent.bus_clients import Producer


class AllPartitions:
    """Partitions of ``topic``, of which ``producer`` hears and ``consumer`` reads. Only used between two fetches.

    A consumer of a group is given its partitions once: aiokafka's coordination ends for good when they change while it looks for the
    group's coordinator. Where some were added (`lack`) another one takes its place.
    """

    def __init__(self, topic: str, consumer: AIOKafkaConsumer, producer: Producer) -> None:
        self._topic = topic
        self._consumer = consumer
        self._producer = producer

    async def known(self) -> list[TopicPartition]:
        """Those that there are, by number.

        :raises KafkaError: the bus does not say.
        """
        numbers = await self._producer.client.partitions_for(self._topic)
        return [TopicPartition(self._topic, number) for number in sorted(numbers)]

    async def starts(self, known: list[TopicPartition], kept: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Where those begin of which no position was ``kept``: a reader that has none at all begins at the end, as what stands there was
        not meant for it; a partition that was added since is read from its beginning.

        :raises KafkaError: the bus does not say.
        """
        new = [partition for partition in known if partition not in kept]
        if not new:
            return {}
        return dict(await (self._consumer.beginning_offsets(new) if kept else self._consumer.end_offsets(new)))

    def read_from(self, positions: dict[TopicPartition, int]) -> None:
        """Read these, from there on."""
        self._consumer.assign(list(positions))
        for partition, offset in positions.items():
            self._consumer.seek(partition, offset)

    async def lack(self) -> bool:
        """Whether there are some that are not read.

        :raises KafkaError: the bus does not say.
        """
        return not set(await self.known()) <= self._consumer.assignment()

    async def take_added(self) -> dict[TopicPartition, int]:
        """Read those that were added too, with a consumer of no group; returns where they begin.

        :raises KafkaError: the bus does not say; all is as before.
        """
        if not await self.lack():
            return {}
        kept = {partition: await self._consumer.position(partition) for partition in self._consumer.assignment()}
        added = await self.starts(await self.known(), kept)
        self.read_from(kept | added)
        return added
