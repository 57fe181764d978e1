"""What a simulated network and trace tell the scheduler's plugins, as facts of the view (services/scheduler/core/scoring)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.energy import HOUR_S, CarbonSeries
from simulation.interference import Interference
from simulation.model import Network, Throughputs, Trace

Floats = npt.NDArray[np.float64]


def facts_of(
    network: Network, trace: Trace, domain_ids: Sequence[str], interference: Interference | None = None
) -> dict[str, Any]:
    """The facts that do not change: ``throughputs``, ``index``, ``interference``, ``electricity_micro_units_per_kwh`` (D).

    Nothing is said of what is not known; domains without a price of electricity are NaN.
    """
    facts: dict[str, Any] = {}
    if trace.throughputs is not None:
        facts["throughputs"] = trace.throughputs
        index = device_index(trace.throughputs, {node.model for node in network.nodes if node.accelerators})
        if len(index) > 1:
            facts["index"] = index
    if interference is not None:
        facts["interference"] = interference
    prices = {domain.domain_id: domain.electricity_micro_units_per_kwh for domain in network.domains}
    if any(prices.values()):
        facts["electricity_micro_units_per_kwh"] = np.array(
            [float(prices[name]) if prices[name] > 0 else math.nan for name in domain_ids]
        )
    return facts


def device_index(throughputs: Throughputs, models: Iterable[str]) -> dict[str, float]:
    """What a device of each model is worth, from measured rates: the reference model counts 1.

    The reference is the model on which most profiles run (then the first name). A model's weight is the geometric mean, over
    the profiles (with their rank counts) that run on both, of its rate over that of the reference; a model that shares no
    profile with the reference is left out.
    """
    names = sorted(set(models))
    runs = {name: {key for key, rates in throughputs.rates.items() if rates.get(name, 0.0) > 0} for name in names}
    reference = min(names, key=lambda name: (-len(runs[name]), name), default="")
    index: dict[str, float] = {}
    for name in names:
        shared = sorted(runs[name] & runs[reference])
        logs = [math.log(throughputs.rates[key][name] / throughputs.rates[key][reference]) for key in shared]
        if logs:
            index[name] = math.exp(math.fsum(logs) / len(logs))
    return index


class HourlyCarbon:
    """Carbon intensity as it is known to the scheduler: each domain's value of the running hour, NaN where none is given."""

    def __init__(self, network: Network, domain_ids: Sequence[str]) -> None:
        given = {domain.domain_id: CarbonSeries(domain.carbon_g_per_kwh) for domain in network.domains}
        self._series = [given[name] for name in domain_ids]
        self.due_s = -math.inf
        """When the values change next."""

    @staticmethod
    def varies(network: Network) -> bool:
        """Whether a domain's intensity changes over the day."""
        return any(len(set(domain.carbon_g_per_kwh)) > 1 for domain in network.domains)

    def at(self, now_s: float) -> Floats:
        """G/kWh per domain (D) in the hour of ``now_s``."""
        self.due_s = (math.floor(now_s / HOUR_S) + 1) * HOUR_S
        values = np.array([series.intensity(now_s) for series in self._series], dtype=np.float64)
        values[values <= 0] = np.nan
        return values
