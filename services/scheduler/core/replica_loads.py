"""What replicas of services reported of their load, and what was recommended by it of late."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from services.scheduler.core.measured import Load
from services.scheduler.core.scaling import Scaler
from services.scheduler.core.state import UnitKey

FRESH_S = 60.0
"""A replica whose last report is older counts as one that reports nothing."""


@dataclass(slots=True)
class Replicas:
    """What replicas reported last, the scalers of their services, and those of the parts that runs have (``stretches``). A new book begins
    with nothing: the first report of a service begins its window. On two levels ``wished`` are parts that domains were asked for, by
    run, and ``short`` the runs that last got less than they wished."""

    loads: dict[UnitKey, Load] = field(default_factory=dict)
    scalers: dict[str, Scaler] = field(default_factory=dict)
    stretches: dict[str, Scaler] = field(default_factory=dict)
    wished: dict[str, int] = field(default_factory=dict)
    short: set[str] = field(default_factory=set)

    def learn(self, loads: Iterable[tuple[UnitKey, Load]]) -> None:
        """Replicas reported."""
        for key, load in loads:
            self.loads[key] = load
            self.scalers.setdefault(key.job_id, Scaler())

    def forget(self, job_id: str, keys: Iterable[UnitKey]) -> None:
        """A job has finished."""
        if self.scalers.pop(job_id, None) is not None:
            for key in keys:
                self.loads.pop(key, None)

    def ended(self, run_id: str) -> None:
        """A run has ended."""
        self.stretches.pop(run_id, None)
        self.wished.pop(run_id, None)
        self.short.discard(run_id)

    def got(self, run_id: str, milli: int) -> None:
        """A domain said which part a run has."""
        wished = self.wished.pop(run_id, None)
        if wished is not None and milli < wished:
            self.short.add(run_id)
        elif wished is not None:
            self.short.discard(run_id)
