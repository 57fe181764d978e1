"""Requests that write and read records: Produce, Fetch, ListOffsets, Metadata, InitProducerId; and ApiVersions."""

from __future__ import annotations

from meridian.embedded.broker.schemas.api import Api, ApiKey
from meridian.embedded.broker.wire import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_BYTES,
    NULLABLE_STRING,
    STRING,
    UUID,
    Field,
    Struct,
    array,
)

NO_OPERATIONS = -(1 << 31)
"""Answer to "which operations am I allowed": not asked, not known."""


PRODUCE = Api(
    ApiKey.PRODUCE,
    3,
    9,
    9,
    Struct(
        Field("transactional_id", NULLABLE_STRING),
        Field("acks", INT16),
        Field("timeout_ms", INT32),
        Field(
            "topics",
            array(
                Struct(
                    Field("name", STRING),
                    Field("partitions", array(Struct(Field("index", INT32), Field("records", NULLABLE_BYTES)))),
                )
            ),
        ),
    ),
    Struct(
        Field(
            "topics",
            array(
                Struct(
                    Field("name", STRING),
                    Field(
                        "partitions",
                        array(
                            Struct(
                                Field("index", INT32),
                                Field("error_code", INT16),
                                Field("base_offset", INT64, default=-1),
                                Field("log_append_time_ms", INT64, since=2, default=-1),
                                Field("log_start_offset", INT64, since=5, default=-1),
                                Field(
                                    "record_errors",
                                    array(Struct(Field("batch_index", INT32), Field("message", NULLABLE_STRING))),
                                    since=8,
                                ),
                                Field("error_message", NULLABLE_STRING, since=8),
                            )
                        ),
                    ),
                )
            ),
        ),
        Field("throttle_time_ms", INT32, since=1),
    ),
)

FETCH = Api(
    ApiKey.FETCH,
    4,
    12,
    12,
    Struct(
        Field("replica_id", INT32),
        Field("max_wait_ms", INT32),
        Field("min_bytes", INT32),
        Field("max_bytes", INT32),
        Field("isolation_level", INT8),
        Field("session_id", INT32, since=7),
        Field("session_epoch", INT32, since=7, default=-1),
        Field(
            "topics",
            array(
                Struct(
                    Field("name", STRING),
                    Field(
                        "partitions",
                        array(
                            Struct(
                                Field("index", INT32),
                                Field("current_leader_epoch", INT32, since=9, default=-1),
                                Field("fetch_offset", INT64),
                                Field("last_fetched_epoch", INT32, since=12, default=-1),
                                Field("log_start_offset", INT64, since=5, default=-1),
                                Field("partition_max_bytes", INT32),
                            )
                        ),
                    ),
                )
            ),
        ),
        Field(
            "forgotten_topics",
            array(Struct(Field("name", STRING), Field("partitions", array(INT32)))),
            since=7,
        ),
        Field("rack_id", STRING, since=11),
    ),
    Struct(
        Field("throttle_time_ms", INT32),
        Field("error_code", INT16, since=7),
        Field("session_id", INT32, since=7),
        Field(
            "topics",
            array(
                Struct(
                    Field("name", STRING),
                    Field(
                        "partitions",
                        array(
                            Struct(
                                Field("index", INT32),
                                Field("error_code", INT16),
                                Field("high_watermark", INT64, default=-1),
                                Field("last_stable_offset", INT64, default=-1),
                                Field("log_start_offset", INT64, since=5, default=-1),
                                Field(
                                    "aborted_transactions",
                                    array(
                                        Struct(Field("producer_id", INT64), Field("first_offset", INT64)),
                                        nullable=True,
                                    ),
                                ),
                                Field("preferred_read_replica", INT32, since=11, default=-1),
                                Field("records", NULLABLE_BYTES, default=b""),
                            )
                        ),
                    ),
                )
            ),
        ),
    ),
)

LIST_OFFSETS = Api(
    ApiKey.LIST_OFFSETS,
    1,
    7,
    6,
    Struct(
        Field("replica_id", INT32),
        Field("isolation_level", INT8, since=2),
        Field(
            "topics",
            array(
                Struct(
                    Field("name", STRING),
                    Field(
                        "partitions",
                        array(
                            Struct(
                                Field("index", INT32),
                                Field("current_leader_epoch", INT32, since=4, default=-1),
                                Field("timestamp", INT64),
                            )
                        ),
                    ),
                )
            ),
        ),
    ),
    Struct(
        Field("throttle_time_ms", INT32, since=2),
        Field(
            "topics",
            array(
                Struct(
                    Field("name", STRING),
                    Field(
                        "partitions",
                        array(
                            Struct(
                                Field("index", INT32),
                                Field("error_code", INT16),
                                Field("timestamp", INT64, default=-1),
                                Field("offset", INT64, default=-1),
                                Field("leader_epoch", INT32, since=4, default=-1),
                            )
                        ),
                    ),
                )
            ),
        ),
    ),
)

METADATA = Api(
    ApiKey.METADATA,
    0,
    12,
    9,
    Struct(
        Field(
            "topics",
            array(
                Struct(Field("topic_id", UUID, since=10), Field("name", NULLABLE_STRING)),
                nullable=True,
            ),
        ),
        Field("allow_auto_topic_creation", BOOLEAN, since=4, default=True),
        Field("include_cluster_authorized_operations", BOOLEAN, since=8, until=10),
        Field("include_topic_authorized_operations", BOOLEAN, since=8),
    ),
    Struct(
        Field("throttle_time_ms", INT32, since=3),
        Field(
            "brokers",
            array(
                Struct(
                    Field("node_id", INT32),
                    Field("host", STRING),
                    Field("port", INT32),
                    Field("rack", NULLABLE_STRING, since=1),
                )
            ),
        ),
        Field("cluster_id", NULLABLE_STRING, since=2),
        Field("controller_id", INT32, since=1),
        Field(
            "topics",
            array(
                Struct(
                    Field("error_code", INT16),
                    Field("name", NULLABLE_STRING),
                    Field("topic_id", UUID, since=10),
                    Field("is_internal", BOOLEAN, since=1),
                    Field(
                        "partitions",
                        array(
                            Struct(
                                Field("error_code", INT16),
                                Field("index", INT32),
                                Field("leader_id", INT32),
                                Field("leader_epoch", INT32, since=7, default=0),
                                Field("replica_nodes", array(INT32)),
                                Field("isr_nodes", array(INT32)),
                                Field("offline_replicas", array(INT32), since=5),
                            )
                        ),
                    ),
                    Field("authorized_operations", INT32, since=8, default=NO_OPERATIONS),
                )
            ),
        ),
        Field("cluster_authorized_operations", INT32, since=8, until=10, default=NO_OPERATIONS),
    ),
)

API_VERSIONS = Api(
    ApiKey.API_VERSIONS,
    0,
    3,
    3,
    Struct(
        Field("client_software_name", STRING, since=3),
        Field("client_software_version", STRING, since=3),
    ),
    Struct(
        Field("error_code", INT16),
        Field(
            "api_keys",
            array(Struct(Field("api_key", INT16), Field("min_version", INT16), Field("max_version", INT16))),
        ),
        Field("throttle_time_ms", INT32, since=1),
    ),
)

INIT_PRODUCER_ID = Api(
    ApiKey.INIT_PRODUCER_ID,
    0,
    4,
    2,
    Struct(
        Field("transactional_id", NULLABLE_STRING),
        Field("transaction_timeout_ms", INT32),
        Field("producer_id", INT64, since=3, default=-1),
        Field("producer_epoch", INT16, since=3, default=-1),
    ),
    Struct(
        Field("throttle_time_ms", INT32),
        Field("error_code", INT16),
        Field("producer_id", INT64, default=-1),
        Field("producer_epoch", INT16, default=-1),
    ),
)

STREAM_APIS = (PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, INIT_PRODUCER_ID)
