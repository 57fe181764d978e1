"""Cycles of the live scheduler at 100,000 nodes: decided, carried out on the book, written to PostgreSQL in one transaction each.

    python -m bench.scheduler_cycle [--domains 100] [--nodes 1000] [--waiting 10000] [--bounds 500 0] [--rounds 3] [--json OUT]

The scheduler of the service (`LiveScheduler.run_cycles`) over a PostgreSQL of its own with fsync, in this process and without the bus:
the network and demands of bench/scheduler.py, so many jobs submitted at once, and cycles until all have their nodes. This is done
with each bound of placements (0: none, all jobs in one cycle) in turn; the jobs of former turns run on. A first wave judges every
demand on every node for the first time and is told apart. The nodes are put into the book and not written: cycles write none.

  cycle          from the begin of a transaction to the end of its commit
  loop held      the longest time for which nothing else in the process could run (events, API), from a task that looks every ms
  all placed     from the submission's commit until the last job has its nodes
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from dataclasses import dataclass, field, replace

from bench.result import Row, Setting, command_line, print_table, write
from bench.scheduler import SEED, mixed, network
from bench.servers import servers
from meridian.service import create_kernel
from meridian.settings import KernelSettings
from services.scheduler.collector import leave_survivors
from services.scheduler.core import lifecycle
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import JobKind, JobSpec
from services.scheduler.live import LiveScheduler
from services.scheduler.settings import SchedulerSettings

TICK_S = 0.001


@dataclass
class Wave:
    """What was measured of one submission: seconds per cycle, of them processor time of this process, and the longest hold."""

    cycles: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    all_s: float = 0.0
    held_s: float = 0.0


class Timed(LiveScheduler):
    """Times its cycles."""

    wave = Wave()

    async def _cycle(self) -> None:
        begun, processor = time.perf_counter(), time.process_time()
        await super()._cycle()
        self.wave.cycles.append(time.perf_counter() - begun)
        self.wave.processor.append(time.process_time() - processor)


async def _watch(wave: Wave) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(TICK_S)
        wave.held_s = max(wave.held_s, time.perf_counter() - before - TICK_S)


async def submit(live: Timed, nodes: int, jobs: int, name: str) -> None:
    """So many jobs are taken into the queue together."""
    async with live.outbox.transaction() as transaction:
        draft = await live.draft(transaction)
        now_s = draft.at_s = live.now_s()
        names: list[str] = []
        for number, unit in enumerate(mixed(nodes, jobs)):
            demand = unit.demand
            kind = JobKind.GANG if demand.ranks > 1 else JobKind.TASK
            spec = JobSpec(kind, demand, ranks=demand.ranks, command=("run",), priority=unit.priority)
            names.append(f"{name}-{number}")
            lifecycle.submit(draft, names[-1], unit.tenant_id, spec, now_s)
        await live.write(transaction, draft, dict.fromkeys(names, b""))


async def placed(live: Timed, settings: SchedulerSettings, nodes: int, jobs: int, name: str, bound: int) -> Wave:
    """Submit, and decide until all have their nodes."""
    settings.cycle_placements = bound
    await submit(live, nodes, jobs, name)
    wave = live.wave = Wave()
    begun = time.perf_counter()
    tasks = [asyncio.create_task(_watch(wave)), asyncio.create_task(live.run_cycles())]
    while live.book.queued:
        await asyncio.sleep(0.005)
        for task in tasks:
            if task.done():
                task.result()
    wave.all_s = time.perf_counter() - begun
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return wave


def _addressed(fleet: Fleet) -> Fleet:
    """The nodes with an address each, as machines have; at one address 10,000 runs take all ports there are."""
    nodes = {node_id: replace(node, address=f"{node_id}.example") for node_id, node in fleet.nodes.items()}
    return replace(fleet, nodes=nodes)


async def measure(domains: int, nodes: int, waiting: int, bounds: list[int], rounds: int) -> list[Row]:
    """The waves of all bounds in turn."""
    found: dict[int, list[Wave]] = {bound: [] for bound in bounds}
    leave_survivors()  # as the service does
    async with servers("scheduler") as where:
        kernel = create_kernel("scheduler", KernelSettings(database_url=where.database_url))
        settings = SchedulerSettings()
        live = Timed(kernel, settings, Policy())
        await live.start()
        try:
            draft = live.book.draft()
            draft.fleet = _addressed(network(domains * nodes, domains))
            live.book.merge(draft)
            first = await placed(live, settings, domains * nodes, waiting, "first", bounds[0])
            for number in range(rounds):
                for bound in bounds:
                    name = f"wave-{number}-{bound}"
                    found[bound].append(await placed(live, settings, domains * nodes, waiting, name, bound))
        finally:
            await live.stop()
            await kernel.database.close()
    where_said = f"{domains} x {nodes} nodes, {waiting} waiting"
    rows = _rows(f"bound {bounds[0]}, first wave", [first], where_said)
    for bound, waves in found.items():
        rows += _rows(f"bound {bound}" if bound else "no bound", waves, where_said)
    return rows


def _rows(subject: str, waves: list[Wave], where: str) -> list[Row]:
    cycles = [value for wave in waves for value in wave.cycles]
    values = {
        "cycle_s": cycles,
        "cycle_processor_s": [value for wave in waves for value in wave.processor],
        "loop_held_s": [wave.held_s for wave in waves],
        "all_placed_s": [wave.all_s for wave in waves],
    }
    rows = [
        Row(subject, name, statistics.median(found), low=min(found), high=max(found), slice=where, n=len(found))
        for name, found in values.items()
    ]
    return [*rows, Row(subject, "cycles", len(cycles) / len(waves), slice=where, n=len(waves))]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scheduler_cycle", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--domains", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=1_000, help="of each domain")
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--bounds", type=int, nargs="+", default=[500, 0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.domains, options.nodes, options.waiting, options.bounds, options.rounds))
    print_table(rows)
    if options.json:
        write(options.json, command_line("bench.scheduler_cycle"), [], SEED, Setting.OFFLINE, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
