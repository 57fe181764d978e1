"""Schedules of Batsim reproduced start by start: is our backfilling the one that others run?

Steps:
1. The platform has as many hosts as the schedule names, each for one process; the policy judges no node better than another,
   so that the first hosts are taken, as Batsim's schedulers do.
2. The jobs run with their declared times as estimates through the real core, in the simulator.
3. Each start is compared with the one of the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.scheduler.core.policy import Policy
from simulation.engine import Simulation
from simulation.model import Network, SimDomain, SimNode
from simulation.setting import Setting
from simulation.traces import TraceError, batsim_schedule
from simulation.traces.reading import read_text, table


@dataclass(frozen=True, slots=True)
class StartDifference:
    """A job's start in the schedule and ours (s)."""

    job_id: str
    expected_s: float
    found_s: float

    @property
    def difference_s(self) -> float:
        """How much later ours is."""
        return self.found_s - self.expected_s


def hosts_of(path: Path | str) -> int:
    """The number of hosts that a schedule was made for: the greatest number in ``allocated_resources``, and one."""
    text, _ = read_text(path)
    most = -1
    for row in table(path, text, ("allocated_resources",)):
        content = row.text("allocated_resources")
        try:
            most = max(most, *(int(number) for part in content.split() for number in part.split("-")))
        except ValueError:
            raise row.error("allocated_resources", f"is not a list of hosts: {content!r}") from None
    if most < 0:
        raise TraceError("no job has hosts", path=path)
    return most + 1


def compare_starts(path: Path | str, discipline: str) -> list[StartDifference]:
    """Every job of a Batsim schedule under our ``discipline`` ("easy" or "conservative"), in the order of the file."""
    schedule = batsim_schedule(path)
    hosts = [SimNode(f"host-{number:06d}", "batsim", 1.0, 0) for number in range(hosts_of(path))]
    policy = Policy(
        name=f"batsim-{discipline}",
        filters=("up", "capacity"),
        scores=(),
        order=("age",),
        discipline=discipline,
        estimate="limit",
    )
    setting = Setting(policy.name, policy, "declared")
    measures = Simulation(Network([SimDomain("batsim", hosts)]), schedule.trace, setting).run()
    found = {job.job_id: job.first_start_s for job in measures.jobs}
    return [StartDifference(job.job_id, schedule.start_s[job.job_id], found[job.job_id]) for job in schedule.trace.jobs]
