"""Units that keep their place in Slurm's queue while shards are refused: whatever happens in which order, they get what begins."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.unit.agent.paper_slurm import GPUS, PaperJob
from tests.unit.agent.slurm_network import NODES, Shard, SlurmNetwork


async def refused_for_now(directory: Path, most_queued: int) -> tuple[SlurmNetwork, Shard]:
    """One job has all of the domain; ``next`` was refused and keeps its place in the queue."""
    network = SlurmNetwork(directory, most_queued=most_queued)
    await network.begin()
    (shard,) = network.shards.values()
    shard.submit("all", GPUS, len(NODES))
    await network.exchange()
    assert shard.runs() == {"all"}
    network.slurm.begins_at_once = False
    shard.submit("next", GPUS)
    await network.exchange()
    assert shard.runs() == {"all"}
    assert network.slurm.job_of("next").state == "PENDING"
    return network, shard


@pytest.mark.parametrize("seen_between", [False, True])
@pytest.mark.parametrize("most_queued", [1, 2, 5])
async def test_its_nodes_are_seen_free_before_its_job_begins(
    tmp_path: Path, most_queued: int, seen_between: bool
) -> None:
    """The agent sees the nodes free, the shard asks at once and too early, and then the room does not change any more."""
    network, shard = await refused_for_now(tmp_path, most_queued)
    network.finish(shard, "all")
    await network.tend()
    await network.exchange()
    assert "keeps its place" in shard.waiting["next"]
    network.slurm.cycle()
    if seen_between:
        await network.tend()
        await network.exchange()
    network.slurm.batch_steps()
    await network.tend()
    await network.exchange()
    assert shard.runs() == {"next"}
    assert len(network.slurm.queue) == 2, "the job that waited is the one that runs"
    await network.end()


@pytest.mark.parametrize("most_queued", [1, 2, 5])
async def test_its_job_begins_before_its_nodes_are_seen_free(tmp_path: Path, most_queued: int) -> None:
    network, shard = await refused_for_now(tmp_path, most_queued)
    network.finish(shard, "all")
    network.slurm.cycle()
    network.slurm.batch_steps()
    await network.tend()
    await network.exchange()
    assert shard.runs() == {"next"}
    assert len(network.slurm.queue) == 2
    await network.end()


@pytest.mark.parametrize("most_queued", [1, 2])
async def test_its_job_is_cancelled_by_others(tmp_path: Path, most_queued: int) -> None:
    network, _ = await refused_for_now(tmp_path, most_queued)
    network.slurm.end(network.slurm.job_of("next"), "CANCELLED")
    await network.tend()
    await network.exchange()
    assert len(network.slurm.queue) == 3
    assert network.slurm.job_of("next").state == "PENDING", "it is asked for anew, and waits anew"
    await network.end()


@pytest.mark.parametrize(("waits", "told"), [(False, False), (True, False), (True, True)])
async def test_more_room_that_came_while_a_unit_was_refused(tmp_path: Path, waits: bool, told: bool) -> None:
    """A unit's request is still on its way through Slurm when another shard gives something back; it is refused after that. A shard
    that ``waits`` for room already may be ``told`` of it before the refusal."""
    network = SlurmNetwork(tmp_path, shards=2, most_queued=0)
    await network.begin()
    one, other = network.shards.values()
    other.submit("half", GPUS)
    await network.exchange()
    assert other.runs() == {"half"}
    if waits:
        one.submit("wide", GPUS, len(NODES) + 1)
        await network.exchange()
        assert set(one.waiting) == {"wide"}
    network.slurm.takes_jobs.clear()
    network.slurm.was_asked.clear()
    network.slurm.begins_at_once = False
    one.submit("next", GPUS)
    one.step()
    asking = asyncio.create_task(network.answer(one))
    await network.slurm.was_asked.wait()
    network.finish(other, "half")
    await network.answer(other)
    await network.tend()
    if told:
        network.say()
    network.slurm.takes_jobs.set()
    await asking
    (refused,) = [item for answer in network.book.unanswered.values() for item in answer.refused]
    assert refused.name.job_id == "next"
    network.slurm.begins_at_once = True
    await network.exchange()
    assert one.runs() == {"next"}
    await network.end()


async def test_a_refusal_whose_cause_passes_unseen_is_asked_about_again(tmp_path: Path) -> None:
    network = SlurmNetwork(tmp_path, most_queued=0)
    await network.begin()
    (shard,) = network.shards.values()
    network.slurm.begins_at_once = False
    shard.submit("next", GPUS)
    await network.exchange()
    network.slurm.begins_at_once = True
    await network.tend()
    await network.exchange()
    assert not shard.runs(), "nothing has changed that anybody could see"
    network.answering.offer_again()
    await network.exchange()
    assert shard.runs() == {"next"}
    said = network.answering.summary().sequence
    network.answering.offer_again()
    assert network.answering.summary().sequence == said, "nobody was refused since"
    await network.end()


class SlurmAndShards(RuleBasedStateMachine):
    """Any order of what Slurm, the agent, shards and others do. In the end every unit has run, though nobody looks again by
    himself: whoever waits was told."""

    @initialize(shards=st.integers(1, 2), most_queued=st.integers(0, 3))
    def begin(self, shards: int, most_queued: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.Runner()
        self.theirs: list[PaperJob] = []
        self.units = 0
        self.most_queued = most_queued
        self.loop.run(self._begin(shards, most_queued))

    async def _begin(self, shards: int, most_queued: int) -> None:
        self.network = SlurmNetwork(Path(self.folder.name), shards, most_queued)
        await self.network.begin()
        for shard in self.network.shards.values():
            self._submit(shard, GPUS, 1)
            self._submit(shard, GPUS, 2)

    def _submit(self, shard: Shard, gpus: int, ranks: int) -> None:
        self.units += 1
        shard.submit(f"job{self.units}", gpus, ranks)

    def _shard(self, data: st.DataObject) -> Shard:
        return self.network.shards[data.draw(st.sampled_from(sorted(self.network.shards)))]

    @rule(data=st.data(), gpus=st.integers(1, GPUS), ranks=st.integers(1, 2))
    def submit(self, data: st.DataObject, gpus: int, ranks: int) -> None:
        self._submit(self._shard(data), gpus, ranks)

    @rule(gpus=st.integers(1, GPUS))
    def others_submit(self, gpus: int) -> None:
        self.theirs.append(self.network.slurm.foreign(gpus))

    @precondition(lambda self: any(job.state == "RUNNING" for job in self.theirs))
    @rule(data=st.data())
    def theirs_ends(self, data: st.DataObject) -> None:
        self.network.slurm.end(
            data.draw(st.sampled_from([j for j in self.theirs if j.state == "RUNNING"])), "COMPLETED"
        )

    @rule(at_once=st.booleans())
    def slurm_is_quick(self, at_once: bool) -> None:
        self.network.slurm.begins_at_once = at_once

    @rule(told=st.booleans())
    def slurm_begins(self, told: bool) -> None:
        self.network.slurm.cycle()
        if told:
            self.network.slurm.batch_steps()

    @rule()
    def batch_steps(self) -> None:
        self.network.slurm.batch_steps()

    @rule()
    def agent_tends(self) -> None:
        self.loop.run(self.network.tend())

    @rule()
    def agent_looks_at_jobs(self) -> None:
        self.loop.run(self.network.slurm.look_at_jobs())

    @rule()
    def agent_says(self) -> None:
        self.loop.run(self._say())

    async def _say(self) -> None:
        self.network.say()

    @rule()
    def agent_answers_side_by_side(self) -> None:
        self.loop.run(self.network.answer_side_by_side())

    @rule(data=st.data())
    def shard_hears(self, data: st.DataObject) -> None:
        shard = self._shard(data)
        if shard.answered:
            shard.hear()

    @rule(data=st.data())
    def shard_steps(self, data: st.DataObject) -> None:
        self._shard(data).step()

    @rule()
    def exchange(self) -> None:
        self.loop.run(self.network.exchange())

    @precondition(lambda self: any(shard.runs() for shard in self.network.shards.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        runs = sorted((name, job) for name, shard in self.network.shards.items() for job in shard.runs())
        name, job = data.draw(st.sampled_from(runs))
        self.network.finish(self.network.shards[name], job)

    def teardown(self) -> None:
        if not hasattr(self, "network"):
            return
        try:
            self.loop.run(self._drain())
        finally:
            self.loop.close()
            self.folder.cleanup()

    async def _drain(self) -> None:
        network = self.network
        if not self.most_queued:
            # What such a Slurm did not begin in time it does not know any more, and nothing is to be seen of that.
            network.slurm.begins_at_once = True
            network.answering.offer_again()
        for job in self.theirs:
            if job.state in {"PENDING", "RUNNING"}:
                network.slurm.end(job, "COMPLETED")
        for _ in range(10 * self.units):
            await network.exchange()
            network.slurm.cycle()
            network.slurm.batch_steps()
            await network.tend()
            await network.exchange()
            for shard in network.shards.values():
                for job_id in sorted(shard.runs()):
                    network.finish(shard, job_id)
        waiting = {name: shard.waiting for name, shard in network.shards.items() if shard.book.queued}
        assert not waiting
        assert not network.book.grants
        assert not [job for job in network.slurm.queue.values() if job.state in {"PENDING", "RUNNING"}]
        await network.end()


SlurmAndShards.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSlurmAndShards = SlurmAndShards.TestCase
