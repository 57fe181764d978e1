"""Parts of accelerators on two levels: a domain moves them between runs of any shards, and each shard is told of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core import lifecycle
from services.scheduler.core.apart.carrying import carry_out
from services.scheduler.core.apart.granted import Grant
from services.scheduler.core.apart.messages import GrantName, Request, Session
from services.scheduler.core.apart.parts import Part, moved
from services.scheduler.core.apart.rounds import Carried
from services.scheduler.core.book import Book
from services.scheduler.core.effects import Adjust
from services.scheduler.core.explaining.explanation import sentences
from services.scheduler.core.measured import Load, News
from services.scheduler.core.policy import Policy
from services.scheduler.core.scaling import Scaling
from services.scheduler.core.state import Demand, JobKind, JobSpec, PlacedRank, RunState, UnitKey, UnitState
from services.scheduler.domains.store import grant_from, grant_message
from services.scheduler.policy.file import parse
from tests.unit.scheduler.apart_network import Network, Shard
from tests.unit.scheduler.world import a_fleet

DEVICE = ("north-0", 0)
RULES = Scaling(1, 1, target=10.0, down_after_s=0.0, cooldown_s=0.0)


def shared(milli: int) -> Demand:
    return Demand(1, cpus=0.5, accelerators=1, device_milli=milli)


WEB = JobSpec(JobKind.SERVICE, shared(300), replicas=1, command=("serve",), scaling=RULES, most_milli=800)
TRAIN = JobSpec(JobKind.TASK, shared(700), command=("train",), least_milli=200)


def part(number: int, milli: int, asked: int, least: int) -> Part:
    return Part(UnitKey(f"job-{number}", 0), DEVICE, milli, asked, least)


@pytest.mark.parametrize(
    ("free", "wanted", "found"),
    [
        # By hand: what is free first, then from job 2 (which can give 500) before job 3 (which can give 100).
        (0, {1: 250}, {1: 250, 2: 450}),
        (100, {1: 250}, {1: 250, 2: 550}),
        (0, {1: 800}, {1: 600, 2: 200, 3: 100}),
        (0, {1: 1000, 2: 600}, {1: 200, 3: 100}),
        # Job 4 keeps all that it has. What is not wanted any more goes to who has less than was asked for: job 3.
        (0, {1: 50}, {1: 50, 3: 250}),
        (0, {}, {}),
        (60, {}, {3: 260}),
        (500, {}, {3: 300}),
    ],
)
def test_parts_by_hand(free: int, wanted: dict[int, int], found: dict[int, int]) -> None:
    parts = [part(1, 100, 100, 0), part(2, 600, 600, 200), part(3, 200, 300, 100), part(4, 100, 100, 0)]
    key = {number: UnitKey(f"job-{number}", 0) for number in range(1, 5)}
    result = moved(parts, {key[number]: milli for number, milli in wanted.items()}, free)
    assert result == {key[number]: milli for number, milli in found.items()}


@given(
    st.lists(st.tuples(st.integers(1, 250), st.integers(0, 250), st.integers(1, 400)), min_size=1, max_size=4),
    st.dictionaries(st.integers(0, 3), st.integers(1, 1000)),
    st.integers(0, 300),
)
def test_nothing_is_made_or_lost_and_nobody_falls_below_its_least(
    rows: list[tuple[int, int, int]], wanted: dict[int, int], free: int
) -> None:
    parts = [part(number, milli, asked, min(least, milli)) for number, (milli, least, asked) in enumerate(rows)]
    before = {item.key: item.milli for item in parts}
    wishes = {parts[number].key: milli for number, milli in wanted.items() if number < len(parts)}
    after = before | moved(parts, wishes, free)
    assert sum(after.values()) <= sum(before.values()) + free
    for item in parts:
        if item.key in wishes:
            assert min(before[item.key], wishes[item.key]) <= after[item.key] <= max(before[item.key], wishes[item.key])
        elif item.least:
            assert after[item.key] >= item.least
        else:
            assert after[item.key] >= before[item.key]


# -- over both levels ----------------------------------------------------------------------------------------------------


def beside_each_other(web: JobSpec = WEB) -> tuple[Network, Shard, Shard]:
    """A replica of one shard and a training of another on the same accelerator, the only one that there is."""
    network = Network(a_fleet({"north": 1}, devices=1))
    network.begin(2)
    exchanged(network)
    first, second = network.shards["shard-0"], network.shards["shard-1"]
    network.submit(first, web)
    network.submit(second, TRAIN)
    exchanged(network)
    assert parts_of(network) == {"job-1": 300, "job-2": 700}
    return network, first, second


def exchanged(network: Network, times: int = 4) -> None:
    for _ in range(times):
        network.exchange()
        network.check()


def parts_of(network: Network) -> dict[str, int]:
    """What runs have as far as shards know."""
    runs = [run for shard in network.shards.values() for run in shard.book.runs.values()]
    return {run.key.job_id: run.ranks[0].device_milli for run in runs}


def granted(network: Network) -> dict[str, int]:
    """What they have by their domain."""
    return {key.job_id: grant.ranks[0].device_milli for key, grant in network.domains["north"].grants.items()}


def loaded(network: Network, shard: Shard, value: float) -> None:
    network.now_s += 1.0
    keys = [run.key for run in shard.book.runs.values() if run.state is RunState.ACTIVE]
    network.hear(shard, News(loads=tuple((key, Load(value, network.now_s)) for key in keys)))


def test_training_of_another_shard_gives_to_a_replica_under_load_and_gets_it_back() -> None:
    network, first, _ = beside_each_other()
    # By hand: 300 at a load of 20 are 600 where 10 is wanted.
    loaded(network, first, 20.0)
    exchanged(network)
    assert parts_of(network) == granted(network) == {"job-1": 600, "job-2": 400}
    adjusted = [effect.run.key.job_id for effect in network.effects if isinstance(effect, Adjust)]
    assert sorted(adjusted) == ["job-1", "job-2"]
    # No more than it may have; and the training keeps its least part.
    loaded(network, first, 90.0)
    exchanged(network)
    assert parts_of(network) == granted(network) == {"job-1": 800, "job-2": 200}
    loaded(network, first, 1.0)
    exchanged(network)
    assert parts_of(network) == granted(network) == {"job-1": 300, "job-2": 700}


def test_no_more_is_wished_than_the_quota_of_the_tenant_has() -> None:
    network, first, _ = beside_each_other()
    quota = "queues: [{name: org}, {name: tenant-of-shard-0, parent: org, nominal: {accelerators: 0.45}}]"
    first.book.use(parse(f"name: limited\nselection: {{limits: [quota]}}\n{quota}"), network.now_s)
    loaded(network, first, 20.0)
    exchanged(network)
    assert parts_of(network) == granted(network) == {"job-1": 450, "job-2": 550}
    loaded(network, first, 90.0)
    exchanged(network)
    assert parts_of(network) == granted(network) == {"job-1": 450, "job-2": 550}


def test_what_a_replica_had_comes_back_when_it_ends() -> None:
    network, first, _ = beside_each_other()
    loaded(network, first, 90.0)
    exchanged(network)
    network.finish(first, "job-1.0.1")
    exchanged(network)
    assert granted(network)["job-2"] == parts_of(network)["job-2"] == 700


@pytest.mark.parametrize("who", ["first", "second", "north"])
def test_what_was_told_to_one_that_is_gone_is_told_again(who: str) -> None:
    network, first, second = beside_each_other()
    loaded(network, first, 20.0)
    for pair in list(network.asked):
        while network.asked[pair]:
            network.deliver_request(pair)
    assert granted(network) == {"job-1": 600, "job-2": 400}
    assert parts_of(network) == {"job-1": 300, "job-2": 700}
    if who == "north":
        network.restart_domain("north")
    else:
        network.restart_shard({"first": first, "second": second}[who])
    exchanged(network)
    assert parts_of(network) == granted(network) == {"job-1": 600, "job-2": 400}
    # The shard that began anew knows what it asked for.
    assert network.domains["north"].grants[UnitKey("job-2", 0)].asked_milli == 700


def test_more_replicas_come_when_there_is_no_larger_part_to_have() -> None:
    network = Network(a_fleet({"north": 1}, devices=2))
    network.begin(1)
    exchanged(network)
    (shard,) = network.shards.values()
    network.submit(shard, replace(WEB, scaling=replace(RULES, most=2)))
    # It fills what the replica leaves of its accelerator and gives nothing.
    network.submit(shard, replace(TRAIN, least_milli=0))
    exchanged(network)
    second = UnitKey("job-1", 1)
    loaded(network, shard, 20.0)
    assert shard.book.units[second].state is UnitState.BLOCKED, "it may get more yet"
    exchanged(network)
    if parts_of(network)["job-1"] == 300:
        loaded(network, shard, 20.0)
        assert shard.book.units[second].state is UnitState.QUEUED
        exchanged(network)
        assert len(shard.book.runs) == 3
    else:
        pytest.fail("the two do not share an accelerator")


def test_a_wish_that_nobody_answers_does_not_hold_replicas_back() -> None:
    network = Network(a_fleet({"north": 1}, devices=2))
    network.begin(1)
    exchanged(network)
    (shard,) = network.shards.values()
    network.submit(shard, replace(WEB, scaling=replace(RULES, most=2)))
    exchanged(network)
    second = UnitKey("job-1", 1)
    loaded(network, shard, 20.0)
    network.asked.clear()
    assert shard.book.units[second].state is UnitState.BLOCKED
    loaded(network, shard, 20.0)
    assert shard.book.units[second].state is UnitState.QUEUED


def test_a_domain_that_moves_no_parts_is_not_asked_and_replicas_come() -> None:
    network = Network(a_fleet({"north": 1}, devices=2))
    network.begin(1)
    exchanged(network)
    (shard,) = network.shards.values()
    network.submit(shard, replace(WEB, scaling=replace(RULES, most=2)))
    exchanged(network)
    draft = shard.book.draft()
    own = {"north": replace(network.fleet.domains["north"], own_scheduler=True)}
    draft.fleet = replace(draft.fleet, domains=own)
    shard.book.merge(draft)
    loaded(network, shard, 20.0)
    assert not any(item.parts for queue in network.asked.values() for item in queue)
    assert shard.book.units[UnitKey("job-1", 1)].state is UnitState.QUEUED


def test_what_is_adopted_keeps_what_it_asked_for() -> None:
    network, _, second = beside_each_other()
    network.tables["north"].clear()
    network.sessions["north"].clear()
    network.restart_domain("north")
    network.restart_shard(second)
    network.restart_shard(network.shards["shard-0"])
    exchanged(network)
    grant = network.domains["north"].grants[UnitKey("job-2", 0)]
    assert (grant.least_milli, grant.asked_milli, grant.ranks[0].device_milli) == (200, 700, 700)


def test_a_grant_is_written_with_its_bounds() -> None:
    rank = PlacedRank(0, "north", "north-0", 0, (0,), 400)
    grant = Grant("shard-0", GrantName(UnitKey("job-1", 0), 2), "lab", shared(400), (rank,), 900.0, 200, 700)
    assert grant_from(grant_message("north", grant)) == grant


def test_what_is_not_the_shards_own_is_not_moved() -> None:
    network, _, _ = beside_each_other()
    domain = network.domains["north"]
    session = domain.sessions["shard-0"].session
    other = GrantName(UnitKey("job-2", 0), 1)
    late = GrantName(UnitKey("job-1", 0), 7)
    domain.handle(Request("north", "shard-0", session, parts=((other, 100), (late, 100))), network.now_s)
    domain.handle(Request("north", "shard-0", Session(0, 0), parts=((other._replace(key=late.key), 100),)), 1.0)
    assert granted(network) == {"job-1": 300, "job-2": 700}


def test_a_domain_that_moves_no_parts_is_named_with_the_fields_that_are_passed_over() -> None:
    fleet = a_fleet({"north": 1}, devices=1)
    own = replace(fleet, domains={"north": replace(fleet.domains["north"], own_scheduler=True)}, asks_domains=True)
    book = Book()
    draft = book.draft()
    draft.fleet = own
    lifecycle.submit(draft, "job-1", "lab", replace(TRAIN, most_milli=900), 1000.0)
    book.merge(draft)
    book.advance(1000.0)
    unit = book.cluster.pending.get(UnitKey("job-1", 0))
    assert unit is not None
    draft = book.draft()
    carried = Carried(unit, 1, (PlacedRank(0, "north", "north-0", 0, (0,), 700),), 1)
    carry_out(draft, [carried], Policy(), 1000.0, lambda: "dec-1")
    (record,) = draft.records
    why = "a run keeps its part of an accelerator in north, which has a scheduler of its own"
    assert [item["field"] for item in record.explanation["passed_over"]] == [
        "resources.min_accelerator_milli",
        "resources.max_accelerator_milli",
    ]
    assert f"resources.max_accelerator_milli is passed over: {why}." in sentences(record.explanation)
    # Elsewhere nothing is passed over.
    draft = book.draft()
    draft.fleet = replace(fleet, asks_domains=True)
    carry_out(draft, [carried], Policy(), 1000.0, lambda: "dec-1")
    assert "passed_over" not in draft.records[0].explanation
