"""How fast jobs are on the accelerator models of a cluster, and how many devices of each model there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.measured import Measured
from services.scheduler.core.placement import Candidates
from services.scheduler.core.scoring.facts import with_method
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import Floats
from services.scheduler.plans.service import service_of


class Rates:
    """Rates per profile and rank count, and of jobs that were measured, on the ``models`` (T) with their ``capacity`` (T).

    They hold until the fleet, facts, the policy or what was measured change; asked for once until then.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._facts: Any = with_method(cluster.view, "throughputs", "rate")
        self._table = cluster.table
        self._told = cluster.view.facts.get("measured")
        self.measured = measured_of(cluster)
        self._stamp = self._stamp_of(cluster)
        self.models, self.capacity = pools(cluster)
        self.capacity.setflags(write=False)
        self._known: dict[tuple[str, Demand], Floats] = {}
        self._most: dict[Demand, tuple[int, ...]] = {}

    def hold(self, cluster: Cluster) -> bool:
        """Whether they are still those of the cluster."""
        facts = cluster.view.facts
        same = cluster is self._cluster and cluster.table is self._table and facts.get("measured") is self._told
        return same and facts.get("throughputs") is self._facts and self._stamp == self._stamp_of(cluster)

    def _stamp_of(self, cluster: Cluster) -> tuple[int, int, str, int]:
        view = cluster.view
        return view.generation, view.facts_version, cluster.version, self.measured.version

    def known(self, demand: Demand) -> bool:
        """Whether anything is known of the rates of such a unit."""
        return bool(demand.profile) and self._facts is not None

    def most(self, demand: Demand) -> tuple[int, ...]:
        """See `most_ranks`, over all models."""
        found = self._most.get(demand)
        if found is None:
            found = self._most[demand] = most_ranks(self._cluster, demand, self.models)
        return found

    def of(self, key: UnitKey, demand: Demand) -> Floats:
        """The rates (T) of one job."""
        job_id = key.job_id if self.measured.knows(key.job_id) else ""
        found = self._known.get((job_id, demand))
        if found is None:
            values = [
                self._rate(job_id, demand, model) if holds >= demand.ranks else 0.0
                for model, holds in zip(self.models, self.most(demand), strict=True)
            ]
            found = self._known[job_id, demand] = np.array(values, dtype=np.float64)
        return found

    def _rate(self, job_id: str, demand: Demand, model: str) -> float:
        measured = self.measured.rate(job_id, demand.profile, demand.ranks, model)
        if measured is not None:
            return measured
        return float(self._facts.rate(demand.profile, demand.ranks, model)) if self.known(demand) else 1.0


def measured_of(cluster: Cluster) -> Measured:
    """What programs reported (fact ``measured``); empty where nothing is kept, as in the simulator."""
    found: Measured | None = cluster.view.facts.get("measured")
    return found if found is not None else Measured()


def most_ranks(cluster: Cluster, demand: Demand, models: Sequence[str]) -> tuple[int, ...]:
    """How many ranks of a unit each model (T) could hold at all, if nothing ran: in one domain unless it may span them."""
    known: dict[Any, tuple[int, ...]] = service_of(cluster).plan.setdefault("most", {})
    bare = replace(demand, ranks=1, checkpoint_domain="", checkpoint_bytes=0, data=())
    key = cluster.view.generation, cluster.policy.version, bare, tuple(models)
    found = known.get(key)
    if found is None:
        if any(other[:2] != key[:2] for other in known):
            known.clear()
        accepted = cluster.view.columns(bare)
        columns = [[place for place in accepted if cluster.table.models[place].model == model] for model in models]
        found = known[key] = tuple(
            [
                Candidates(cluster.view, bare, np.array(own, dtype=np.int64), cluster.policy).most_ranks() if own else 0
                for own in columns
            ]
        )
    return found


def pools(cluster: Cluster) -> tuple[tuple[str, ...], Floats]:
    """Accelerator models by name, and the devices (T) of each on nodes that are up."""
    table = cluster.table
    totals = (table.devices * cluster.view.up[:, None]).sum(axis=0)
    models = tuple(sorted({item.model for item in table.models}))
    capacity = np.zeros(len(models))
    for column, item in enumerate(table.models):
        capacity[models.index(item.model)] += float(totals[column])
    return models, capacity
