"""Answers about the network, for the OpenAPI document: domains, nodes, links, forecasts, incidents."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from services.gateway.api.answers import Money


class Domain(BaseModel):
    """A member of the network."""

    domain_id: str
    name: str
    region: str
    owner: str
    emulated: bool
    security_level: int
    price_per_accelerator_hour: Money | None
    carbon_g_per_kwh: float | None
    reachable: bool
    nodes: int
    nodes_by_state: dict[str, int]
    accelerators: int
    cpus: float
    memory_bytes: int
    version: int
    updated_at: datetime | None


class AcceleratorPart(BaseModel):
    """A part that an accelerator is divided into; index 0: it takes no work."""

    id: str
    profile: str
    memory_bytes: int
    index: int
    peak_flops: float | None


class Accelerator(BaseModel):
    """A chip of a node. While it is partitioned its parts take work in its place."""

    index: int
    compute_id: str
    vendor: str
    model: str
    memory_bytes: int
    peak_flops: float | None
    emulated: bool
    aliases: dict[str, str]
    partitioned: bool = False
    parts: list[AcceleratorPart] = []


class Node(BaseModel):
    """A machine."""

    node_id: str
    domain_id: str
    compute_id: str
    state: str
    state_reason: str
    certified: bool
    cpus: float | None
    memory_bytes: int
    site: str
    address: str
    labels: dict[str, str]
    accelerators: list[Accelerator]
    user_resources: list[dict[str, Any]] = Field(
        default=[],
        description="what the node has of resources that users define; a value that is not known has a reason",
    )
    metrics: dict[str, float | None]
    expected_load: float | None = Field(
        default=None, description="utilisation one observation later, 0-1, by the model"
    )
    updated_at: datetime | None


class StateReading(BaseModel):
    """A value that the state of a node rests on; no index: of the node as a whole."""

    metric: str
    accelerator_index: int | None
    value: float
    observed_at: datetime | None


class ModelWord(BaseModel):
    """What the model of node states said last, whoever decided."""

    name: str
    state: str
    confidence: float


class NodeStateView(BaseModel):
    """Why a node is in its state."""

    node_id: str
    domain_id: str
    state: str
    state_reason: str
    rule: str = Field(description="the rule that decided, or model-STATE")
    state_since: datetime | None
    certified: bool
    expected_load: float | None = None
    model: ModelWord | None = Field(default=None, description="null: no model, or nothing said yet")
    bad_readings: list[str]
    readings: list[StateReading]


class Link(BaseModel):
    """A way between two domains."""

    from_domain_id: str
    to_domain_id: str
    rtt_s: float | None
    bandwidth_bytes_per_s: float | None
    price_per_gb: Money | None
    emulated: bool
    loss: float | None
    measured_at: datetime | None = Field(default=None, description="by probes; null: declared")


class Graph(BaseModel):
    """The network at one look."""

    version: int
    domains: list[Domain]
    nodes: list[Node]
    links: list[Link]


class ForecastPoint(BaseModel):
    """Expected demand after a time, with the 80 % band."""

    horizon_s: float | None
    expected: float | None
    low: float | None
    high: float | None


class Forecast(BaseModel):
    """Expected demand for accelerators."""

    subject_kind: str
    subject_id: str
    made_at: datetime | None
    method: str
    current: float | None
    points: list[ForecastPoint]
    history_windows: int
    window_s: float | None


class RecoveredRun(BaseModel):
    """A run that an incident took."""

    run_id: str
    job_id: str
    unit_index: int
    epoch: int
    restore_from: str
    restore_step: int
    reason: str
    planned_at: datetime | None


class Incident(BaseModel):
    """A failure of a node or of the way to a domain."""

    incident_id: str
    domain_id: str
    node_id: str
    state: Literal["suspected", "failed", "unreachable", "recovered", "forgotten"]
    reason: str
    opened_at: datetime | None
    updated_at: datetime | None
    closed_at: datetime | None
    recoveries: int
    runs: list[RecoveredRun]


class Killed(BaseModel):
    """A node was told to fail."""

    node_id: str
    domain_id: str
    requested_at: datetime
