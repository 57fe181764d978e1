"""What is free for jobs that are planned: by type, and where that says too much, by domain and by node."""

from __future__ import annotations

import numpy as np

from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.table import Floats, Ints
from services.scheduler.plans.state import Jobs


class Room:
    """What is free for jobs that are planned: ``free`` (T) devices of each type, and where a type is in several domains, in each.
    ``devices`` (J) are those that each job asks for.

    Pools that are counted over domains alone have room for gangs that fit in none of them: such a gang would be planned, find no
    room, and wait until the plan is made anew, though another type had room for it. So would a rank of four devices that are free, two
    each on two nodes: where a job has ranks of several devices, they are counted by node (`_Nodes`).
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs, self._table = jobs, jobs.cluster.table
        self.devices = jobs.devices
        self.free = jobs.capacity.copy()
        by_domain = np.zeros((len(jobs.models), len(self._table.domain_ids)))
        for column, item in enumerate(self._table.models):
            up = self._table.devices[:, column] * jobs.cluster.view.up
            place = jobs.models.index(item.model)
            by_domain[place] += np.bincount(self._table.node_domain, up, by_domain.shape[1])
        self._apart = (by_domain > 0).sum(axis=1) > 1
        self._left: list[list[float]] = by_domain.tolist()
        self._nodes = [_Nodes(jobs, kind) for kind in range(len(jobs.models))] if (jobs.each > 1).any() else []

    def keep(self, job: int) -> None:
        """A run stays on the nodes that it has."""
        run, kind = self._jobs.runs[job], int(self._jobs.kind[job])
        if run is not None:
            self.free[kind] -= self._jobs.devices[job]
            for domain, share in self._held(run):
                self._left[kind][domain] -= share
            if self._nodes:
                self._nodes[kind].stay(job)

    def settle(self) -> None:
        """What is on nodes that went down is held and yet not counted: nothing is free below 0."""
        self.free = np.maximum(self.free, 0.0)

    def take(self, job: int, kind: int) -> bool:
        """Give a job its devices of a type, if they are free: in its own domain where it runs on that type, else in the one with the
        least room that is enough."""
        wanted = float(self._jobs.devices[job])
        if wanted > self.free[kind] + 1e-9:
            return False
        if self._nodes:
            if not self._nodes[kind].take(job):
                return False
            was = int(self._jobs.kind[job])
            if was >= 0 and was != kind:
                self._nodes[was].leave(job)
        elif self._apart[kind] and not self._take_in_domains(job, kind, wanted):
            return False
        self.free[kind] -= wanted
        return True

    def _take_in_domains(self, job: int, kind: int, wanted: float) -> bool:
        demand, left = self._jobs.demands[job], self._left[kind]
        places = np.flatnonzero(self._table.domains_of(demand)).tolist()
        if demand.cross_domain:
            if sum(max(left[place], 0.0) for place in places) < wanted - 1e-9:
                return False
            for place in sorted(places, key=lambda place: -left[place]):
                taken = min(max(left[place], 0.0), wanted)
                left[place] -= taken
                wanted -= taken
            return True
        enough = [place for place in places if left[place] >= wanted - 1e-9]
        if not enough:
            return False
        run = self._jobs.runs[job]
        own = {domain for domain, _ in self._held(run)} if run is not None and self._jobs.kind[job] == kind else set()
        left[min(enough, key=lambda place: (place not in own, left[place]))] -= wanted
        return True

    def _held(self, run: RunningUnit) -> list[tuple[int, float]]:
        """Devices in each domain, a row of a node at a time."""
        milli = run.unit.demand.device_milli
        return [(int(self._table.node_domain[row]), len(devices) * milli / 1000.0) for row, devices in run.rows]


class _Nodes:
    """The nodes (N) of one type: ``left`` (N) devices of each that are planned for nobody, and those of them that are held by runs of which it
    is not decided yet whether they stay: where there are others, these are left to them."""

    def __init__(self, jobs: Jobs, kind: int) -> None:
        self._jobs, self._kind = jobs, kind
        table = self._table = jobs.cluster.table
        columns = [place for place, item in enumerate(table.models) if item.model == jobs.models[kind]]
        devices = table.devices[:, columns].sum(axis=1) * jobs.cluster.view.up
        rows = np.flatnonzero(devices)
        self._place = {row: place for place, row in enumerate(rows.tolist())}
        self._left: Floats = devices[rows].astype(np.float64)
        self._domain: Ints = np.asarray(table.node_domain[rows], dtype=np.int64)
        self._held = np.zeros(rows.size)
        for job in np.flatnonzero(jobs.kind == kind).tolist():
            for place, share in self._own(job):
                self._held[place] += share

    def _own(self, job: int) -> list[tuple[int, float]]:
        """The devices of a run by node; nodes that are down have none."""
        run = self._jobs.runs[job]
        if run is None:
            return []
        milli = run.unit.demand.device_milli
        return [(self._place[row], len(found) * milli / 1000.0) for row, found in run.rows if row in self._place]

    def stay(self, job: int) -> None:
        """A run keeps its nodes."""
        for place, share in self._own(job):
            self._left[place] -= share
            self._held[place] -= share

    def leave(self, job: int) -> None:
        """A run gives its nodes up."""
        for place, share in self._own(job):
            self._held[place] -= share

    def take(self, job: int) -> bool:
        """Give a job its devices, each rank's on one node: where it runs on this type its own, else in the domain with the least room
        that is enough, on the fullest nodes."""
        if self._jobs.kind[job] == self._kind and all(
            self._left[place] >= share - 1e-9 for place, share in self._own(job)
        ):
            self.stay(job)
            return True
        demand = self._jobs.demands[job]
        each = max(demand.accelerators, 1) * demand.device_milli / 1000.0
        could = np.floor(self._left / each + 1e-9)
        if demand.domains or demand.excluded_domains:
            could = np.where(self._table.domains_of(demand)[self._domain], could, 0.0)
        if could.sum() < demand.ranks:
            return False
        if not demand.cross_domain:
            count = len(self._table.domain_ids)
            domains = np.bincount(self._domain, could, count)
            enough = np.flatnonzero(domains >= demand.ranks)
            if not enough.size:
                return False
            least = np.bincount(self._domain, self._left, count)[enough].argmin()
            could[self._domain != enough[least]] = 0.0
        if self._jobs.kind[job] == self._kind:
            self.leave(job)
        free = self._left - self._held >= each - 1e-9
        places = np.flatnonzero(could > 0)
        wanted = float(demand.ranks)
        for place in places[np.lexsort((self._left[places], ~free[places]))].tolist():
            ranks = min(float(could[place]), wanted)
            self._left[place] -= ranks * each
            wanted -= ranks
            if wanted <= 0:
                break
        return True
