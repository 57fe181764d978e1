"""Error codes of the Kafka protocol that this broker answers with, and the exceptions that carry them."""

from __future__ import annotations

from enum import IntEnum

from meridian.errors import MeridianError


class ErrorCode(IntEnum):
    """Codes as numbered by the Kafka protocol guide."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    KAFKA_STORAGE_ERROR = 56
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    FENCED_INSTANCE_ID = 82
    INVALID_RECORD = 87


class BrokerError(MeridianError):
    """A request that cannot be served: ``error_code`` goes into the answer, ``detail`` into its message where it has one."""

    code = "BROKER"
    status = 500
    title = "Broker error"

    def __init__(self, error_code: ErrorCode, detail: str = "") -> None:
        super().__init__(detail or error_code.name)
        self.error_code = error_code


class MalformedFrameError(MeridianError):
    """Bytes that are no request of the protocol: the connection they came from is closed."""

    code = "MALFORMED_FRAME"
    status = 400
    title = "Malformed frame"
