"""Requests side by side: order where it matters, a bound, and up to where a crash may begin again."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.placing.reading import ReadPositions
from agent.placing.side_by_side import WAITING_FOR_EACH, SideBySide
from tests.unit.agent.paper_slurm import GPUS
from tests.unit.agent.slurm_network import SlurmNetwork

WORKS = st.lists(
    st.tuples(st.frozensets(st.sampled_from("abcd"), min_size=1, max_size=3), st.integers(0, 4)), max_size=12
)


@given(WORKS, st.integers(1, 3))
def test_what_shares_a_name_keeps_its_order_and_no_more_than_the_bound_are_worked_on(
    works: list[tuple[frozenset[str], int]], most: int
) -> None:
    asyncio.run(worked(works, most))


async def worked(works: list[tuple[frozenset[str], int]], most: int) -> None:
    under_way: set[int] = set()
    done: list[int] = []

    async def work(number: int, turns: int) -> None:
        under_way.add(number)
        assert len(under_way) <= most
        names = [works[other][0] for other in under_way]
        assert sum(map(len, names)) == len(frozenset().union(*names))
        for _ in range(turns):
            await asyncio.sleep(0)
        under_way.discard(number)
        done.append(number)

    async with asyncio.TaskGroup() as group:
        side_by_side = SideBySide(group, most)
        for number, (names, turns) in enumerate(works):
            await side_by_side.add(names, partial(work, number, turns))
    assert sorted(done) == list(range(len(works)))
    for name in "abcd":
        assert [number for number in done if name in works[number][0]] == [
            number for number, (names, _) in enumerate(works) if name in names
        ]


async def test_what_has_nothing_in_common_does_not_wait_for_each_other() -> None:
    done = []
    slow = asyncio.Event()

    async def quick() -> None:
        done.append("quick")
        slow.set()

    async def last() -> None:
        done.append("last")

    async with asyncio.TaskGroup() as group:
        side_by_side = SideBySide(group, 2)
        # The first one ends after the second, or this never ends.
        await side_by_side.add({"a"}, partial(until, slow))
        await side_by_side.add({"a"}, last)
        await side_by_side.add({"b"}, quick)
    assert done == ["quick", "last"]


async def until(event: asyncio.Event) -> None:
    await event.wait()


async def test_who_adds_waits_when_many_do() -> None:
    gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        side_by_side = SideBySide(group, 1)
        for _ in range(1 + WAITING_FOR_EACH):
            await side_by_side.add({"a"}, partial(until, gate))
        more = group.create_task(side_by_side.add({"a"}, partial(until, gate)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not more.done()
        gate.set()
        await more


@given(st.permutations(range(8)), st.integers(0, 3))
def test_the_position_is_that_before_which_all_was_handled(order: list[int], gap: int) -> None:
    """Offsets with gaps: what is for others stands between."""
    offsets = [(1 + gap) * number for number in range(8)]
    positions = ReadPositions()
    for offset in offsets:
        positions.begin(0, offset)
    told = -1
    handled: set[int] = set()
    for number in order:
        handled.add(offsets[number])
        said = positions.end(0, offsets[number])
        told = told if said is None else said
        left = [offset for offset in offsets if offset not in handled]
        assert told == (left[0] - 1 if left else offsets[-1])


async def test_a_shard_is_answered_while_slurm_is_slow_with_another(tmp_path: Path) -> None:
    network = SlurmNetwork(tmp_path, shards=2)
    await network.begin()
    one, other = network.shards.values()
    other.submit("first", GPUS)
    await network.exchange()
    assert other.runs() == {"first"}
    before = network.book.positions[0]
    network.slurm.takes_jobs.clear()
    one.submit("slow", GPUS)
    one.step()
    network.finish(other, "first")
    async with asyncio.TaskGroup() as group:
        work = SideBySide(group, 2)
        for shard in (one, other):
            await network.take(shard, work)
        while network.book.grants:
            await asyncio.sleep(0)
        assert network.book.positions[0] == before, (
            "after a crash the slow one is read again, the other one passed over"
        )
        network.slurm.takes_jobs.set()
    assert network.book.positions[0] == before + 2
    await network.exchange()
    assert one.runs() == {"slow"}
    await network.end()
