"""Accelerator affinity with substitution: a unit takes a slower model when that is what there is, but not one on which it
does not run, nor one below the least share of its best rate.

Rates come from the fact ``throughputs``, an object with the method of `Throughputs`. Without it nothing is known: the score is
neutral and the filter lets everything pass. A profile without any rate runs nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import numbers_of
from services.scheduler.core.scores import NEUTRAL
from services.scheduler.core.scoring.facts import with_method
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Bools, Floats, Ints
from services.scheduler.core.view import View


class Throughputs(Protocol):
    """How fast profiles run."""

    def rate(self, profile: str, ranks: int, model: str) -> float:
        """Work per second of the whole unit on this accelerator model, 0 where it does not run."""
        ...


def relative_rates(view: View, demand: Demand) -> Floats | None:
    """Rate per device model (M) over that of the best one which the demand accepts, 0 for those it does not accept.

    None when nothing is known: no profile, no devices, no fact. All 0 for a profile without rates.
    """
    throughputs: Throughputs | None = with_method(view, "throughputs", "rate")
    if throughputs is None or not demand.profile or not demand.accelerators:
        return None
    rates = np.zeros(len(view.table.models))
    for column in view.columns(demand).tolist():
        rates[column] = throughputs.rate(demand.profile, demand.ranks, view.table.models[column].model)
    if not np.isfinite(rates).all() or (rates < 0).any():
        raise PolicyError(f"facts.throughputs: a rate of {demand.profile!r} is negative or no finite number")
    return rates / max(float(rates.max(initial=0.0)), 1e-300)


class ThroughputScore:
    """Expected rate of the unit's profile in the domain, relative to that on the best model it accepts.

    ``domains_of`` judges the models ``columns`` alone, the best of them that the domain has; ``domains`` all accepted ones.
    """

    name = "throughput"
    dynamic = False

    def domains(self, view: View, demand: Demand) -> Floats:
        return self.domains_of(view, demand, view.columns(demand))

    def domains_of(self, view: View, demand: Demand, columns: Ints) -> Floats:
        """Value per domain when the unit takes one of these models."""
        table = view.table
        rates = relative_rates(view, demand)
        if rates is None:
            return np.full(len(table.domain_ids), NEUTRAL)
        best = np.zeros(len(table.domain_ids))
        if len(columns):
            per_node = np.where(table.devices[:, columns] > 0, rates[columns], 0.0).max(axis=1)
            np.maximum.at(best, table.node_domain, per_node)
        return best


class RunsThereFilter:
    """Nodes with accelerators on which the profile runs, at no less than ``least`` (option, 0) of its best rate.

    ``columns`` takes the other models out of those that the unit may get: a node may have both.
    """

    name = "runs_there"
    dynamic = False

    def __init__(self, least: float = 0.0) -> None:
        self._least = least

    def configured(self, options: Mapping[str, Any]) -> RunsThereFilter:
        """With the options of a policy; PolicyError names the wrong one."""
        least = numbers_of(self.name, options, least=0.0).get("least", 0.0)
        if least > 1:
            raise PolicyError(f"options.{self.name}.least: must be at most 1, not {least:g}")
        return RunsThereFilter(least)

    def applies(self, demand: Demand) -> bool:
        """Only units with a profile that ask for accelerators."""
        return bool(demand.profile and demand.accelerators)

    def columns(self, view: View, demand: Demand, columns: Ints) -> Ints:
        """Those of the models on which the unit may run."""
        rates = relative_rates(view, demand)
        if rates is None:
            return columns
        kept: Ints = columns[self._enough(rates[columns])]
        return kept

    def passes(self, view: View, demand: Demand, rows: Any) -> Bools:
        counts = view.table.devices[rows]
        rates = relative_rates(view, demand)
        if rates is None:
            return np.ones(len(counts), dtype=np.bool_)
        result: Bools = (counts[:, self._enough(rates)] > 0).any(axis=1)
        return result

    def why(self, view: View, demand: Demand, row: int) -> str:
        present = [view.table.models[column].model for column in np.flatnonzero(view.table.devices[row])]
        least = f" at {self._least:g} of its best rate" if self._least else ""
        return f"{demand.profile} does not run{least} on {', '.join(present) or 'a node without accelerators'}"

    def _enough(self, rates: Floats) -> Bools:
        return (rates > 0) & (rates >= self._least - 1e-9)
