"""How fast node failures are declared, and how often falsely: `python bench/failover.py [--minutes M] [--json OUT]`.

Virtual time (setting "simulated"): 5 domains of 20 nodes at 5 Hz. Five networks, from clean to bursts and partitions of
whole domains (in `process_exits` agents see that a process is gone); the same beats go to the detector of
`services/failover` and to fixed timeouts on the same silence, 5 s (torchft's lighthouse: pytorch/torchft src/lib.rs,
heartbeat_timeout_ms) and 10 s (Ray's period x threshold is longer). An episode is one death of one node; a false alarm
is a declaration while the node was alive. A death behind a partition can be known only when it ends: a detector that is
faster there declares everything behind it dead.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath

sys.path.insert(0, str(FilePath(__file__).parent.parent))

from bench.heartbeat_network import Path, SimulatedDomain, simulate
from bench.result import Row, Setting, command_line, print_table, write
from services.failover.beliefs import Evidence, Summary, Thresholds
from services.failover.detector import Detector
from services.failover.transitions import NodeDied, Transition

DOMAINS, NODES = 5, 20
SETTLE_S = 10.0
DAY_S = 86_400.0


@dataclass
class FixedTimeout:
    """A node is dead when nothing has been heard of it for ``timeout_s``, and alive when it is heard again."""

    timeout_s: float
    heard_s: dict[tuple[str, str], float] = field(default_factory=dict)
    dead: set[tuple[str, str]] = field(default_factory=set)

    def observe(self, summary: Summary, now_s: float) -> bool:
        """Note when each node was heard."""
        for beat in summary.beats:
            self.heard_s[summary.domain_id, beat.node_id] = now_s - beat.age_s
        return True

    def tick(self, now_s: float) -> Iterable[Transition]:
        """Nodes that crossed the timeout."""
        for (domain_id, node_id), heard_s in self.heard_s.items():
            silent = now_s - heard_s >= self.timeout_s
            if silent and (domain_id, node_id) not in self.dead and now_s > SETTLE_S / 2:
                self.dead.add((domain_id, node_id))
                yield NodeDied(domain_id, node_id, 1, heard_s, Evidence.SILENT, False, ())
            elif not silent:
                self.dead.discard((domain_id, node_id))


@dataclass(frozen=True)
class Network:
    """A named network between nodes, agents and failover."""

    name: str
    to_agent: Path
    to_failover: Path
    # Partitions of whole domains per hour, 3-10 s each.
    partitions_per_hour: float = 0.0
    sees_exits: bool = False


NETWORKS = (
    Network("process_exits", Path(0.001, 0.01, loss=0.05), Path(0.06, 0.05, loss=0.05), sees_exits=True),
    Network("clean", Path(0.001, 0.001), Path(0.03, 0.005)),
    Network("loss_5_percent", Path(0.001, 0.01, loss=0.05), Path(0.06, 0.05, loss=0.05)),
    Network(
        "bursts",
        Path(0.001, 0.02, loss=0.05, burst_every_s=120, burst_s=0.3),
        Path(0.06, 0.1, loss=0.05, burst_every_s=60, burst_s=0.5),
    ),
    Network("partitions", Path(0.001, 0.01, loss=0.01), Path(0.06, 0.05, loss=0.05), partitions_per_hour=30),
)


def make_domains(network: Network, end_s: float, seed: int) -> list[SimulatedDomain]:
    """Domains whose nodes each die about every 15 minutes for 20 s."""
    chance = random.Random(f"{seed}/{network.name}")
    domains = []
    for number in range(DOMAINS):
        nodes = tuple(f"d{number}-n{index}" for index in range(NODES))
        outages = {}
        for node in nodes:
            times, at_s = [], SETTLE_S + chance.uniform(0, 900)
            while at_s < end_s - 60:
                times.append((at_s, at_s + 20.0))
                at_s += chance.uniform(600, 1200)
            outages[node] = times
        partitions = []
        if network.partitions_per_hour > 0:
            at_s = SETTLE_S + chance.expovariate(network.partitions_per_hour / 3600)
            while at_s < end_s - 60:
                partitions.append((at_s, at_s + chance.uniform(3, 10)))
                at_s += 30 + chance.expovariate(network.partitions_per_hour / 3600)
        domains.append(
            SimulatedDomain(
                f"d{number}",
                nodes,
                network.to_agent,
                network.to_failover,
                outages=outages,
                partitions=partitions,
                sees_exits=network.sees_exits,
            )
        )
    return domains


@dataclass(frozen=True)
class Outcome:
    """What a detector did on one network."""

    delays_s: list[float]
    episodes: int
    false_alarms: int
    node_days: float


def judge(domains: Sequence[SimulatedDomain], found: Iterable[tuple[float, Transition]], end_s: float) -> Outcome:
    """Match declarations to deaths. A death is detected by a declaration before the node is back."""
    outages = {node: times for domain in domains for node, times in domain.outages.items()}
    detected: dict[tuple[str, float], float] = {}
    false_alarms = 0
    for at_s, transition in found:
        if not isinstance(transition, NodeDied):
            continue
        # A restart noticed only by its new incarnation is a detection too, if a late one.
        current = next((start for start, stop in outages[transition.node_id] if start <= at_s < stop + 3.0), None)
        if current is None:
            false_alarms += 1
        else:
            detected.setdefault((transition.node_id, current), at_s - current)
    episodes = sum(len(times) for times in outages.values())
    return Outcome(sorted(detected.values()), episodes, false_alarms, len(outages) * end_s / DAY_S)


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest of the sorted ``values`` that at least ``share`` of them do not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else None


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    if n == 0:
        return 0.0, 1.0
    z, p = 1.959964, hits / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def poisson_upper(count: int) -> float:
    """Upper end of the 95 % interval of a Poisson count (Wilson-Hilferty; exact to 1 % here)."""
    n = count + 1
    return float(n * (1 - 1 / (9 * n) + 1.959964 / (3 * math.sqrt(n))) ** 3)


def rows_of(subject: str, network: str, outcome: Outcome, *, baseline: bool) -> list[Row]:
    """The figures of one detector on one network."""
    n, found = outcome.episodes, len(outcome.delays_s)
    low, high = wilson(found, n)
    rows = [
        Row(subject, f"detection_{name}_s", quantile(outcome.delays_s, share), network, n=found, baseline=baseline)
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]
    rows.append(Row(subject, "detected_ratio", found / n if n else None, network, low, high, n, baseline))
    rate = outcome.false_alarms / outcome.node_days
    upper = poisson_upper(outcome.false_alarms) / outcome.node_days
    rows.append(
        Row(subject, "false_alarms_per_node_day", rate, network, 0.0 if rate == 0 else None, upper, 1, baseline)
    )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all detectors on all networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="virtual minutes per network (default 30)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="OUT", help="write the result in the form of bench/result.py")
    options = parser.parse_args(arguments)
    end_s = options.minutes * 60
    rows: list[Row] = []
    for network in NETWORKS:
        for subject, baseline in (("meridian", False), ("fixed_5_s", True), ("fixed_10_s", True)):
            listener: Detector | FixedTimeout
            if subject == "meridian":
                listener = Detector(Thresholds(), 0.0)
            else:
                listener = FixedTimeout(float(subject.split("_")[1]))
            domains = make_domains(network, end_s, options.seed)
            found = simulate(domains, listener, end_s, seed=options.seed)
            rows += rows_of(subject, network.name, judge(domains, found, end_s), baseline=baseline)
    print_table(rows)
    if options.json:
        command = command_line("bench.failover", arguments)
        write(options.json, command, [], options.seed, Setting.SIMULATED, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
