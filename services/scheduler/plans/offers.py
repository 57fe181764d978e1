"""What elastic jobs are offered: the configurations of the cluster, and each job's goodput on them, kept between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Floats
from services.scheduler.planners.sia import Configurations, configurations
from services.scheduler.plans.rates import Rates, measured_of, most_ranks
from services.scheduler.plans.service import Service, service_of
from services.scheduler.plans.state import Jobs

_NAME = "offers"
_MOST_ROWS = 10_000
"""Rows of rates that are kept between rounds."""


class Offers:
    """Configurations (C) for as long as rates, fleet and the sizes that jobs want stay. A copy of the cluster makes them anew."""

    def __init__(self, rates: Rates, sizes: frozenset[int] | None, configurations_: Configurations) -> None:
        self._for = rates, sizes
        self.configurations = configurations_
        self._rows: dict[tuple[str, Demand, int], Floats] = {}

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        return None

    def hold(self, rates: Rates, sizes: frozenset[int] | None) -> bool:
        """Whether they are still those for these rates and sizes (None: every number of devices)."""
        return rates is self._for[0] and sizes == self._for[1]

    def goodput(self, cluster: Cluster, jobs: Jobs) -> Floats:
        """Rates (J, C) of each job in its present phase."""
        service = service_of(cluster)
        rates: Any = cluster.view.facts.get("throughputs")
        phased = hasattr(rates, "rate_in")
        measured = measured_of(cluster)
        if len(self._rows) > _MOST_ROWS:
            self._rows.clear()
        rows = []
        for job, demand in enumerate(jobs.demands):
            job_id = jobs.keys[job].job_id
            phase = rates.phase(demand.profile, jobs.left[job]) if phased and demand.profile else 0
            key = job_id if measured.knows(job_id) else "", demand, phase
            found = self._rows.get(key)
            if found is None:
                found = self._rows[key] = _row(cluster, service, jobs, job, self.configurations, phase)
            rows.append(found)
        return np.array(rows).reshape(len(rows), self.configurations.kind.size)


def offers_of(cluster: Cluster, jobs: Jobs, *, every_count: bool) -> Offers:
    """What is offered now; ``every_count`` offers every number of devices instead of Sia's."""
    plan = service_of(cluster).plan
    # What jobs ask for, or hold, may be none of the paper's sizes.
    sizes = (
        None
        if every_count
        else frozenset((jobs.least_ranks * jobs.each).tolist()).union((jobs.held * jobs.each).tolist())
    )
    kept: Offers | None = plan.get(_NAME)
    if kept is None or not kept.hold(jobs.rates, sizes):
        kept = plan[_NAME] = Offers(jobs.rates, sizes, _offered(cluster, jobs, sizes))
    return kept


def _offered(cluster: Cluster, jobs: Jobs, wanted: frozenset[int] | None) -> Configurations:
    """The configurations of the cluster: whole nodes by the greatest node of each type."""
    table = cluster.table
    nodes, sizes = [], []
    for model, capacity in zip(jobs.models, jobs.capacity.tolist(), strict=True):
        columns = [column for column, item in enumerate(table.models) if item.model == model]
        each = max(int((table.devices[:, columns].sum(axis=1) * cluster.view.up).max(initial=0)), 1)
        sizes.append(each)
        nodes.append(int(capacity) // each)
    if wanted is None:
        rows = [
            (kind, -(-count // each), count)
            for kind, (many, each) in enumerate(zip(nodes, sizes, strict=True))
            for count in range(1, many * each + 1)
        ]
        return _configurations(rows)
    offered = configurations(nodes, sizes)
    known = list(zip(offered.kind.tolist(), offered.nodes.tolist(), offered.devices.tolist(), strict=True))
    have = {(kind, devices) for kind, _, devices in known}
    more = [
        (kind, -(-devices // each), devices)
        for kind, (each, capacity) in enumerate(zip(sizes, jobs.capacity.tolist(), strict=True))
        for devices in sorted(wanted)
        if 0 < devices <= capacity and (kind, devices) not in have
    ]
    return _configurations(sorted(known + more, key=lambda row: (row[0], row[2]))) if more else offered


def _configurations(rows: Sequence[tuple[int, int, int]]) -> Configurations:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Configurations(table[:, 0], table[:, 1], table[:, 2])


def _row(cluster: Cluster, service: Service, jobs: Jobs, job: int, offered: Configurations, phase: int) -> Floats:
    """Rates (C) of a job in its phase; kept between rounds, as phases are few."""
    demand, profile = jobs.demands[job], jobs.demands[job].profile
    rates: Any = cluster.view.facts.get("throughputs")
    each = max(demand.accelerators, 1)
    phased = hasattr(rates, "rate_in")
    rows: dict[Any, Floats] = service.plan.setdefault("rows", {})
    most = most_ranks(cluster, demand, jobs.models)
    measured, job_id = measured_of(cluster), jobs.keys[job].job_id
    own = (job_id, measured.version) if measured.knows(job_id) else None
    key = own, profile, each, phase, most, offered.devices.tobytes(), offered.kind.tobytes(), jobs.models
    found = rows.get(key)
    if found is None:
        if len(rows) >= _MOST_ROWS:
            rows.clear()
        values = []
        for kind, nodes, devices in zip(offered.kind, offered.nodes, offered.devices, strict=True):
            ranks, model = int(devices) // each, jobs.models[kind]
            if ranks > most[kind]:
                values.append(0.0)
            elif ranks and (rate := measured.rate(job_id, profile, ranks, model)) is not None:
                values.append(rate)
            elif not profile or rates is None:
                values.append(float(ranks))
            elif phased:
                values.append(rates.rate_in(profile, ranks, model, int(nodes), phase))
            else:
                values.append(float(rates.rate(profile, ranks, model)) if ranks else 0.0)
        found = rows[key] = np.array(values, dtype=np.float64)
    return found
