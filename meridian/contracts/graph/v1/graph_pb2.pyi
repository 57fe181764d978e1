import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from meridian.contracts.options.v1 import options_pb2 as _options_pb2
from meridian.contracts.resource.v1 import resource_pb2 as _resource_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_STATE_UNSPECIFIED: _ClassVar[NodeState]
    NODE_STATE_HEALTHY: _ClassVar[NodeState]
    NODE_STATE_BUSY: _ClassVar[NodeState]
    NODE_STATE_DEGRADED: _ClassVar[NodeState]
    NODE_STATE_FAILING: _ClassVar[NodeState]
    NODE_STATE_UNREACHABLE: _ClassVar[NodeState]
    NODE_STATE_ASLEEP: _ClassVar[NodeState]
    NODE_STATE_FAILED: _ClassVar[NodeState]
NODE_STATE_UNSPECIFIED: NodeState
NODE_STATE_HEALTHY: NodeState
NODE_STATE_BUSY: NodeState
NODE_STATE_DEGRADED: NodeState
NODE_STATE_FAILING: NodeState
NODE_STATE_UNREACHABLE: NodeState
NODE_STATE_ASLEEP: NodeState
NODE_STATE_FAILED: NodeState

class GraphNode(_message.Message):
    __slots__ = ("inventory", "state", "state_reason", "metrics", "certified", "expected_load")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_LOAD_FIELD_NUMBER: _ClassVar[int]
    inventory: _resource_pb2.NodeInventory
    state: NodeState
    state_reason: str
    metrics: _containers.ScalarMap[str, float]
    certified: bool
    expected_load: float
    def __init__(self, inventory: _Optional[_Union[_resource_pb2.NodeInventory, _Mapping]] = ..., state: _Optional[_Union[NodeState, str]] = ..., state_reason: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ..., certified: _Optional[bool] = ..., expected_load: _Optional[float] = ...) -> None: ...

class GraphUpdated(_message.Message):
    __slots__ = ("domain_id", "version", "full", "domain", "nodes", "removed_node_ids", "links", "oldest_reading_at", "updated_at")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_READING_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    version: int
    full: bool
    domain: _resource_pb2.DomainInventory
    nodes: _containers.RepeatedCompositeFieldContainer[GraphNode]
    removed_node_ids: _containers.RepeatedScalarFieldContainer[str]
    links: _containers.RepeatedCompositeFieldContainer[_resource_pb2.Link]
    oldest_reading_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    def __init__(self, domain_id: _Optional[str] = ..., version: _Optional[int] = ..., full: _Optional[bool] = ..., domain: _Optional[_Union[_resource_pb2.DomainInventory, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[GraphNode, _Mapping]]] = ..., removed_node_ids: _Optional[_Iterable[str]] = ..., links: _Optional[_Iterable[_Union[_resource_pb2.Link, _Mapping]]] = ..., oldest_reading_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class NodeStateChanged(_message.Message):
    __slots__ = ("domain_id", "node_id", "previous", "state", "reason", "rule", "version", "changed_at")
    DOMAIN_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    domain_id: str
    node_id: str
    previous: NodeState
    state: NodeState
    reason: str
    rule: str
    version: int
    changed_at: _timestamp_pb2.Timestamp
    def __init__(self, domain_id: _Optional[str] = ..., node_id: _Optional[str] = ..., previous: _Optional[_Union[NodeState, str]] = ..., state: _Optional[_Union[NodeState, str]] = ..., reason: _Optional[str] = ..., rule: _Optional[str] = ..., version: _Optional[int] = ..., changed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
