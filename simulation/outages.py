"""Nodes that fail and come back, and spot capacity that is taken away and given."""

from __future__ import annotations

from services.scheduler.core.state import UnitKey
from simulation.failures import Holding, reclaimed
from simulation.progress import Progress
from simulation.simulated_job import SimulatedJob
from simulation.world import NODE


class Outages(Progress):
    """See the module."""

    def _push_next_failure(self) -> None:
        event = next(self._failures, None)
        if event is not None:
            self._push(event.time_s, NODE, event)  # type: ignore[attr-defined]

    def _node_changed(self, event: object) -> None:
        row = self.cluster.table.node_index[event.node_id]  # type: ignore[attr-defined]
        down = event.change == "down"  # type: ignore[attr-defined]
        if down:
            self._down.add(row)
            for running in [item for item in self.cluster.running.values() if any(r == row for r, _ in item.rows)]:
                self._lose(self._jobs[running.unit.key])
        else:
            self._down.discard(row)
        domain = int(self.cluster.table.node_domain[row])
        if domain in self._spot:
            self._share_out_spot(domain)
        else:
            self.cluster.view.set_up([row], not down)
            self.measures.node_changed(self._size_of(row), down=down)
        self._push_next_failure()

    def _lose(self, item: SimulatedJob) -> None:
        """A job loses its run, and waits again; it is given up when that happened too often, as the live scheduler does."""
        self._stop(item, graceful=False)
        if item.recoveries < self.policy.restarts.max_recoveries:
            item.recoveries += 1
            self._wait(item)
            return
        self._given_up.append(item)
        self._progress_s = self.now_s
        del self._jobs[item.key]

    def _size_of(self, row: int) -> float:
        """What the measures count of a node."""
        table = self.cluster.table
        return table.nodes[row].cpus if self.measures.processors else float(table.device_totals[row])

    def _spot_changed(self, event: object) -> None:
        """Only so many accelerators of a domain may be used from now on; the newest jobs lose theirs first."""
        domain_id, available = event.domain_id, event.available  # type: ignore[attr-defined]
        domain = self.cluster.table.domain_ids.index(domain_id)
        part = self.cluster.table.domain_slice[domain]
        holdings = []
        for running in self.cluster.running.values():
            held = sum(len(devices) for row, devices in running.rows if part.start <= row < part.stop)
            if held:
                milli = running.unit.demand.device_milli
                holdings.append(Holding(running.unit.key.job_id, running.since_s, held * milli / 1000.0))
        for job_id in reclaimed(holdings, available):
            self._lose(self._jobs[UnitKey(job_id, 0)])
        self._spot[domain] = float(available)
        self._share_out_spot(domain)

    def _share_out_spot(self, domain: int) -> None:
        """Nodes take work while what is free on them is covered by what the domain may still use, the fullest first.

        Whole nodes only: what is left of the last one cannot be used. Accelerators count as up as far as the domain may use
        them and their nodes have not failed, processors with their nodes.
        """
        part = self.cluster.table.domain_slice[domain]
        totals = self.cluster.table.device_totals
        rows = sorted(range(part.start, part.stop), key=lambda row: (-self._node_milli[row], row))
        spare = self._spot[domain] - sum(self._node_milli[row] for row in rows) / 1000.0
        whole = used = 0.0
        for row in rows:
            free = float(totals[row]) - self._node_milli[row] / 1000.0
            up = row not in self._down and free <= spare + 1e-9
            spare -= free if up else 0.0
            whole += 0.0 if row in self._down else self._size_of(row)
            used += self._size_of(row) if up else 0.0
            if bool(self.cluster.view.up[row]) != up:
                self.cluster.view.set_up([row], up)
        up_now = used if self.measures.processors else min(self._spot[domain], whole)
        before = self._spot_up.get(domain)
        if before is None:
            # What failed before was counted when it did.
            before = whole
        if up_now != before:
            self.measures.node_changed(abs(up_now - before), down=up_now < before)
        self._spot_up[domain] = up_now
