"""The values a simulation is about: jobs of a trace, and the domains they run on. Loaders make them; nothing here decides.

Times are seconds from the beginning of the trace. NaN means "unknown"; a loader never writes NaN where a value is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

UNKNOWN = float("nan")
MOST_NODES = 1_000_000
"""Of a group of nodes."""
MOST_ACCELERATORS = 1024
"""Of a node."""


@dataclass(slots=True)
class TraceJob:
    """One job of a trace.

    A job is ``ranks`` processes, each with ``accelerators`` devices (``device_share`` of each, 1.0 = whole), ``cpus`` and
    ``memory_bytes``, all started together. ``duration_s`` is its run time undisturbed, with this many ranks, on the
    reference chip (rate 1). A job with a ``profile`` does ``work`` units (steps, samples) instead, and its rate on a chip
    and rank count comes from the `Throughputs` of the trace; ``duration_s`` is then that on its reference chip.
    ``estimate_s`` is what the user declared (a limit), NaN when there is none.
    """

    job_id: str
    submit_s: float
    duration_s: float
    ranks: int = 1
    accelerators: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0
    device_share: float = 1.0
    estimate_s: float = UNKNOWN
    tenant: str = "default"
    user: str = ""
    name: str = ""
    home_domain: str = ""
    priority: int = 0
    accelerator_types: tuple[str, ...] = ()
    profile: str = ""
    work: float = 0.0
    min_ranks: int = 0
    max_ranks: int = 0
    deadline_s: float = UNKNOWN
    value: float = 1.0
    preemptible: bool = True
    checkpoint_interval_s: float = UNKNOWN
    restart_cost_s: float = UNKNOWN
    data_domain: str = ""
    data_bytes: float = 0.0
    cross_domain: bool = False
    traffic_bytes_per_s: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def devices(self) -> float:
        """Accelerators over all ranks, counting shares."""
        return self.ranks * self.accelerators * self.device_share


@dataclass(slots=True)
class Trace:
    """Jobs in order of submission, and what is known about rates. ``skipped`` counts lines left out, by reason; ``places`` are file
    and line of each job that was read from a text, by its id."""

    name: str
    jobs: list[TraceJob]
    throughputs: Throughputs | None = None
    skipped: dict[str, int] = field(default_factory=dict)
    sha256: str = ""
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict, compare=False, repr=False)

    def skipped_text(self) -> str:
        """For people: ``3 lines are no work: no processors: 1, zero duration: 2``; empty when nothing was left out."""
        if not self.skipped:
            return ""
        reasons = ", ".join(f"{reason}: {count}" for reason, count in self.skipped.items())
        return f"{sum(self.skipped.values())} lines are no work: {reasons}"

    def place(self, job_id: str) -> str:
        """Where a job stands, to begin an error with: ``trace.csv, line 7: ``, or nothing where that is not known."""
        found = self.places.get(job_id)
        return f"{found[0]}, line {found[1]}: " if found is not None else ""


class Throughputs:
    """Rates of profiles on chips: work units per second of a whole job, by (profile, ranks) and accelerator model.

    ``rates[profile, ranks][model]``; a missing model means that the profile does not run there (memory, no build).
    ``pairs[profile, ranks, model][other_profile, other_ranks]`` is (own rate, other's rate) when both share the devices.
    """

    def __init__(self) -> None:
        self.rates: dict[tuple[str, int], dict[str, float]] = {}
        self.pairs: dict[tuple[str, int, str], dict[tuple[str, int], tuple[float, float]]] = {}

    def rate(self, profile: str, ranks: int, model: str) -> float:
        """Work units per second; 0.0 where it does not run. Rank counts between known ones are interpolated linearly,
        beyond the greatest known one the rate stays."""
        known = self.rates.get((profile, ranks))
        if known is not None:
            return known.get(model, 0.0)
        counts = sorted(count for name, count in self.rates if name == profile)
        if not counts:
            return 0.0
        if ranks <= counts[0]:
            return self.rates[profile, counts[0]].get(model, 0.0) * ranks / counts[0]
        above = next((count for count in counts if count > ranks), None)
        below = max(count for count in counts if count < ranks)
        low = self.rates[profile, below].get(model, 0.0)
        if above is None:
            return low
        high = self.rates[profile, above].get(model, 0.0)
        return low + (high - low) * (ranks - below) / (above - below)


@dataclass(slots=True)
class SimNode:
    """A node: ``accelerators`` devices of one ``model``. Watts include the whole node; asleep nodes draw ``sleep_watts``."""

    node_id: str
    domain_id: str
    cpus: float
    memory_bytes: int
    accelerators: int = 0
    model: str = ""
    vendor: str = ""
    rack: str = ""
    spine: str = ""
    idle_watts: float = 0.0
    busy_watts_per_accelerator: float = 0.0
    sleep_watts: float = 0.0
    wake_s: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class SimDomain:
    """A domain: prices in micro-units of ``currency``; ``carbon_g_per_kwh`` by hour of the day (24 values) or constant.

    ``spot`` names an availability series: (seconds, number of accelerators available), stepwise; empty means all, always.
    ``burst`` says that the domain is rented capacity used only when the others are full.
    """

    domain_id: str
    nodes: list[SimNode]
    region: str = ""
    security_level: int = 0
    price_micro_units: int = 0
    currency: str = "USD"
    carbon_g_per_kwh: tuple[float, ...] = (0.0,)
    electricity_micro_units_per_kwh: int = 0
    spot: tuple[tuple[float, int], ...] = ()
    burst: bool = False
    mtbf_node_s: float = UNKNOWN
    mttr_node_s: float = 1800.0


@dataclass(slots=True)
class SimLink:
    """From a domain to another, one way: price per GiB moved (egress), bandwidth, round-trip time."""

    from_domain: str
    to_domain: str
    bandwidth_bytes_per_s: float
    rtt_s: float = 0.0
    price_micro_units_per_gib: int = 0


@dataclass(slots=True)
class Network:
    """Everything the jobs may run on."""

    domains: list[SimDomain]
    links: list[SimLink] = field(default_factory=list)
    name: str = ""
    sha256: str = ""

    @property
    def nodes(self) -> list[SimNode]:
        """All nodes, by domain."""
        return [node for domain in self.domains for node in domain.nodes]

    @property
    def accelerators(self) -> int:
        """All accelerators."""
        return sum(node.accelerators for node in self.nodes)
