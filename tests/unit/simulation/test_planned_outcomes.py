"""What happens to each job under every policy with a planner is pinned: planning faster must not change one of them.

``planned_outcomes.json`` holds a digest per policy, trace and load of every start (when, on which nodes and devices) and of every
end. Among equally good plans it is the solver's choice which it gives, so another version of the solver may need it anew:

    python -m tests.unit.simulation.test_planned_outcomes
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.scheduler.core.running_unit import RunningUnit
from simulation.domains import read_network
from simulation.engine import Simulation
from simulation.model import Network, Throughputs, Trace, TraceJob
from simulation.policies import SETTINGS
from simulation.simulated_job import SimulatedJob
from simulation.traces import limited, load, scaled
from tests.unit.scheduler.plans.small import network as one_node

ROOT = Path(__file__).parents[3]
KNOWN = Path(__file__).with_name("planned_outcomes.json")
NAMES = [name for name, setting in SETTINGS.items() if setting.policy.planner]
LOADS = (0.8, 1.6)
LONGEST_S = 3600.0


def rigid() -> Trace:
    """Jobs of the shipped trace, cut at an hour; nothing is known of accelerators."""
    trace = limited(load(ROOT / "examples" / "traces" / "synthetic.csv", "csv"), jobs=40)
    return replace(trace, jobs=[replace(job, duration_s=min(job.duration_s, LONGEST_S)) for job in trace.jobs])


def elastic() -> Trace:
    """Jobs with rates on two unlike accelerators, every other one of 1 to 4 ranks, every third with a deadline."""
    draw = np.random.default_rng(5)
    rates = Throughputs()
    for profile, (speed, slower, gain) in enumerate(
        ((1.0, 0.3, 0.9), (2.0, 0.7, 0.7), (0.5, 0.45, 0.95), (1.0, 0.0, 0.8))
    ):
        for ranks in (1, 2, 3, 4):
            grown = speed * ranks**gain
            rates.rates[f"p{profile}", ranks] = {"v100": grown, "t4": grown * slower}
    jobs = []
    for number, at_s in enumerate(np.cumsum(draw.exponential(200.0, 30)).tolist()):
        duration_s = float(draw.uniform(300.0, LONGEST_S))
        kind = f"p{draw.integers(4)}"
        ranks = int(draw.choice([1, 1, 2, 4]))
        work = duration_s * rates.rate(kind, ranks, "v100")
        least, most = (1, 4) if number % 2 else (0, 0)
        deadline_s = at_s + 3.0 * duration_s if number % 3 == 0 else float("nan")
        jobs.append(
            TraceJob(
                f"job-{number}",
                at_s,
                duration_s,
                ranks=ranks,
                accelerators=1,
                profile=kind,
                work=work,
                deadline_s=deadline_s,
                tenant=f"tenant-{number % 3}",
                min_ranks=least,
                max_ranks=most,
            )
        )
    return Trace("elastic", jobs, rates)


def alike() -> Trace:
    """The rigid jobs without data, for a network of one domain."""
    trace = rigid()
    return replace(trace, jobs=[replace(job, data_domain="", data_bytes=0.0, home_domain="") for job in trace.jobs])


TRACES = {"rigid": rigid, "elastic": elastic, "alike": alike}
"""``alike`` is on a single node of eight accelerators, the others on the shipped network of two types."""
CASES = [f"{name} {trace} {load}" for name, trace, load in itertools.product(NAMES, TRACES, LOADS)]


class Recorded(Simulation):
    """A simulation that writes every start down."""

    def __init__(self, network: Network, trace: Trace, name: str) -> None:
        self.starts: list[tuple[str, float, list[tuple[int, tuple[int, ...]]]]] = []
        super().__init__(network, trace, SETTINGS[name])

    def _start(self, item: SimulatedJob, running: RunningUnit) -> None:
        rows = [(int(row), tuple(int(device) for device in devices)) for row, devices in running.rows]
        self.starts.append((item.job.job_id, round(self.now_s, 3), rows))
        super()._start(item, running)


def digest(case: str) -> str:
    name, trace, load_ = case.split()
    if trace == "alike":
        network = one_node({"v100": 8})
    else:
        network = read_network(ROOT / "simulation" / "networks" / "small.yaml")
    simulation = Recorded(network, scaled(TRACES[trace](), network, float(load_)), name)
    ends = [(job.job_id, round(job.finish_s, 3), job.interruptions) for job in simulation.run().jobs]
    return hashlib.sha256(json.dumps([simulation.starts, ends]).encode()).hexdigest()[:16]


@pytest.mark.parametrize("case", CASES)
def test_outcomes_are_what_they_were(case: str) -> None:
    assert digest(case) == json.loads(KNOWN.read_text())[case]


if __name__ == "__main__":
    KNOWN.write_text(json.dumps({case: digest(case) for case in CASES}, indent=2) + "\n")
