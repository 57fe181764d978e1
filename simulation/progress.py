"""Jobs that wait and run: what they have done, what slows them, when they end, what leaving their nodes means."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import UnitKey
from services.scheduler.core.waiting_unit import PendingUnit
from simulation.interference import Profile
from simulation.simulated_job import SimulatedJob
from simulation.world import END, FALL, FLOW, READY, SLEEP, WAN, World


class Progress(World):
    """See the module."""

    def _wait(self, item: SimulatedJob) -> None:
        job = item.job
        if item.starts:
            self.measures.queued_again(item)
        known = self._estimates.of(job, item.attained_s if item.starts else 0.0, self.now_s)
        unit = PendingUnit(
            key=item.key,
            tenant_id=job.tenant,
            priority=job.priority,
            queued_at_s=job.submit_s,
            demand=item.demand,
            submitted_at_s=job.submit_s,
            limit_s=known.limit_s,
            expected_s=known.expected_s,
            low_s=known.low_s,
            high_s=known.high_s,
            attained_s=item.attained_s,
            served_s=item.ran_s,
            service_index=known.service_index,
            deadline_s=math.inf if math.isnan(job.deadline_s) else job.deadline_s,
            value=job.value,
            preemptible=job.preemptible,
            min_ranks=job.min_ranks,
            max_ranks=job.max_ranks,
            restart_s=self._checkpoints.restart_s(job),
            work=max(item.total - item.done, 0.0),
            nameless=not (job.user or job.name),
        )
        if self.levels is not None:
            self.levels.queued(unit, self.now_s)
        self.cluster.add(unit)

    def _start(self, item: SimulatedJob, running: RunningUnit) -> None:
        item.running = running
        running.kept_s = math.inf if self._graceful else 0.0
        item.epoch += 1
        item.since_s = self.now_s
        if math.isnan(item.first_start_s):
            item.first_start_s = self.now_s
        charged = self._charged if item.starts else self._first_charged
        delay_s = self._checkpoints.restart_s(item.job) if charged else 0.0
        item.starts += 1
        delay_s = max(delay_s, self._occupy_nodes(running))
        item.working_from_s = item.ready_s = self.now_s + delay_s
        running.expected_end_s += delay_s
        running.limit_end_s += delay_s
        item.rate = self._rate(item, running)
        item.curve = self._curve(item, running)
        item.factor = item.neighbours = item.links = 1.0
        left = max(item.total - item.done, 0.0)
        if running.unit.work != left:
            running.unit = replace(running.unit, work=left, attained_s=item.attained_s)
        self.measures.started(item, running, self.now_s)
        if self.levels is not None:
            self.levels.started(running.unit, self.now_s)
        if self._sharing is not None and running.unit.demand.device_milli < 1000:
            self._meet(item, running)
        self._watch_order(item, running)
        if not self._stage(item, running):
            self._begin_work(item)

    def _begin_work(self, item: SimulatedJob) -> None:
        """The job has what it needs; from ``item.working_from_s`` on it makes progress."""
        running = item.running
        assert running is not None
        if self.levels is not None:
            self.levels.works(running.unit, self.now_s, item.working_from_s)
        if self._flows is not None and item.job.traffic_bytes_per_s > 0 and len(self._domains_of(running)) > 1:
            if item.working_from_s > self.now_s:
                self._push(item.working_from_s, FLOW, (item.key, item.epoch))
            else:
                self._exchange(item)
        self._schedule_end(item)

    def _watch_order(self, item: SimulatedJob, running: RunningUnit) -> None:
        """Ask for a cycle when the unit's place in the order changes because it runs."""
        for ask in self._changes:
            at_s = ask(running, self.now_s)
            if at_s < math.inf:
                self._push(max(at_s, self.now_s), FALL, (item.key, item.epoch))

    # -- how fast --------------------------------------------------------------------------------------------------------

    def _rate(self, item: SimulatedJob, running: RunningUnit) -> float:
        job = item.job
        table = self.trace.throughputs
        if job.profile and table is not None and job.work > 0:
            return table.rate(job.profile, running.unit.demand.ranks, self._model_of(running))
        return item.reference_rate

    def _curve(
        self, item: SimulatedJob, running: RunningUnit
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
        """The job's progress over time where its rates have one (``curve`` of the trace's throughputs)."""
        ask = getattr(self.trace.throughputs, "curve", None)
        if ask is None or not item.job.profile or item.job.work <= 0:
            return None
        nodes = len({row for row, _ in running.rows})
        found: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = ask(
            item.job.profile, running.unit.demand.ranks, self._model_of(running), nodes
        )
        return found

    def _schedule_end(self, item: SimulatedJob) -> None:
        """When the job ends if nothing happens before; never when it makes no progress."""
        if item.rate * item.factor <= 0:
            item.due = 0
            self._stuck.add(item.key)
            return
        if item.curve is not None:
            work, seconds = item.curve
            left_s = float(seconds[-1] - np.interp(item.done, work, seconds)) / item.factor
        else:
            left_s = (item.total - item.done) / (item.rate * item.factor)
        end_s = max(item.working_from_s, self.now_s) + left_s
        self._progress_s = self.now_s
        if self._stuck:
            self._stuck.discard(item.key)
        item.due = self._pushed + 1
        self._push(end_s, END, (item.key, item.due))

    def _set_speed(self, item: SimulatedJob) -> None:
        """Go on with what neighbours and links leave: progress so far counts at the old speed."""
        factor = item.neighbours * item.links
        if factor == item.factor:
            return
        self._settle(item)
        item.factor = factor
        if item.due or item.key in self._stuck:
            self._schedule_end(item)

    def _settle(self, item: SimulatedJob) -> None:
        """Count the progress up to now."""
        if item.staging:
            return
        item.done = self._done_by_now(item)
        item.working_from_s = max(item.working_from_s, self.now_s)

    # -- leaving ---------------------------------------------------------------------------------------------------------

    def _end(self, key: UnitKey, due: int) -> None:
        item = self._jobs.get(key)
        if item is None or item.due != due or item.running is None:
            return
        unit = item.running.unit
        self._leave(item)
        item.done = item.total
        item.finish_s = self.now_s
        self._ended += 1
        self._progress_s = self.now_s
        self._estimates.ended(item.job, item.job.duration_s, self.now_s)
        if self.levels is not None:
            self.levels.finished(unit, self.now_s)
        self.measures.finished(item, self.now_s)
        del self._jobs[key]

    def _stop(self, item: SimulatedJob, *, graceful: bool) -> None:
        """Take a job off its nodes; the caller makes it wait again."""
        if item.running is None:
            return
        self._settle(item)
        if graceful:
            item.saved = item.done
        else:
            kept = max(self._checkpoints.kept(item.job, item.done), item.saved)
            item.lost += (item.done - kept) / item.reference_rate
            item.lost_device_s += self._took_s(item, kept) * self.measures.had(item.running.unit)
            item.done = kept
            if self.levels is not None:
                self.levels.lost(item.key, self.now_s)
        item.interruptions += 1
        self._leave(item)
        item.epoch += 1

    def _took_s(self, item: SimulatedJob, kept: float) -> float:
        """How long this run worked, at its present speed, for what it did beyond ``kept``."""
        if item.done <= kept or item.rate * item.factor <= 0:
            return 0.0
        if item.curve is not None:
            work, seconds = item.curve
            return float(np.interp(item.done, work, seconds) - np.interp(kept, work, seconds)) / item.factor
        return (item.done - kept) / (item.rate * item.factor)

    def _count_run(self, item: SimulatedJob, running: RunningUnit) -> None:
        """Account for what a run has held up to now."""
        item.ran_s += self.now_s - item.since_s
        held = self.measures.had(running.unit)
        item.held_device_s += (self.now_s - item.since_s) * held
        begun_s = self.now_s if item.staging else min(item.ready_s, self.now_s)
        item.overhead_s += begun_s - item.since_s
        item.overhead_device_s += (begun_s - item.since_s) * held
        self.measures.left(item, running, self.now_s)

    def _leave(self, item: SimulatedJob) -> None:
        running = item.running
        assert running is not None
        self._count_run(item, running)
        self.cluster.release(item.key, self.now_s)
        for row, devices in running.rows:
            self._node_milli[row] -= len(devices) * running.unit.demand.device_milli
            self._set_busy(row)
            if self._sleeping is not None:
                sleep_s = self._sleeping.gave(row, self.now_s)
                if sleep_s < math.inf:
                    self._push(sleep_s, SLEEP, (row, self.now_s))
        item.running = None
        item.due = 0
        if self._stuck:
            self._stuck.discard(item.key)
        if self._spot:
            self._spot_changes = True
        if self._sharing is not None:
            self._neighbours_changed(self._sharing.ended(item.key))
        if self._flows is not None and item.key in self._flows:
            self._flows.ended(item.key, self.now_s)
            self._watch_wan()
        if item.staging:
            self.wan.cancel(item.job.job_id, self.now_s)
            item.staging = False
            self._watch_wan()

    def _occupy_nodes(self, running: RunningUnit) -> float:
        """Account for energy; returns how long sleeping nodes take to wake."""
        milli = running.unit.demand.device_milli
        ready_s = self.now_s
        for row, devices in running.rows:
            if self._sleeping is not None:
                asleep = self._sleeping.is_asleep(row)
                node_ready_s = self._sleeping.took(row, self.now_s)
                if asleep and node_ready_s > self.now_s:
                    self._push(node_ready_s, READY, (row, node_ready_s))
                ready_s = max(ready_s, node_ready_s)
            self._node_milli[row] += len(devices) * milli
            self._set_busy(row)
        return ready_s - self.now_s

    # -- data ------------------------------------------------------------------------------------------------------------

    def _stage(self, item: SimulatedJob, running: RunningUnit) -> bool:
        """Bring the job's data to the domain where it runs; True while it is on its way."""
        job = item.job
        if not job.data_bytes or not item.data_domain:
            return False
        domains = self._domains_of(running)
        if any(domain in domains for domain in item.copies):
            return False
        to_domain = domains[0]
        item.staging = True
        # The nearest copy that has a link; the first of equals.
        linked = [domain for domain in item.copies if (domain, to_domain) in self._links]
        from_domain = min(
            linked or item.copies[:1], key=lambda domain: self.wan.transfer_time_s(domain, to_domain, job.data_bytes)
        )
        self.wan.start(job.job_id, from_domain, to_domain, job.data_bytes, self.now_s)
        self._watch_wan()
        return True

    def _transfers_ended(self) -> None:
        for job_id in self.wan.advance(self.now_s):
            item = self._jobs.get(UnitKey(job_id, 0))
            if item is not None and item.staging:
                item.staging = False
                item.working_from_s = item.ready_s = max(item.ready_s, self.now_s)
                self._arrived_data(item)
                self._begin_work(item)
        self._watch_wan()

    def _arrived_data(self, item: SimulatedJob) -> None:
        """Another copy of the job's data lies where it runs; if it is interrupted, the scheduler is told of that one."""
        assert item.running is not None
        domain = self._domains_of(item.running)[0]
        item.copies, item.data_domain = (*item.copies, domain), domain
        (_, size), *_ = item.demand.data or (("", item.job.data_bytes),)
        demand = replace(item.demand, data=((domain, size),))
        item.demand = self._demands.setdefault(demand, demand)

    # -- what is shared --------------------------------------------------------------------------------------------------

    def _meet(self, item: SimulatedJob, running: RunningUnit) -> None:
        """The job shares its devices from now on."""
        assert self._sharing is not None
        table = self.cluster.table
        places = [
            ((row, device), table.models[dict(table.devices_of[row])[device]].model)
            for row, devices in running.rows
            for device in devices
        ]
        if places:
            profile = Profile(item.job.profile, running.unit.demand.ranks)
            self._neighbours_changed(self._sharing.began(item.key, profile, places))

    def _neighbours_changed(self, rates: dict[UnitKey, float]) -> None:
        for key, rate in rates.items():
            item = self._jobs[key]
            item.neighbours = rate
            self._set_speed(item)

    def _exchange(self, item: SimulatedJob) -> None:
        """The ranks of a gang over several domains begin to exchange what they must."""
        assert self._flows is not None
        assert item.running is not None
        self._flows.began(item.key, self._domains_of(item.running), item.job.traffic_bytes_per_s, self.now_s)
        item.links = self._flows.share(item.key)
        self._set_speed(item)
        self._watch_wan()

    def _watch_wan(self) -> None:
        """After each change: flows may be granted more or less, and something ends by itself next."""
        if self._flows is not None:
            for key, share in self._flows.changed().items():
                item = self._jobs[key]
                item.links = share
                self._set_speed(item)
        following = self.wan.next_finish()
        if following is not None and following[0] < self._wan_due:
            self._wan_due = max(following[0], self.now_s)
            self._push(self._wan_due, WAN, None)
