"""A job while it is simulated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, UnitKey
from simulation.model import TraceJob


class JobKey(UnitKey):
    """Names a job of a trace by its id. Among units of one time keys decide who comes first: here the ``place`` in the trace
    does, as the order of the file means more than that of its ids ("10" is before "9")."""

    place: int

    @classmethod
    def of(cls, job_id: str, place: int) -> JobKey:
        """The name of the job at ``place``."""
        key = cls(job_id, 0)
        key.place = place
        return key

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return self.place < other.place if isinstance(other, JobKey) else tuple(self) < tuple(other)

    def __le__(self, other: tuple[Any, ...]) -> bool:
        return self.place <= other.place if isinstance(other, JobKey) else tuple(self) <= tuple(other)

    def __gt__(self, other: tuple[Any, ...]) -> bool:
        return self.place > other.place if isinstance(other, JobKey) else tuple(self) > tuple(other)

    def __ge__(self, other: tuple[Any, ...]) -> bool:
        return self.place >= other.place if isinstance(other, JobKey) else tuple(self) >= tuple(other)


@dataclass(slots=True)
class SimulatedJob:
    """A job while it is simulated. ``done`` is its progress kept, ``rate`` what it makes per second undisturbed, ``factor``
    the part of that which its ``neighbours`` and ``links`` leave it. ``ready_s`` is when this run begins to make progress;
    ``due`` names the event of its end, 0 when it would never end."""

    job: TraceJob
    key: UnitKey
    demand: Demand
    total: float
    done: float = 0.0
    rate: float = 0.0
    factor: float = 1.0
    neighbours: float = 1.0
    links: float = 1.0
    since_s: float = 0.0
    working_from_s: float = 0.0
    ready_s: float = 0.0
    ran_s: float = 0.0
    epoch: int = 0
    due: int = 0
    first_start_s: float = math.nan
    finish_s: float = math.nan
    starts: int = 0
    interruptions: int = 0
    recoveries: int = 0
    lost: float = 0.0
    overhead_s: float = 0.0
    running: RunningUnit | None = None
    staging: bool = False
    data_domain: str = ""
    copies: tuple[str, ...] = ()
    held_device_s: float = 0.0
    lost_device_s: float = 0.0
    overhead_device_s: float = 0.0
    saved: float = 0.0
    """Progress at the checkpoint that it wrote when it was last stopped with notice."""
    curve: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None
    """Work done and the seconds that it takes, both ascending from 0, where the rate changes as the job goes on."""

    @property
    def reference_rate(self) -> float:
        """Progress per second on the reference chip."""
        return self.total / self.job.duration_s if self.job.duration_s > 0 else 1.0

    @property
    def attained_s(self) -> float:
        """Progress in seconds of the reference chip."""
        return self.done / self.reference_rate
