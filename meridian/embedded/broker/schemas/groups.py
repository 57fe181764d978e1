"""Requests of consumer groups: membership and committed offsets."""

from __future__ import annotations

from meridian.embedded.broker.schemas.api import Api, ApiKey
from meridian.embedded.broker.schemas.streams import NO_OPERATIONS
from meridian.embedded.broker.wire import (
    BOOLEAN,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    Field,
    Struct,
    array,
)

OFFSET_COMMIT = Api(
    ApiKey.OFFSET_COMMIT,
    2,
    8,
    8,
    Struct(
        Field("group_id", STRING),
        Field("generation_id", INT32, default=-1),
        Field("member_id", STRING),
        Field("group_instance_id", NULLABLE_STRING, since=7),
        Field("retention_time_ms", INT64, until=4, default=-1),
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
                                Field("offset", INT64),
                                Field("leader_epoch", INT32, since=6, default=-1),
                                Field("metadata", NULLABLE_STRING),
                            )
                        ),
                    ),
                )
            ),
        ),
    ),
    Struct(
        Field("throttle_time_ms", INT32, since=3),
        Field(
            "topics",
            array(
                Struct(
                    Field("name", STRING),
                    Field("partitions", array(Struct(Field("index", INT32), Field("error_code", INT16)))),
                )
            ),
        ),
    ),
)

_FETCHED_TOPIC = Struct(
    Field("name", STRING),
    Field(
        "partitions",
        array(
            Struct(
                Field("index", INT32),
                Field("offset", INT64, default=-1),
                Field("leader_epoch", INT32, since=5, default=-1),
                Field("metadata", NULLABLE_STRING),
                Field("error_code", INT16),
            )
        ),
    ),
)
_WANTED_TOPIC = Struct(Field("name", STRING), Field("partitions", array(INT32)))

OFFSET_FETCH = Api(
    ApiKey.OFFSET_FETCH,
    1,
    8,
    6,
    Struct(
        Field("group_id", STRING, until=7),
        Field("topics", array(_WANTED_TOPIC, nullable=True), until=7),
        Field(
            "groups",
            array(Struct(Field("group_id", STRING), Field("topics", array(_WANTED_TOPIC, nullable=True)))),
            since=8,
        ),
        Field("require_stable", BOOLEAN, since=7),
    ),
    Struct(
        Field("throttle_time_ms", INT32, since=3),
        Field("topics", array(_FETCHED_TOPIC), until=7),
        Field("error_code", INT16, since=2, until=7),
        Field(
            "groups",
            array(
                Struct(
                    Field("group_id", STRING),
                    Field("topics", array(_FETCHED_TOPIC)),
                    Field("error_code", INT16),
                )
            ),
            since=8,
        ),
    ),
)

FIND_COORDINATOR = Api(
    ApiKey.FIND_COORDINATOR,
    0,
    4,
    3,
    Struct(
        Field("key", STRING, until=3),
        Field("key_type", INT8, since=1),
        Field("keys", array(STRING), since=4),
    ),
    Struct(
        Field("throttle_time_ms", INT32, since=1),
        Field("error_code", INT16, until=3),
        Field("error_message", NULLABLE_STRING, since=1, until=3),
        Field("node_id", INT32, until=3),
        Field("host", STRING, until=3),
        Field("port", INT32, until=3),
        Field(
            "coordinators",
            array(
                Struct(
                    Field("key", STRING),
                    Field("node_id", INT32),
                    Field("host", STRING),
                    Field("port", INT32),
                    Field("error_code", INT16),
                    Field("error_message", NULLABLE_STRING),
                )
            ),
            since=4,
        ),
    ),
)

JOIN_GROUP = Api(
    ApiKey.JOIN_GROUP,
    0,
    9,
    6,
    Struct(
        Field("group_id", STRING),
        Field("session_timeout_ms", INT32),
        Field("rebalance_timeout_ms", INT32, since=1, default=-1),
        Field("member_id", STRING),
        Field("group_instance_id", NULLABLE_STRING, since=5),
        Field("protocol_type", STRING),
        Field("protocols", array(Struct(Field("name", STRING), Field("metadata", BYTES)))),
        Field("reason", NULLABLE_STRING, since=8),
    ),
    Struct(
        Field("throttle_time_ms", INT32, since=2),
        Field("error_code", INT16),
        Field("generation_id", INT32, default=-1),
        Field("protocol_type", NULLABLE_STRING, since=7),
        Field("protocol_name", NULLABLE_STRING, default=""),
        Field("leader", STRING),
        Field("skip_assignment", BOOLEAN, since=9),
        Field("member_id", STRING),
        Field(
            "members",
            array(
                Struct(
                    Field("member_id", STRING),
                    Field("group_instance_id", NULLABLE_STRING, since=5),
                    Field("metadata", BYTES),
                )
            ),
        ),
    ),
)

HEARTBEAT = Api(
    ApiKey.HEARTBEAT,
    0,
    4,
    4,
    Struct(
        Field("group_id", STRING),
        Field("generation_id", INT32),
        Field("member_id", STRING),
        Field("group_instance_id", NULLABLE_STRING, since=3),
    ),
    Struct(Field("throttle_time_ms", INT32, since=1), Field("error_code", INT16)),
)

LEAVE_GROUP = Api(
    ApiKey.LEAVE_GROUP,
    0,
    5,
    4,
    Struct(
        Field("group_id", STRING),
        Field("member_id", STRING, until=2),
        Field(
            "members",
            array(
                Struct(
                    Field("member_id", STRING),
                    Field("group_instance_id", NULLABLE_STRING),
                    Field("reason", NULLABLE_STRING, since=5),
                )
            ),
            since=3,
        ),
    ),
    Struct(
        Field("throttle_time_ms", INT32, since=1),
        Field("error_code", INT16),
        Field(
            "members",
            array(
                Struct(
                    Field("member_id", STRING),
                    Field("group_instance_id", NULLABLE_STRING),
                    Field("error_code", INT16),
                )
            ),
            since=3,
        ),
    ),
)

SYNC_GROUP = Api(
    ApiKey.SYNC_GROUP,
    0,
    5,
    4,
    Struct(
        Field("group_id", STRING),
        Field("generation_id", INT32),
        Field("member_id", STRING),
        Field("group_instance_id", NULLABLE_STRING, since=3),
        Field("protocol_type", NULLABLE_STRING, since=5),
        Field("protocol_name", NULLABLE_STRING, since=5),
        Field("assignments", array(Struct(Field("member_id", STRING), Field("assignment", BYTES)))),
    ),
    Struct(
        Field("throttle_time_ms", INT32, since=1),
        Field("error_code", INT16),
        Field("protocol_type", NULLABLE_STRING, since=5),
        Field("protocol_name", NULLABLE_STRING, since=5),
        Field("assignment", BYTES),
    ),
)

DESCRIBE_GROUPS = Api(
    ApiKey.DESCRIBE_GROUPS,
    0,
    5,
    5,
    Struct(Field("groups", array(STRING)), Field("include_authorized_operations", BOOLEAN, since=3)),
    Struct(
        Field("throttle_time_ms", INT32, since=1),
        Field(
            "groups",
            array(
                Struct(
                    Field("error_code", INT16),
                    Field("group_id", STRING),
                    Field("group_state", STRING),
                    Field("protocol_type", STRING),
                    Field("protocol_data", STRING),
                    Field(
                        "members",
                        array(
                            Struct(
                                Field("member_id", STRING),
                                Field("group_instance_id", NULLABLE_STRING, since=4),
                                Field("client_id", STRING),
                                Field("client_host", STRING),
                                Field("member_metadata", BYTES),
                                Field("member_assignment", BYTES),
                            )
                        ),
                    ),
                    Field("authorized_operations", INT32, since=3, default=NO_OPERATIONS),
                )
            ),
        ),
    ),
)

LIST_GROUPS = Api(
    ApiKey.LIST_GROUPS,
    0,
    4,
    3,
    Struct(Field("states_filter", array(STRING), since=4)),
    Struct(
        Field("throttle_time_ms", INT32, since=1),
        Field("error_code", INT16),
        Field(
            "groups",
            array(
                Struct(
                    Field("group_id", STRING),
                    Field("protocol_type", STRING),
                    Field("group_state", STRING, since=4),
                )
            ),
        ),
    ),
)

GROUP_APIS = (
    OFFSET_COMMIT,
    OFFSET_FETCH,
    FIND_COORDINATOR,
    JOIN_GROUP,
    HEARTBEAT,
    LEAVE_GROUP,
    SYNC_GROUP,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
)
