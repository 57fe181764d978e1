"""The machine the agent runs on, from psutil: processor, memory, disks, network, load.

Rates come from two samples; the first call therefore knows none. Emulated nodes share one machine: its readings are
given for each of them as they are, since they do share it. What passes through several layers (a container's pair of
interfaces, a bridge and the network card; a volume and its disk) is counted once, at the hardware.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from agent.collectors.base import Collector, Reading, Source, Statistic
from agent.collectors.metrics import Metric
from agent.collectors.unknown import UnknownKind

INTERFACES = Path("/sys/class/net")
DISKS = Path("/sys/block")
NEEDS_TWO_SAMPLES = "a rate needs two samples"
KINDS = {NEEDS_TWO_SAMPLES: UnknownKind.NEEDS_SECOND_SAMPLE, "a counter went back": UnknownKind.COUNTER_RESET}


@dataclass(frozen=True, slots=True)
class HostSample:
    """Counters and gauges of the machine at one moment. ``link_bits_per_s`` 0: no interface says its speed. ``storage_free_bytes``
    None: the file system cannot be read, ``storage_trouble`` says why."""

    cpu_busy_s: float
    cpu_total_s: float
    memory_used_bytes: int
    memory_total_bytes: int
    storage_free_bytes: int | None
    disk_bytes: int
    network_bytes: int
    link_bits_per_s: float
    load_1m: float
    boot_at_s: float
    storage_trouble: str = ""


def in_hardware(names: Iterable[str], devices: Path) -> frozenset[str]:
    """Those of ``names`` that are hardware by Linux's ``devices`` (``/sys/class/net``, ``/sys/block``): others (bridges, veth,
    VLANs, bonds; LVM, RAID, loop) carry the same bytes once more. All where none is: in a container, on another system."""
    known = frozenset(names)
    return frozenset(name for name in known if (devices / name / "device").exists()) or known


def sample_host(storage_path: Path) -> HostSample:
    """Read the machine now. ``storage_path`` names the file system whose free space counts."""
    times = psutil.cpu_times()
    total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    memory = psutil.virtual_memory()
    disks = psutil.disk_io_counters(perdisk=True) or {}
    # A partition is none of the devices; without any, what there is counts.
    whole = {name for name in disks if (DISKS / name.replace("/", "!")).exists()} or set(disks)
    interfaces = {name: state for name, state in psutil.net_if_stats().items() if name != "lo"}
    traffic = psutil.net_io_counters(pernic=True)
    links = in_hardware(interfaces, INTERFACES)
    free_bytes, trouble = _free_storage(storage_path)
    return HostSample(
        cpu_busy_s=total_s - idle_s,
        cpu_total_s=total_s,
        memory_used_bytes=memory.total - memory.available,
        memory_total_bytes=memory.total,
        storage_free_bytes=free_bytes,
        disk_bytes=sum(disks[name].read_bytes + disks[name].write_bytes for name in in_hardware(whole, DISKS)),
        # Also of those that are down: one that comes up again has not carried all it ever did since the sample before.
        network_bytes=sum(traffic[name].bytes_sent + traffic[name].bytes_recv for name in links if name in traffic),
        link_bits_per_s=sum(max(interfaces[name].speed, 0) for name in links if interfaces[name].isup) * 1e6,
        load_1m=os.getloadavg()[0],
        boot_at_s=psutil.boot_time(),
        storage_trouble=trouble,
    )


def _free_storage(path: Path) -> tuple[int | None, str]:
    try:
        return psutil.disk_usage(str(path)).free, ""
    except OSError as error:
        return None, f"{path}: {error.strerror}"


@dataclass(frozen=True, slots=True)
class _Value:
    value: float | None
    reason: str = ""
    statistic: Statistic = Statistic.CURRENT
    source: Source = Source.DIRECTLY_MEASURED
    kind: UnknownKind = UnknownKind.NOT_EXPORTED


def host_values(earlier: HostSample | None, present: HostSample, elapsed_s: float) -> dict[Metric, _Value]:
    """What two samples tell, ``elapsed_s`` apart. A counter that went back (a restart) gives no rate."""

    def rate(counter: Callable[[HostSample], float]) -> _Value:
        if earlier is None or elapsed_s <= 0:
            return _Value(None, NEEDS_TWO_SAMPLES)
        change = counter(present) - counter(earlier)
        if change < 0:
            return _Value(None, "a counter went back")
        return _Value(change / elapsed_s, statistic=Statistic.MEAN)

    def cpu() -> _Value:
        if earlier is None or present.cpu_total_s <= earlier.cpu_total_s:
            return _Value(None, NEEDS_TWO_SAMPLES)
        share = (present.cpu_busy_s - earlier.cpu_busy_s) / (present.cpu_total_s - earlier.cpu_total_s)
        return _Value(min(max(share, 0.0), 1.0), statistic=Statistic.MEAN)

    traffic = rate(lambda sample: sample.network_bytes)
    if not present.link_bits_per_s:
        free_network = _Value(None, "no interface states its speed")
    elif traffic.value is None:
        free_network = _Value(None, traffic.reason)
    else:
        unused = max(present.link_bits_per_s - traffic.value * 8, 0.0)
        free_network = _Value(unused, statistic=Statistic.MEAN, source=Source.ESTIMATION)
    return {
        Metric.CPU_UTILIZATION: cpu(),
        Metric.CPU_LOAD: _Value(present.load_1m, statistic=Statistic.MEAN),
        Metric.MEMORY_USAGE: _Value(present.memory_used_bytes),
        Metric.MEMORY_LIMIT: _Value(present.memory_total_bytes),
        Metric.STORAGE_FREE: _Value(present.storage_free_bytes, present.storage_trouble, kind=UnknownKind.UNAVAILABLE),
        Metric.STORAGE_IO: rate(lambda sample: sample.disk_bytes),
        Metric.NETWORK_IO: traffic,
        Metric.NET_BANDWIDTH_AVAILABLE: free_network,
        Metric.BOOT_TIME: _Value(present.boot_at_s),
    }


class HostCollector(Collector):
    """Readings of this machine for the given nodes. Rates are of the time that passed (``monotonic_s``), whatever the clock was set to
    meanwhile."""

    def __init__(self, node_ids: tuple[str, ...], storage_path: Path, monotonic_s: Callable[[], float]) -> None:
        self._node_ids = node_ids
        self._storage_path = storage_path
        self._monotonic_s = monotonic_s
        self._earlier: tuple[HostSample, float] | None = None

    def collect(self, now: datetime) -> list[Reading]:
        present, at_s = sample_host(self._storage_path), self._monotonic_s()
        earlier, elapsed_s = None, 0.0
        if self._earlier is not None:
            earlier, elapsed_s = self._earlier[0], at_s - self._earlier[1]
        values = host_values(earlier, present, elapsed_s)
        self._earlier = (present, at_s)
        return [
            Reading(
                node_id,
                metric,
                item.value,
                item.source,
                now,
                statistic=item.statistic,
                reason=item.reason,
                kind=KINDS.get(item.reason, item.kind) if item.value is None else None,
            )
            for node_id in self._node_ids
            for metric, item in values.items()
        ]
