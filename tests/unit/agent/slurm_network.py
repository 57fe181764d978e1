"""A domain that is a Slurm on paper, its agent's answers, and shards that ask it; messages arrive when a test says so."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from agent.engines.slurm.scheduler import QueueRules, SlurmScheduler
from agent.placing.answering import Answering
from agent.placing.grant_book import GrantBook
from agent.placing.side_by_side import SideBySide
from meridian.contracts.scheduler.v1.scheduler_pb2 import PlacementAnswer, PlacementRequest
from services.scheduler.core import lifecycle
from services.scheduler.core.apart.carrying import carry_out
from services.scheduler.core.apart.dispatching import Dispatcher
from services.scheduler.core.apart.messages import Request, Session
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.lifecycle import RunReport
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, JobKind, JobSpec
from services.scheduler.shards.wire import answer_from, request_message
from tests.unit.agent.paper_slurm import A100, GPUS, PaperSlurm
from tests.unit.scheduler.world import a_fleet

POLICY = Policy(order=("priority", "age"))
NODES = ("north-0", "north-1")


@dataclass
class Shard:
    """A shard and what is on its way between it and the domain, in order."""

    name: str
    book: Book
    dispatcher: Dispatcher
    asked: deque[PlacementRequest] = field(default_factory=deque)
    answered: deque[PlacementAnswer] = field(default_factory=deque)
    waiting: dict[str, str] = field(default_factory=dict)

    def send(self, requests: Iterable[Request]) -> None:
        self.asked += [request_message(item, 0.0) for item in requests]

    def merge(self, draft: Draft) -> None:
        self.send(self.dispatcher.released(draft))
        self.book.merge(draft)

    def submit(self, job_id: str, gpus: int, ranks: int = 1) -> None:
        draft = self.book.draft()
        demand = Demand(1, cpus=1.0, accelerators=gpus)
        spec = JobSpec(JobKind.GANG, demand, ranks=ranks, command=("run",))
        lifecycle.submit(draft, job_id, f"tenant-of-{self.name}", spec, 0.0)
        self.merge(draft)

    def step(self) -> None:
        """Turn after turn until there is nothing to do."""
        self.book.advance(0.0)
        while True:
            step = self.dispatcher.step(self.book, 0.0)
            self.send(step.requests)
            if step.waiting is not None:
                self.waiting = {key.job_id: reason for key, reason in step.waiting.items()}
            if self.dispatcher.due_s() > 0.0:
                return

    def hear(self) -> None:
        """Take the next answer."""
        draft = self.book.draft()
        heard = self.dispatcher.answer(answer_from(self.answered.popleft()), draft)
        carry_out(draft, heard.carried, POLICY, 0.0, lambda: "dec")
        self.send(heard.requests)
        self.merge(draft)

    def runs(self) -> set[str]:
        """Jobs with a run."""
        return {run.key.job_id for run in self.book.runs.values()}


class SlurmNetwork:
    """See the module. No time passes: nothing is given back because nobody asked for it, nothing falls silent."""

    def __init__(self, directory: Path, shards: int = 1, most_queued: int = 1) -> None:
        self.slurm = PaperSlurm(directory / "slurm", NODES)
        rules = QueueRules(answer_s=1e-9, claim_s=1e9, most_queued=most_queued)
        self.scheduler = SlurmScheduler(self.slurm, rules, dict.fromkeys(NODES, (A100,) * GPUS))
        self.book = GrantBook(directory / "grants")
        self.answering = Answering("north", 1, self.book, self.scheduler)
        fleet = a_fleet({"north": len(NODES)})
        domains = {name: replace(item, own_scheduler=True) for name, item in fleet.domains.items()}
        self.shards: dict[str, Shard] = {}
        for number in range(shards):
            name, book = f"shard-{number}", Book(POLICY)
            draft = book.draft()
            draft.fleet = replace(fleet, domains=domains, asks_domains=True)
            book.merge(draft)
            self.shards[name] = Shard(name, book, Dispatcher(name, Session(1, 1), POLICY))
        self._offset = 0

    async def begin(self) -> None:
        self.book.open()
        await self.slurm.look()
        await self.answering.restore()
        await self.exchange()

    async def end(self) -> None:
        await self.book.close()

    # -- what happens on the agent's side ------------------------------------------------------------------------------

    async def answer(self, shard: Shard) -> None:
        """Handle the next request of a shard."""
        async with asyncio.TaskGroup() as group:
            await self.take(shard, SideBySide(group, 1))

    async def answer_side_by_side(self) -> None:
        """Handle what shards have asked."""
        async with asyncio.TaskGroup() as group:
            work = SideBySide(group, 3)
            for shard in self.shards.values():
                while shard.asked:
                    await self.take(shard, work)

    async def take(self, shard: Shard, work: SideBySide) -> None:
        """Read the next request of a shard, and have it handled."""
        self._offset += 1
        request, place = shard.asked.popleft(), (0, self._offset)
        self.answering.received(*place)
        await work.add(
            self.answering.concerns(request), partial(self.answering.handle, request, f"event-{self._offset}", *place)
        )

    def say(self) -> None:
        """What there is to be told goes out."""
        self.answering.look()
        for number in sorted(self.book.unanswered):
            message = self.book.unanswered[number]
            self.shards[message.shard].answered.append(PlacementAnswer.FromString(message.SerializeToString()))
            self.book.write([self.book.answered(number)])

    async def tend(self) -> None:
        """The agent asks its Slurm, and looks after what waits there."""
        await self.slurm.look()
        await self.scheduler.tend()

    # -- all together --------------------------------------------------------------------------------------------------

    async def exchange(self) -> None:
        """Messages arrive and are answered until nobody says anything more; Slurm is not asked by itself."""
        while True:
            for shard in self.shards.values():
                while shard.answered:
                    shard.hear()
                shard.step()
            if not any(shard.asked for shard in self.shards.values()):
                self.say()
                if not any(shard.answered for shard in self.shards.values()):
                    return
            while any(shard.asked for shard in self.shards.values()):
                await self.answer_side_by_side()
            self.say()

    def finish(self, shard: Shard, job_id: str) -> None:
        """A run has ended well, and its job in Slurm."""
        self.slurm.end(self.slurm.job_of(job_id), "COMPLETED")
        draft = shard.book.draft()
        (run,) = [run for run in shard.book.runs.values() if run.key.job_id == job_id]
        lifecycle.finished(draft, RunReport(run.run_id, "north"), 0.0, POLICY.restarts)
        shard.merge(draft)
