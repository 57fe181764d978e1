"""What the scheduler measures of itself."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.scheduler.core.fleet import Fleet, NodeState


class SchedulerMetrics:
    """One set per service, on its registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        fine = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
        self.deciding = Histogram(
            "meridian_scheduler_deciding_seconds",
            "Time of the decisions of a cycle",
            registry=registry,
            buckets=fine,
        )
        self.cycle = Histogram(
            "meridian_scheduler_cycle_seconds",
            "Time of a whole cycle with its transaction",
            registry=registry,
            buckets=fine,
        )
        self.recording = Histogram(
            "meridian_scheduler_recording_seconds",
            "Time of a cycle that the journal takes; writing it out is beside the cycles",
            registry=registry,
            buckets=(0.00001, 0.0001, *fine),
        )
        self.journal = Histogram(
            "meridian_scheduler_journal_write_seconds",
            "Time in which a chunk of the journal is packed and written, beside the cycles",
            registry=registry,
            buckets=fine,
        )
        self.decisions = Counter(
            "meridian_scheduler_decisions_total", "Units decided about, by result", ("result",), registry=registry
        )
        self.pending = Gauge("meridian_scheduler_pending_units", "Units in the queue", registry=registry)
        self.running = Gauge("meridian_scheduler_running_runs", "Runs that have not ended", registry=registry)
        self.placed_after = Histogram(
            "meridian_scheduler_submitted_to_placed_seconds",
            "Time from a job's submission to the first placing of each of its units",
            registry=registry,
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600),
        )
        self.asleep = Gauge(
            "meridian_scheduler_asleep_nodes",
            "Nodes that sleep, while the policy puts them to sleep",
            registry=registry,
        )
        self.asleep_s = Counter(
            "meridian_scheduler_asleep_node_seconds_total",
            "Time that nodes slept, summed over nodes",
            registry=registry,
        )
        self.finished = Counter(
            "meridian_scheduler_jobs_finished_total", "Jobs by outcome", ("outcome",), registry=registry
        )

    def slept(self, fleet: Fleet, seconds: float) -> None:
        """Count the nodes that sleep, and the time since they were counted last."""
        asleep = sum(node.state is NodeState.ASLEEP for node in fleet.nodes.values())
        self.asleep.set(asleep)
        self.asleep_s.inc(asleep * max(seconds, 0.0))
