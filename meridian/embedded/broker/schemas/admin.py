"""Requests that administer topics."""

from __future__ import annotations

from meridian.embedded.broker.schemas.api import Api, ApiKey
from meridian.embedded.broker.wire import (
    BOOLEAN,
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

CREATE_TOPICS = Api(
    ApiKey.CREATE_TOPICS,
    0,
    5,
    5,
    Struct(
        Field(
            "topics",
            array(
                Struct(
                    Field("name", STRING),
                    Field("num_partitions", INT32),
                    Field("replication_factor", INT16),
                    Field(
                        "assignments",
                        array(Struct(Field("partition_index", INT32), Field("broker_ids", array(INT32)))),
                    ),
                    Field("configs", array(Struct(Field("name", STRING), Field("value", NULLABLE_STRING)))),
                )
            ),
        ),
        Field("timeout_ms", INT32),
        Field("validate_only", BOOLEAN, since=1),
    ),
    Struct(
        Field("throttle_time_ms", INT32, since=2),
        Field(
            "topics",
            array(
                Struct(
                    Field("name", STRING),
                    Field("error_code", INT16),
                    Field("error_message", NULLABLE_STRING, since=1),
                    Field("num_partitions", INT32, since=5, default=-1),
                    Field("replication_factor", INT16, since=5, default=-1),
                    Field(
                        "configs",
                        array(
                            Struct(
                                Field("name", STRING),
                                Field("value", NULLABLE_STRING),
                                Field("read_only", BOOLEAN),
                                Field("config_source", INT8, default=-1),
                                Field("is_sensitive", BOOLEAN),
                            ),
                            nullable=True,
                        ),
                        since=5,
                    ),
                )
            ),
        ),
    ),
)

DELETE_TOPICS = Api(
    ApiKey.DELETE_TOPICS,
    0,
    5,
    4,
    Struct(Field("topic_names", array(STRING)), Field("timeout_ms", INT32)),
    Struct(
        Field("throttle_time_ms", INT32, since=1),
        Field(
            "responses",
            array(
                Struct(
                    Field("name", STRING),
                    Field("error_code", INT16),
                    Field("error_message", NULLABLE_STRING, since=5),
                )
            ),
        ),
    ),
)

DELETE_RECORDS = Api(
    ApiKey.DELETE_RECORDS,
    0,
    2,
    2,
    Struct(
        Field(
            "topics",
            array(
                Struct(
                    Field("name", STRING),
                    Field("partitions", array(Struct(Field("index", INT32), Field("offset", INT64)))),
                )
            ),
        ),
        Field("timeout_ms", INT32),
    ),
    Struct(
        Field("throttle_time_ms", INT32),
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
                                Field("low_watermark", INT64, default=-1),
                                Field("error_code", INT16),
                            )
                        ),
                    ),
                )
            ),
        ),
    ),
)

DESCRIBE_CONFIGS = Api(
    ApiKey.DESCRIBE_CONFIGS,
    0,
    4,
    4,
    Struct(
        Field(
            "resources",
            array(
                Struct(
                    Field("resource_type", INT8),
                    Field("resource_name", STRING),
                    Field("configuration_keys", array(STRING, nullable=True)),
                )
            ),
        ),
        Field("include_synonyms", BOOLEAN, since=1),
        Field("include_documentation", BOOLEAN, since=3),
    ),
    Struct(
        Field("throttle_time_ms", INT32),
        Field(
            "results",
            array(
                Struct(
                    Field("error_code", INT16),
                    Field("error_message", NULLABLE_STRING),
                    Field("resource_type", INT8),
                    Field("resource_name", STRING),
                    Field(
                        "configs",
                        array(
                            Struct(
                                Field("name", STRING),
                                Field("value", NULLABLE_STRING),
                                Field("read_only", BOOLEAN),
                                Field("is_default", BOOLEAN, until=0),
                                Field("config_source", INT8, since=1, default=-1),
                                Field("is_sensitive", BOOLEAN),
                                Field(
                                    "synonyms",
                                    array(
                                        Struct(
                                            Field("name", STRING),
                                            Field("value", NULLABLE_STRING),
                                            Field("source", INT8),
                                        )
                                    ),
                                    since=1,
                                ),
                                Field("config_type", INT8, since=3),
                                Field("documentation", NULLABLE_STRING, since=3),
                            )
                        ),
                    ),
                )
            ),
        ),
    ),
)

ADMIN_APIS = (CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, DESCRIBE_CONFIGS)
