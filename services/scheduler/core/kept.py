"""The cluster that a book keeps up: how jobs, units and runs appear to the decisions.

| in the book | in the cluster |
|---|---|
| queued unit, back-off over, no open run | waits |
| queued unit with nodes kept for it (nomination) | runs there, not preemptible; what it waits for holds its nodes too |
| active run | runs |
| run that is told to stop | holds its nodes under a name of its own (`ending_key`) until it has ended |
| ranks in domains that reported their end | nothing |

Steps of a merge: what runs hold is moved first (`run_changed`), then each unit that was touched is looked at once (`sync`).
Nothing here looks at units or runs that did not change.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import replace

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.declared_rates import DeclaredRates
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.pending import estimated_s
from services.scheduler.core.policy import Policy
from services.scheduler.core.records import Records
from services.scheduler.core.refit import refit
from services.scheduler.core.run_times import RunTimes
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import Demand, Job, JobKind, PlacedRank, Run, RunState, Unit, UnitKey, UnitState
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import INFINITE, SERVICE, Order, PendingUnit

_NOMINATION = "nomination"
_LEAST_LEFT_S = 60.0
"""A run that outlived its estimate is thought to run at least so much longer: it is not asked about all the time."""
_SLACK = 1e-6


class Kept:
    """See the module. ``_holders`` names for each running unit the run that holds its nodes, or `_NOMINATION`."""

    def __init__(self, book: Records, policy: Policy) -> None:
        self._book = book
        self.cluster = Cluster(table_of(book.fleet), policy, facts={"throughputs": DeclaredRates()})
        self.cluster.view.ports_held = book.ledger.ports
        self.now_s = 0.0
        self.changed_at_s = 0.0
        """When what is merged now happened, which may be later than the last cycle: what ends, ends then."""
        self._holders: dict[UnitKey, str] = {}
        self._timers: list[tuple[float, int, UnitKey]] = []
        self._ends: list[tuple[float, int, UnitKey]] = []
        self._pushed = 0
        self.fixed_ports: set[int] = set()
        """Ports that units asked for which waited: nobody else is given one of them."""

    # -- events ------------------------------------------------------------------------------------------------------

    def refit(self, before: Fleet, after: Fleet) -> None:
        """The fleet changed."""
        refit(self.cluster, before, after)

    def run_changed(self, before: Run | None, run: Run) -> None:
        """A run changed: what is told to stop holds its nodes under its own name."""
        self._ports_changed(before, run)
        name = ending_key(run)
        if run.state is RunState.STOPPING:
            self._end(run, name)
        elif before is not None and before.state is RunState.STOPPING:
            self.cluster.release(name, run.ended_at_s or self.changed_at_s)

    def sync(self, key: UnitKey) -> None:
        """Let a unit wait, run or neither, as the book has it."""
        book = self._book
        unit = book.units.get(key)
        open_runs = [book.runs[name] for name in book.runs_of.get(key, ())]
        active = next((run for run in open_runs if run.state is RunState.ACTIVE), None)
        if unit is not None and active is not None:
            self._hold(unit, active.run_id, active.open_ranks, active)
        elif unit is not None and unit.state is UnitState.QUEUED and unit.nomination is not None:
            self._hold(unit, _NOMINATION, unit.nomination.ranks, None)
        elif self._holders.pop(key, ""):
            self.cluster.release(key, self.changed_at_s)
        if unit is not None and (port := book.spec_of(key).demand.service_port):
            self.fixed_ports.add(port)
        if unit is None or unit.state is not UnitState.QUEUED or unit.nomination is not None or open_runs:
            self.cluster.withdraw(key)
            return
        if unit.not_before_s > self.now_s:
            self.cluster.withdraw(key)
            self._wake(unit.not_before_s, key)
            return
        if unit.excluded_nodes and unit.excluded_until_s > self.now_s:
            self._wake(unit.excluded_until_s, key)
        pending = pending_unit(book.jobs[key.job_id], unit, self.now_s, book.run_times)
        if pending != self.cluster.pending.get(key):
            self.cluster.add(pending)

    def advance(self, now_s: float) -> None:
        """Let time pass."""
        before_s, self.now_s = self.now_s, max(self.now_s, now_s)
        self.changed_at_s = self.now_s
        if self.cluster.memory is not None and self._next_step_s(before_s) <= self.now_s + _SLACK:
            # A running unit has fallen behind units that wait: they may take it off now.
            self.cluster.forget()
        while self._timers and self._timers[0][0] <= self.now_s:
            _, _, key = heapq.heappop(self._timers)
            if key in self._book.units:
                self.sync(key)
        while self._ends and self._ends[0][0] <= self.now_s:
            _, _, key = heapq.heappop(self._ends)
            running = self.cluster.running.get(key)
            if running is not None and running.expected_end_s <= self.now_s and key in self._book.units:
                self._outlived(key, running)

    def restate(self, running: RunningUnit) -> None:
        """Other estimates about a unit that runs on where it is; what the last cycle found rested on the old ones."""
        self.cluster.restate(running)
        self.cluster.forget()
        self._watch_end(running.unit.key, running)

    def next_fall_s(self, now_s: float) -> float:
        """When, after ``now_s``, the first running unit takes another place in the policy's order by itself, or may as it is thought
        to end then and goes on; infinite when none does, or when nobody could take it off."""
        order, policy = self.cluster.pending.order, self.cluster.policy
        rests_on_ends = policy.preemptions and len(self.cluster.pending) and not all(map(_lasts, order))
        end_s = self._ends[0][0] if self._ends and rests_on_ends else float("inf")
        return min(self._next_step_s(now_s), end_s)

    def _next_step_s(self, now_s: float) -> float:
        """The same without ends: `Order.changes_at_s`."""
        cluster = self.cluster
        falls = [plugin.changes_at_s for plugin in cluster.pending.order if hasattr(plugin, "changes_at_s")]
        if not falls or not cluster.policy.preemptions or not len(cluster.pending):
            return float("inf")
        times = (float(at_s(running, now_s)) for running in cluster.running.values() for at_s in falls)
        return min(times, default=float("inf"))

    def remember(self, decisions: Decisions) -> None:
        """What the cycle found holds for the next one, until more room comes."""
        cluster = self.cluster
        cluster.memory = decisions.memory
        if cluster.memory is not None:
            cluster.memory.stamp = cluster.stamp
            # Runs change here without their nodes: nominations become runs, estimates are renewed.
            cluster.memory.since = None
        cluster.pending.looked()

    def has_room(self, key: UnitKey) -> bool:
        """See `Book.has_room`: nothing on its nodes is given away twice."""
        running, view = self.cluster.running.get(key), self.cluster.view
        if running is None or len(running.rows) != len(running.ranks):
            return False
        for row, devices in running.rows:
            if not view.up[row] or view.free_cpus[row] < -_SLACK or view.free_memory_bytes[row] < 0:
                return False
            places = {index: place for place, (index, _) in enumerate(view.table.devices_of[row])}
            if any(index not in places or view.device_milli[row, places[index]] < 0 for index in devices):
                return False
        return True

    # -- steps -------------------------------------------------------------------------------------------------------

    def _hold(self, unit: Unit, holder: str, ranks: tuple[PlacedRank, ...], run: Run | None) -> None:
        """A unit holds nodes: by a run, or by a nomination (``run`` None)."""
        key, cluster = unit.key, self.cluster
        running = cluster.running.get(key)
        since_s = self.now_s if run is None else run.started_at_s or run.assigned_at_s
        if running is None:
            waited = cluster.withdraw(key)
            # What this run's checkpoint keeps is part of the time that it has run for.
            before = unit if run is None else replace(unit, kept_s=0.0)
            base = waited or pending_unit(self._book.jobs[key.job_id], before, self.now_s, self._book.run_times)
        else:
            base = running.unit
        demand = held_demand(self._book.jobs[key.job_id].units[key.unit_index].demand, len(ranks), part_of(ranks))
        if base.demand != demand or base.preemptible != (run is not None):
            base = replace(base, demand=demand, preemptible=run is not None)
        if running is not None and running.ranks == ranks:
            if self._holders[key] == holder and running.since_s == since_s:
                if running.kept_s != unit.kept_s:
                    cluster.restate(replace(running, kept_s=unit.kept_s))
                return
            # The same nodes, so nothing is freed or taken: a nomination became a run, or the run says when it began.
            running = self._running(base, ranks, since_s, unit.kept_s, running.rows)
            cluster.restate(running)
        else:
            if running is not None:
                cluster.release(key, self.changed_at_s)
            running = self._running(base, ranks, since_s, unit.kept_s)
            cluster.occupy(running)
        self._holders[key] = holder
        self._watch_end(key, running)

    @staticmethod
    def _running(
        unit: PendingUnit,
        ranks: tuple[PlacedRank, ...],
        since_s: float,
        kept_s: float,
        rows: tuple[tuple[int, tuple[int, ...]], ...] = (),
    ) -> RunningUnit:
        return RunningUnit(
            unit,
            ranks,
            since_s,
            rows,
            kept_s,
            since_s + estimated_s(unit, "expected"),
            since_s + estimated_s(unit, "limit"),
            unit.service_index,
        )

    def _end(self, run: Run, name: UnitKey) -> None:
        cluster, ranks = self.cluster, run.open_ranks
        running = cluster.running.get(name)
        if running is not None and running.ranks == ranks and running.limit_end_s == run.stop_until_s:
            return
        cluster.release(name, self.changed_at_s)
        if self._holders.get(run.key) == run.run_id:
            del self._holders[run.key]
            cluster.release(run.key, self.changed_at_s)
        job = self._book.jobs[run.key.job_id]
        demand = held_demand(job.units[run.key.unit_index].demand, len(ranks), part_of(ranks))
        unit = PendingUnit(name, run.tenant_id, job.spec.priority, 0.0, demand, preemptible=False)
        since_s, until_s = run.started_at_s or run.assigned_at_s, run.stop_until_s
        cluster.occupy(RunningUnit(unit, ranks, since_s, (), 0.0, until_s, until_s))

    def _outlived(self, key: UnitKey, running: RunningUnit) -> None:
        job = self._book.jobs[key.job_id]
        left_s = self._book.run_times.left_s(job, job.units[key.unit_index], running.ran_s(self.now_s))
        end_s = self.now_s + max(left_s, _LEAST_LEFT_S)
        running = replace(running, expected_end_s=end_s)
        self.cluster.restate(running)
        if self.cluster.policy.preemptions and not all(map(_lasts, self.cluster.pending.order)):
            # It has more left than was thought, maybe more than units that wait: they may take it off now.
            self.cluster.forget()
        self._watch_end(key, running)

    def _watch_end(self, key: UnitKey, running: RunningUnit) -> None:
        if running.expected_end_s != float("inf"):
            self._pushed += 1
            heapq.heappush(self._ends, (running.expected_end_s, self._pushed, key))

    def _wake(self, at_s: float, key: UnitKey) -> None:
        self._pushed += 1
        heapq.heappush(self._timers, (at_s, self._pushed, key))

    def _ports_changed(self, before: Run | None, run: Run) -> None:
        if not self.fixed_ports or (before is not None and run.state is not RunState.ENDED):
            return
        if run.master_port in self.fixed_ports or run.service_port in self.fixed_ports:
            self.cluster.view.touch_address(run.master_addr)


def _lasts(order: Order) -> bool:
    """Whether the place of a running unit by this criterion does not rest on when it is thought to end, or only on what is asked
    for again at the policy's interval (`Renewal`)."""
    return bool(getattr(order, "lasting", False) or getattr(order, "renews", False))


def ending_key(run: Run) -> UnitKey:
    """The name under which a run that is told to stop holds its nodes; no unit has it."""
    return UnitKey(run.run_id, -1 - run.key.unit_index)


def held_demand(demand: Demand, ranks: int, milli: int = 0) -> Demand:
    """What ``ranks`` open ranks of a unit hold, with a part of ``milli`` thousandths of their devices (0: as asked for)."""
    if milli and milli != demand.device_milli:
        return replace(demand, ranks=ranks, device_milli=milli)
    return demand if demand.ranks == ranks else replace(demand, ranks=ranks)


def part_of(ranks: tuple[PlacedRank, ...]) -> int:
    """The part of its devices that each rank holds, in thousandths; 0 without devices."""
    return ranks[0].device_milli if ranks and ranks[0].devices else 0


def pending_unit(job: Job, unit: Unit, now_s: float, run_times: RunTimes) -> PendingUnit:
    """A queued unit as the decisions see it."""
    spec = job.units[unit.key.unit_index]
    attained_s = unit.attained_s + unit.kept_s
    known = run_times.estimate(job, spec, attained_s)
    return PendingUnit(
        unit.key,
        job.tenant_id,
        job.spec.priority,
        unit.queued_at_s,
        effective_demand(spec.demand, unit, now_s),
        submitted_at_s=job.submitted_at_s,
        limit_s=known.limit_s,
        expected_s=known.expected_s,
        low_s=known.low_s,
        high_s=known.high_s,
        attained_s=attained_s,
        served_s=unit.served_s,
        service_index=known.service_index,
        deadline_s=job.spec.deadline_s or INFINITE,
        min_ranks=job.spec.min_ranks if job.spec.elastic else 0,
        max_ranks=job.spec.max_ranks if job.spec.elastic else 0,
        work=_work_left(job, unit) if spec.demand.profile else 0.0,
        kind=SERVICE if job.spec.kind is JobKind.SERVICE else "batch",
    )


def _work_left(job: Job, unit: Unit) -> float:
    """Steps that the checkpoint leaves to be made; 0: unknown."""
    done = unit.checkpoint.step if unit.checkpoint is not None else 0
    return float(max(job.spec.steps - done, 1)) if job.spec.steps else 0.0


def effective_demand(demand: Demand, unit: Unit, now_s: float) -> Demand:
    """What placing the unit asks for now: with the nodes it is to avoid and the place of its checkpoint."""
    if unit.excluded_nodes and unit.excluded_until_s > now_s:
        demand = replace(demand, excluded_nodes=unit.excluded_nodes)
    if unit.checkpoint is not None:
        demand = replace(
            demand, checkpoint_domain=unit.checkpoint.domain_id, checkpoint_bytes=unit.checkpoint.size_bytes
        )
    return demand


def trial(cluster: Cluster, units: Iterable[PendingUnit], decide: Callable[[Cluster], Decisions]) -> Decisions:
    """What ``decide`` says when ``units`` wait too; on a copy, so that the cluster stays as it is."""
    other = cluster.copy()
    other.extend(units)
    return decide(other)
