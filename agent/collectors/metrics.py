"""Canonical metrics with their units (UCUM, as in OpenTelemetry): 12 core metrics in four dimensions, and the host's own.

``HEALTH`` is 1 for ok, 0.5 for degraded, 0 for failed; unknown health has no value, as every unknown.
"""

from __future__ import annotations

from enum import StrEnum

HEALTH_OK = 1.0
HEALTH_DEGRADED = 0.5
HEALTH_FAILED = 0.0


class Metric(StrEnum):
    """Canonical names."""

    # compute
    GPU_UTILIZATION = "hw.gpu.utilization"
    COMPUTE_EFFECTIVE = "cpn.compute.effective"
    CAPACITY_FREE = "cpn.compute.capacity_free"
    CPU_UTILIZATION = "system.cpu.utilization"
    CPU_LOAD = "system.cpu.load_average.1m"
    # memory and storage
    GPU_MEMORY_USAGE = "hw.gpu.memory.usage"
    GPU_MEMORY_LIMIT = "hw.gpu.memory.limit"
    MEMORY_BANDWIDTH_UTILIZATION = "cpn.memory.bandwidth_utilization"
    STORAGE_FREE = "cpn.storage.free"
    STORAGE_IO = "cpn.storage.io"
    MEMORY_USAGE = "system.memory.usage"
    MEMORY_LIMIT = "system.memory.limit"
    # network
    NET_RTT = "cpn.net.rtt"
    NET_BANDWIDTH_AVAILABLE = "cpn.net.bandwidth_available"
    INTERCONNECT_IO = "cpn.interconnect.io"
    NETWORK_IO = "system.network.io"
    # state
    HEALTH = "cpn.health"
    POWER = "hw.power"
    ENERGY = "hw.energy"
    TEMPERATURE = "hw.temperature"
    QUEUE_DEPTH = "cpn.queue.depth"
    AVAILABILITY = "cpn.availability"
    BOOT_TIME = "system.boot_time"


UNITS: dict[Metric, str] = {
    Metric.GPU_UTILIZATION: "1",
    Metric.COMPUTE_EFFECTIVE: "FLOP/s",
    Metric.CAPACITY_FREE: "1",
    Metric.CPU_UTILIZATION: "1",
    Metric.CPU_LOAD: "1",
    Metric.GPU_MEMORY_USAGE: "By",
    Metric.GPU_MEMORY_LIMIT: "By",
    Metric.MEMORY_BANDWIDTH_UTILIZATION: "1",
    Metric.STORAGE_FREE: "By",
    Metric.STORAGE_IO: "By/s",
    Metric.MEMORY_USAGE: "By",
    Metric.MEMORY_LIMIT: "By",
    Metric.NET_RTT: "s",
    Metric.NET_BANDWIDTH_AVAILABLE: "bit/s",
    Metric.INTERCONNECT_IO: "By/s",
    Metric.NETWORK_IO: "By/s",
    Metric.HEALTH: "1",
    Metric.POWER: "W",
    Metric.ENERGY: "J",
    Metric.TEMPERATURE: "Cel",
    Metric.QUEUE_DEPTH: "{run}",
    Metric.AVAILABILITY: "1",
    Metric.BOOT_TIME: "s",
}

# The 12 core metrics by their number: four dimensions (compute, storage, network, state) of three.
CORE: dict[int, tuple[Metric, ...]] = {
    1: (Metric.GPU_UTILIZATION,),
    2: (Metric.COMPUTE_EFFECTIVE,),
    3: (Metric.CAPACITY_FREE,),
    4: (Metric.GPU_MEMORY_USAGE, Metric.GPU_MEMORY_LIMIT),
    5: (Metric.MEMORY_BANDWIDTH_UTILIZATION,),
    6: (Metric.STORAGE_FREE, Metric.STORAGE_IO),
    7: (Metric.NET_RTT,),
    8: (Metric.NET_BANDWIDTH_AVAILABLE,),
    9: (Metric.INTERCONNECT_IO,),
    10: (Metric.HEALTH,),
    11: (Metric.POWER, Metric.ENERGY),
    12: (Metric.QUEUE_DEPTH, Metric.AVAILABILITY),
}
# Which of them say something of an accelerator, and which of a node or a domain.
OF_ACCELERATORS: tuple[Metric, ...] = tuple(metric for number in (1, 2, 3, 4, 5, 9, 10, 11) for metric in CORE[number])
OF_NODES: tuple[Metric, ...] = tuple(metric for number in (6, 7, 8, 12) for metric in CORE[number])
