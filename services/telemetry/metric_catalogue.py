"""The metrics that are accepted: the 12 core metrics in four dimensions, and a few that support them.

Ranges are physical limits with room, not expectations: a value outside is an error of measurement or of unit (among them
the blank values of exporters, such as DCGM's 9223372036854775794). Names and units follow OpenTelemetry ``hw.*`` and
``system.*`` where it has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf


class Dimension(StrEnum):
    """The four dimensions of sensing."""

    COMPUTE = "compute"
    STORAGE = "storage"
    NETWORK = "network"
    STATE = "state"


class Scope(StrEnum):
    """What a reading may be about."""

    ACCELERATOR = "accelerator"
    NODE = "node"
    DOMAIN = "domain"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. ``core`` is its number among the 12 core metrics, 0 for a supporting one.

    ``counter``: it only grows, and stands still only when nothing happens. ``stale_after_s``: a value that is older says
    nothing about the present.
    """

    name: str
    core: int
    dimension: Dimension
    unit: str
    minimum: float
    maximum: float
    statistic: str
    stale_after_s: float
    scopes: frozenset[Scope]
    meaning: str
    counter: bool = False
    # The metric that this one must not exceed; empty: none.
    limit_metric: str = ""
    # Whether it is read of accelerators and of nodes: of `scopes`, which are asked for every reading.
    of_accelerators: bool = field(init=False)
    of_nodes: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_accelerators", Scope.ACCELERATOR in self.scopes)
        object.__setattr__(self, "of_nodes", Scope.NODE in self.scopes)


_CHIP = frozenset({Scope.ACCELERATOR, Scope.NODE})
_NODE = frozenset({Scope.NODE})
_ANY = frozenset({Scope.ACCELERATOR, Scope.NODE, Scope.DOMAIN})
_PLACE = frozenset({Scope.NODE, Scope.DOMAIN})
_COMPUTE, _STORAGE, _NETWORK, _STATE = Dimension.COMPUTE, Dimension.STORAGE, Dimension.NETWORK, Dimension.STATE
_FAST_S, _SLOW_S = 60.0, 300.0

METRICS: Mapping[str, MetricSpec] = {
    spec.name: spec
    for spec in (
        MetricSpec("hw.gpu.utilization", 1, _COMPUTE, "1", 0, 1, "mean", _FAST_S, _CHIP, "share of time it computes"),
        MetricSpec(
            "cpn.compute.effective", 2, _COMPUTE, "FLOP/s", 0, 1e18, "mean", _FAST_S, _CHIP,
            "share of time of the matrix units times the peak of the catalogue",
        ),
        MetricSpec(
            "cpn.compute.capacity_free", 3, _COMPUTE, "1", 0, 1, "current", _FAST_S, _CHIP,
            "share that nobody has allocated; not derived from utilisation",
        ),
        MetricSpec("hw.gpu.memory.usage", 4, _STORAGE, "By", 0, 2**44, "current", _FAST_S, _CHIP, "device memory used", limit_metric="hw.gpu.memory.limit"),
        MetricSpec("hw.gpu.memory.limit", 4, _STORAGE, "By", 0, 2**44, "current", _SLOW_S, _CHIP, "device memory"),
        MetricSpec(
            "cpn.memory.bandwidth_utilization", 5, _STORAGE, "1", 0, 1, "mean", _FAST_S, _CHIP,
            "share of time the device memory moves data",
        ),
        MetricSpec("cpn.storage.free", 6, _STORAGE, "By", 0, 1e18, "current", _FAST_S, _PLACE, "free file storage"),
        MetricSpec("cpn.storage.io", 6, _STORAGE, "By/s", 0, 1e13, "mean", _FAST_S, _PLACE, "read and written"),
        MetricSpec("cpn.net.rtt", 7, _NETWORK, "s", 0, 60, "current", _FAST_S, _PLACE, "round trip to another domain"),
        MetricSpec(
            "cpn.net.bandwidth_available", 8, _NETWORK, "bit/s", 0, 1e15, "mean", _FAST_S, _PLACE,
            "nominal speed less traffic",
        ),
        MetricSpec(
            "cpn.interconnect.io", 9, _NETWORK, "By/s", 0, 1e14, "mean", _FAST_S, _CHIP,
            "NVLink, HCCS, XGMI, MLULink, both directions",
        ),
        MetricSpec(
            "cpn.health", 10, _STATE, "1", 0, 1, "current", _FAST_S, _ANY, "1 ok, 0.5 degraded, 0 failed",
        ),
        MetricSpec("hw.power", 11, _STATE, "W", 0, 1e6, "current", _FAST_S, _ANY, "electrical power"),
        MetricSpec("hw.energy", 11, _STATE, "J", 0, inf, "current", _FAST_S, _ANY, "energy used", counter=True),
        MetricSpec("cpn.queue.depth", 12, _STATE, "{run}", 0, 1e9, "current", _FAST_S, _PLACE, "work that waits"),
        MetricSpec(
            "cpn.availability", 12, _STATE, "1", 0, 1, "mean", _SLOW_S, _PLACE, "share of 30 days that it was up",
        ),
        MetricSpec("hw.temperature", 0, _STATE, "Cel", -40, 150, "current", _FAST_S, _ANY, "temperature of the chip"),
        MetricSpec("system.cpu.utilization", 0, _COMPUTE, "1", 0, 1, "mean", _FAST_S, _NODE, "of all processors"),
        MetricSpec("system.cpu.load_average.1m", 0, _COMPUTE, "1", 0, 1e6, "mean", _FAST_S, _NODE, "waiting threads"),
        MetricSpec("system.memory.usage", 0, _STORAGE, "By", 0, 2**50, "current", _FAST_S, _NODE, "main memory used", limit_metric="system.memory.limit"),
        MetricSpec("system.memory.limit", 0, _STORAGE, "By", 0, 2**50, "current", _SLOW_S, _NODE, "main memory"),
        MetricSpec("system.network.io", 0, _NETWORK, "By/s", 0, 1e14, "mean", _FAST_S, _NODE, "both directions"),
        MetricSpec("system.boot_time", 0, _STATE, "s", 0, 1e11, "current", _SLOW_S, _NODE, "Unix time of the start"),
    )
}  # fmt: skip

# A used amount must not exceed its limit.
LIMIT_OF: Mapping[str, str] = {spec.name: spec.limit_metric for spec in METRICS.values() if spec.limit_metric}
# Shows that a device works, so that its counters must move.
ACTIVITY_METRIC = "hw.gpu.utilization"
