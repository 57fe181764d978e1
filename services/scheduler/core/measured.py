"""What programs' own reports say of their jobs: steps per second by accelerator model and number of ranks, and steps done.

Plugins read it as the fact ``measured``. It changes only by what `Metering` tells (metering.py), at times that stand in the journal,
so that a replay knows the same at the same cycles. What nobody reported is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from services.scheduler.core.declared_rates import DeclaredRates
from services.scheduler.core.state import UnitKey

_DECLARED = DeclaredRates()


class Cell(NamedTuple):
    """A way to run a job: accelerator model (empty: none) and number of ranks."""

    model: str
    ranks: int


class Done(NamedTuple):
    """A unit's program had made ``step`` steps of ``total`` (0: it does not say) at ``at_s``."""

    step: int
    total: int
    at_s: float


class Load(NamedTuple):
    """The load that a replica of a service reported, as it was heard at ``at_s``."""

    value: float
    at_s: float


@dataclass(frozen=True, slots=True)
class News:
    """What was measured since it was told last: rates in steps per second of the whole job, steps done, loads of replicas."""

    rates: tuple[tuple[str, Cell, float], ...] = ()
    done: tuple[tuple[UnitKey, Done], ...] = ()
    loads: tuple[tuple[UnitKey, Load], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rates or self.done or self.loads)

    def as_json(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "rates": [[job_id, cell.model, cell.ranks, rate] for job_id, cell, rate in self.rates],
            "done": [[*key, *done] for key, done in self.done],
            "loads": [[*key, *load] for key, load in self.loads],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> News:
        """What `as_json` gave."""
        return cls(
            tuple((job_id, Cell(model, ranks), rate) for job_id, model, ranks, rate in body["rates"]),
            tuple((UnitKey(job_id, index), Done(*rest)) for job_id, index, *rest in body["done"]),
            tuple((UnitKey(job_id, index), Load(*rest)) for job_id, index, *rest in body.get("loads", ())),
        )


@dataclass(slots=True)
class Measured:
    """See the module. ``version`` grows with every rate that is learned."""

    version: int = 0
    rates: dict[str, dict[Cell, float]] = field(default_factory=dict)
    done: dict[UnitKey, Done] = field(default_factory=dict)

    # -- learning ------------------------------------------------------------------------------------------------------

    def learn(self, news: News) -> None:
        """Take in what was measured."""
        for job_id, cell, rate in news.rates:
            self.rates.setdefault(job_id, {})[cell] = rate
        self.version += len(news.rates)
        self.done.update(news.done)

    def waits(self, key: UnitKey, kept_step: int) -> None:
        """A unit waits (again): what its checkpoint keeps is done, no more."""
        before = self.done.get(key)
        if before is not None and before.step != kept_step:
            self.done[key] = before._replace(step=kept_step)

    def forget(self, job_id: str, keys: Iterable[UnitKey]) -> None:
        """A job has finished."""
        self.rates.pop(job_id, None)
        for key in keys:
            self.done.pop(key, None)

    def snapshot(self) -> Measured:
        """A copy that does not change any more."""
        return Measured(self.version, {name: dict(cells) for name, cells in self.rates.items()}, dict(self.done))

    def told(self) -> News:
        """All that is known, as news."""
        rates = [(job_id, cell, rate) for job_id, cells in self.rates.items() for cell, rate in cells.items()]
        return News(tuple(rates), tuple(self.done.items()))

    # -- asking --------------------------------------------------------------------------------------------------------

    def knows(self, job_id: str) -> bool:
        """Whether any rate of the job was measured."""
        return job_id in self.rates

    def rate(self, job_id: str, profile: str, ranks: int, model: str) -> float | None:
        """Steps per second of a whole job (NaN never); None when nothing of it was measured.

        1. What was measured with this model and these ranks is the rate.
        2. Else what the job declared (``profile``), times what the measured rates are of the declared ones (geometric mean);
           a declared 0 stays 0.
        3. Else, per rank, what was measured on this model, or on any: nothing says that others differ.
        """
        cells = self.rates.get(job_id)
        if not cells:
            return None
        exact = cells.get(Cell(model, ranks))
        if exact is not None:
            return exact
        if profile:
            declared = _DECLARED.rate(profile, ranks, model)
            logs = [
                math.log(rate / said)
                for cell, rate in cells.items()
                if (said := _DECLARED.rate(profile, cell.ranks, cell.model)) > 0
            ]
            if logs:
                return declared * math.exp(sum(logs) / len(logs))
        same = [rate / cell.ranks for cell, rate in cells.items() if cell.model == model]
        each = same or [rate / cell.ranks for cell, rate in cells.items()]
        return ranks * sum(each) / len(each)

    def steps_left(self, key: UnitKey, declared: int = 0) -> float | None:
        """Steps that a unit has to make as of its last report; None when it reported none, or nobody says how many there are
        (``declared``: those that its job declared)."""
        done = self.done.get(key)
        if done is None:
            return None
        total = done.total or declared
        return float(max(total - done.step, 0)) if total else None

    def left_s(self, key: UnitKey, cell: Cell, declared: int, since_s: float, now_s: float) -> float | None:
        """Seconds that a unit has to run that runs since ``since_s``, by its own steps and rate; None when one of them is
        not known."""
        steps, rate = self.steps_left(key, declared), self.rates.get(key.job_id, {}).get(cell)
        if steps is None or not rate:
            return None
        return max(steps / rate - max(now_s - max(self.done[key].at_s, since_s), 0.0), 0.0)
