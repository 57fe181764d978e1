"""What a book holds, by id: every unfinished job with its units and runs, and what is known of them.

What is derived from it (the cluster, promises, estimates that get old) reads it here; `Book` changes it.
"""

from __future__ import annotations

from services.scheduler.core.fleet import Fleet
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.measured import Measured
from services.scheduler.core.run_times import RunTimes
from services.scheduler.core.state import Job, Run, Unit, UnitKey, UnitSpec


class Records:
    """See the module. ``runs_of`` names the runs of a unit that have not ended; ``ledger`` is what they hold."""

    def __init__(self, run_times: RunTimes | None = None) -> None:
        self.jobs: dict[str, Job] = {}
        self.units: dict[UnitKey, Unit] = {}
        self.runs: dict[str, Run] = {}
        self.runs_of: dict[UnitKey, set[str]] = {}
        self.fleet = Fleet()
        self.ledger = Ledger()
        self.run_times = run_times or RunTimes()
        self.measured = Measured()

    def spec_of(self, key: UnitKey) -> UnitSpec:
        """The unchanging part of a unit."""
        return self.jobs[key.job_id].units[key.unit_index]
