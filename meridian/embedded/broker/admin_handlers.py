"""Answers to the requests that administer topics."""

from __future__ import annotations

from collections.abc import Callable

from meridian.embedded.broker.errors import BrokerError, ErrorCode
from meridian.embedded.broker.requests import Answer, Request
from meridian.embedded.broker.stream_handlers import NODE_ID
from meridian.embedded.broker.topic_config import TopicConfig
from meridian.embedded.broker.topics import TopicStore
from meridian.embedded.broker.wire import Message

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SOURCE_TOPIC, SOURCE_DEFAULT = 1, 5
TYPE_STRING = 2


class AdminHandlers:
    """CreateTopics, DeleteTopics, DeleteRecords and DescribeConfigs."""

    def __init__(
        self,
        topics: TopicStore,
        forget_topic: Callable[[str], None],
        default_partitions: int,
        broker_settings: dict[str, str],
    ) -> None:
        self._topics = topics
        self._forget_topic = forget_topic
        self._default_partitions = default_partitions
        self._broker_settings = broker_settings

    def create_topics(self, request: Request) -> Answer:
        """Create each wanted topic, or only check that it could be."""
        only_check = request.body["validate_only"]
        return {"topics": [self._create(topic, only_check) for topic in request.body["topics"]]}

    def _create(self, wanted: Message, only_check: bool) -> Message:
        name = wanted["name"]
        try:
            partition_count = self._partition_count(wanted)
            config = TopicConfig.checked({item["name"]: item["value"] for item in wanted["configs"]})
            if only_check:
                self._topics.check_new(name, partition_count)
            else:
                self._topics.create(name, partition_count, config)
        except BrokerError as error:
            return {"name": name, "error_code": error.error_code, "error_message": error.detail}
        return {
            "name": name,
            "error_code": ErrorCode.NONE,
            "num_partitions": partition_count,
            "replication_factor": 1,
            "configs": [
                {"name": key, "value": value, "config_source": _source(default)}
                for key, (value, default) in config.described().items()
            ],
        }

    def _partition_count(self, wanted: Message) -> int:
        if wanted["replication_factor"] not in {-1, 1}:
            raise BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, "a single node keeps a single replica")
        if not wanted["assignments"]:
            count: int = wanted["num_partitions"]
            return self._default_partitions if count == -1 else count
        indexes = sorted(item["partition_index"] for item in wanted["assignments"])
        if indexes != list(range(len(indexes))) or any(
            item["broker_ids"] != [NODE_ID] for item in wanted["assignments"]
        ):
            raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"every partition lies on node {NODE_ID}")
        return len(indexes)

    def delete_topics(self, request: Request) -> Answer:
        """Delete each named topic."""
        return {"responses": [self._delete(name) for name in request.body["topic_names"]]}

    def _delete(self, name: str) -> Message:
        try:
            self._topics.delete(name)
        except BrokerError as error:
            return {"name": name, "error_code": error.error_code, "error_message": error.detail}
        self._forget_topic(name)
        return {"name": name, "error_code": ErrorCode.NONE}

    def delete_records(self, request: Request) -> Answer:
        """Forget the records before an offset."""
        return {
            "topics": [
                {
                    "name": topic["name"],
                    "partitions": [self._delete_before(topic["name"], part) for part in topic["partitions"]],
                }
                for topic in request.body["topics"]
            ]
        }

    def _delete_before(self, topic: str, part: Message) -> Message:
        try:
            start = self._topics.log(topic, part["index"]).delete_before(part["offset"])
        except BrokerError as error:
            return {"index": part["index"], "error_code": error.error_code}
        return {"index": part["index"], "error_code": ErrorCode.NONE, "low_watermark": start}

    def describe_configs(self, request: Request) -> Answer:
        """The settings of topics and of the broker."""
        return {"results": [self._describe(resource) for resource in request.body["resources"]]}

    def _describe(self, resource: Message) -> Message:
        answer: Message = {
            "error_code": ErrorCode.NONE,
            "resource_type": resource["resource_type"],
            "resource_name": resource["resource_name"],
        }
        try:
            settings = self._settings(resource)
        except BrokerError as error:
            return answer | {"error_code": error.error_code, "error_message": error.detail}
        wanted = resource["configuration_keys"]
        answer["configs"] = [
            {
                "name": name,
                "value": value,
                "read_only": True,
                "is_default": default,
                "config_source": _source(default),
                "config_type": TYPE_STRING,
            }
            for name, (value, default) in settings.items()
            if wanted is None or name in wanted
        ]
        return answer

    def _settings(self, resource: Message) -> dict[str, tuple[str, bool]]:
        if resource["resource_type"] == TOPIC_RESOURCE:
            return self._topics.get(resource["resource_name"]).config.described()
        if resource["resource_type"] == BROKER_RESOURCE:
            return {name: (value, True) for name, value in self._broker_settings.items()}
        raise BrokerError(ErrorCode.INVALID_REQUEST, "only topics and the broker have settings")


def _source(default: bool) -> int:
    return SOURCE_DEFAULT if default else SOURCE_TOPIC
