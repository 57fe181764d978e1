"""Nodes that sleep on two levels: the domain wakes them for a unit that has no room elsewhere, and puts idle ones to sleep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.core import nominations
from services.scheduler.core.apart.granted import Grant
from services.scheduler.core.apart.grants import DomainGrants
from services.scheduler.core.apart.messages import GrantName, Request, Session
from services.scheduler.core.fleet import Fleet, MarkKind, NodeState, with_expected_demand
from services.scheduler.core.idle_nodes import IdleRules
from services.scheduler.core.policy import policy_from_json
from services.scheduler.core.sleeping import ASKED_AGAIN_S, PATIENCE_S
from services.scheduler.core.state import Demand, Nomination, PlacedRank, UnitKey
from tests.unit.scheduler.apart_network import POLICY, Network, Shard, a_network
from tests.unit.scheduler.world import a_fleet, gang, task

KEY = UnitKey("job-1", 0)
WHOLE = task(accelerators=4)
RULES = IdleRules(100.0)
RESTING = policy_from_json({"options": {"idle_nodes": {"sleep_after_s": 100.0}}})


def asleep(*node_ids: str, shards: int = 1) -> tuple[Network, Shard]:
    """A network of nodes with 4 accelerators that wake in 30 s; these of them sleep, and everybody knows."""
    network = a_network(shards, wake_s=30.0)
    network.put_to_sleep(*node_ids)
    exchanged(network)
    return network, network.shards["shard-0"]


def exchanged(network: Network, times: int = 4) -> None:
    for _ in range(times):
        network.exchange()
        network.check()


def test_a_unit_with_room_elsewhere_wakes_nobody() -> None:
    network, shard = asleep("east-0", "east-1", "west-0", "west-1")
    network.submit(shard, WHOLE)
    exchanged(network)
    (run,) = shard.book.runs.values()
    assert run.domains == ("north",)
    assert not network.waking


def test_a_unit_without_room_gets_a_node_that_is_woken_and_begins_when_it_is_awake() -> None:
    network, shard = asleep("north-0")
    network.submit(shard, task(accelerators=4, domains=frozenset({"north"})))
    exchanged(network)
    assert network.waking == {"north-0"}
    assert not shard.book.runs
    kept = shard.book.units[KEY].nomination
    assert kept is not None
    assert [rank.node_id for rank in kept.ranks] == ["north-0"]
    # By hand: 15 s to stop, and three times the 30 s that waking takes.
    assert kept.until_s == pytest.approx(network.now_s + 15.0 + 90.0)
    # The next unit finds nothing more to wake.
    network.submit(shard, task(accelerators=1, domains=frozenset({"north"})))
    exchanged(network)
    assert network.waking == {"north-0"}
    assert UnitKey("job-2", 0) in shard.book.queued
    network.wake()
    # The domain says so; the shard does not see it yet.
    for pair in list(network.answered):
        while network.answered[pair]:
            network.deliver_answer(pair)
    network.step(shard)
    assert not shard.book.runs
    exchanged(network)
    (run,) = shard.book.runs.values()
    assert (run.key, run.epoch, [rank.node_id for rank in run.ranks]) == (KEY, 1, ["north-0"])


def test_what_the_shard_sees_first_waits_for_the_word_of_the_domain() -> None:
    network, shard = asleep("north-0")
    network.submit(shard, task(accelerators=4, domains=frozenset({"north"})))
    exchanged(network)
    network.wake()
    network.tell_graph(shard)
    network.step(shard)
    assert not shard.book.runs
    exchanged(network)
    assert len(shard.book.runs) == 1


def test_a_part_of_a_gang_is_woken_and_the_rest_waits_for_it() -> None:
    """Five nodes of 4: all domains are needed, one node of east sleeps."""
    network, shard = asleep("east-1")
    network.submit(shard, gang(5, accelerators=4, cross_domain=True))
    exchanged(network, 8)
    assert network.waking == {"east-1"}
    assert not shard.book.runs
    assert sum(len(domain.grants) for domain in network.domains.values()) == 3
    network.wake()
    exchanged(network)
    (run,) = shard.book.runs.values()
    assert len(run.ranks) == 5


def test_awake_and_sleeping_nodes_of_a_domain_are_taken_together() -> None:
    network, shard = asleep("east-1")
    network.submit(shard, gang(2, accelerators=4, domains=frozenset({"east"})))
    exchanged(network)
    assert network.waking == {"east-1"}
    network.wake()
    exchanged(network)
    (run,) = shard.book.runs.values()
    assert sorted(rank.node_id for rank in run.ranks) == ["east-0", "east-1"]


def test_what_does_not_wake_in_time_is_given_back_and_another_node_is_tried() -> None:
    network, shard = asleep("east-0", "east-1")
    network.submit(shard, task(accelerators=4, domains=frozenset({"east"})))
    exchanged(network)
    (first,) = network.waking
    network.waking.clear()
    network.now_s += 106.0
    network.tick(shard)
    assert shard.book.units[KEY].nomination is None
    assert first in shard.book.units[KEY].excluded_nodes
    exchanged(network, 8)
    (second,) = network.waking
    assert {first, second} == {"east-0", "east-1"}
    (grant,) = network.domains["east"].grants.values()
    assert [rank.node_id for rank in grant.ranks] == [second]


def test_a_unit_that_is_cancelled_while_its_node_wakes_gives_it_back() -> None:
    network, shard = asleep("north-0")
    network.submit(shard, task(accelerators=4, domains=frozenset({"north"})))
    exchanged(network)
    network.cancel(shard, "job-1")
    exchanged(network)
    assert not network.domains["north"].grants
    network.wake()
    exchanged(network)
    assert not shard.book.runs


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_it_begins_though_the_shard_or_the_decider_starts_again_while_it_wakes(when: str) -> None:
    network, shard = asleep("north-0")
    network.submit(shard, task(accelerators=4, domains=frozenset({"north"})))
    exchanged(network)
    if when == "before":
        network.restart_shard(shard)
        network.restart_domain("north")
    network.wake()
    if when == "between":
        # The word that it is awake goes to the session before.
        network.restart_shard(shard)
        network.restart_domain("north")
    network.tell_graph(shard)
    if when == "after":
        for pair in list(network.answered):
            while network.answered[pair]:
                network.deliver_answer(pair)
        network.restart_shard(shard, same_term=True)
    exchanged(network)
    (run,) = shard.book.runs.values()
    assert (run.key, run.epoch) == (KEY, 1)


def test_a_nomination_that_no_domain_confirms_is_given_up_after_its_time() -> None:
    network, shard = asleep("north-0")
    network.submit(shard, task(accelerators=4, domains=frozenset({"north"})))
    exchanged(network)
    network.wake()
    network.tell_graph(shard)
    network.answered.clear()
    network.now_s += 106.0
    network.tick(shard)
    assert shard.book.units[KEY].nomination is not None, "it is not asleep, as far as the shard knows"
    network.step(shard)
    assert shard.book.units[KEY].nomination is None
    exchanged(network)
    assert len(shard.book.runs) == 1


def test_what_was_being_woken_on_one_level_is_adopted() -> None:
    network, shard = asleep("north-0")
    network.submit(shard, WHOLE)
    draft = shard.book.draft()
    kept = Nomination((PlacedRank(0, "north", "north-0", 0, (0, 1, 2, 3)),), frozenset(), network.now_s + 100.0)
    nominations.nominate(draft, KEY, kept)
    shard.book.merge(draft)
    network.restart_shard(shard)
    exchanged(network)
    assert list(network.domains["north"].grants) == [KEY]
    assert not network.waking, "the one that kept it has had it woken"
    network.wake("north-0")
    exchanged(network)
    assert [run.key for run in shard.book.runs.values()] == [KEY]


def test_a_domain_tells_of_its_sleepers_by_class_and_of_those_kept_no_more() -> None:
    network, shard = asleep("east-0", "east-1")
    network.submit(shard, task(accelerators=3, domains=frozenset({"east"})))
    network.submit(shard, task(accelerators=3, domains=frozenset({"east"})))
    network.submit(shard, task(accelerators=3, domains=frozenset({"east"})))
    exchanged(network, 8)
    assert network.waking == {"east-0", "east-1"}
    assert shard.dispatcher.waking.asleep.get("east") is None
    whole = shard.dispatcher.told_whole["east"]
    assert sum(whole.total_devices.values()) == 0, "both are kept, and none is awake"
    assert [unit.key.job_id for unit in shard.book.cluster.pending] == ["job-3"]


# -- falling asleep ------------------------------------------------------------------------------------------------------


def a_domain(fleet: Fleet | None = None, grants: tuple[Grant, ...] = ()) -> DomainGrants:
    fleet = fleet or a_fleet({"east": 3}, wake_s=30.0)
    return DomainGrants("east", fleet, RESTING, 1, grants, begun_s=1000.0)


def told(domain: DomainGrants, rules: IdleRules, now_s: float) -> list[str]:
    """Nodes that are told to sleep now; the domain knows of it then."""
    fleet, sleeps = domain.rest(rules, now_s)
    domain.refit(fleet, now_s)
    return [name for item in sleeps for name in item.node_ids]


def held(node: str, number: int = 1) -> Grant:
    demand = Demand(1, cpus=1.0, accelerators=1)
    rank = PlacedRank(0, "east", node, 0, (0,))
    return Grant("shard-0", GrantName(UnitKey(f"job-{number}", 0), 1), "lab", demand, (rank,), 900.0)


def test_nodes_that_hold_nothing_are_told_after_their_time_and_take_no_work() -> None:
    domain = a_domain(grants=(held("east-1"),))
    assert told(domain, RULES, 1099.0) == []
    assert told(domain, RULES, 1100.0) == ["east-0", "east-2"]
    assert set(domain.fleet.marks) == {(MarkKind.NODE_RESTING, name) for name in ("east-0", "east-2")}
    assert domain.cluster.view.up.tolist() == [False, True, False]
    assert told(domain, RULES, 1101.0) == []
    # What does not fall asleep is used again, and told again after an hour.
    assert told(domain, RULES, 1100.0 + PATIENCE_S) == []
    assert not domain.fleet.marks
    assert told(domain, RULES, 1100.0 + PATIENCE_S + ASKED_AGAIN_S - 1.0) == []
    assert told(domain, RULES, 1100.0 + PATIENCE_S + ASKED_AGAIN_S) == ["east-0", "east-2"]


def test_a_node_is_idle_since_its_last_grant_ended() -> None:
    domain = a_domain(grants=(held("east-0"), held("east-1", 2)))
    session = Session(1, 1)
    holdings = Request("east", "shard-0", session, 1, begins=True, holdings=())
    domain.handle(replace(holdings, holdings=None), 1050.0)
    domain.handle(Request("east", "shard-0", session, released=(held("east-0").name,)), 1060.0)
    assert told(domain, RULES, 1159.0) == ["east-2"]
    assert told(domain, RULES, 1160.0) == ["east-0"]


def test_a_reserve_and_what_is_forecast_stay_awake() -> None:
    assert told(a_domain(), IdleRules(100.0, reserve=1), 1200.0) == ["east-0", "east-1"]
    fleet = with_expected_demand(a_fleet({"east": 3}, wake_s=30.0), "east", 5.0)
    # By hand: 12 accelerators less 5 are 7: one node of 4 may sleep.
    assert told(a_domain(fleet), RULES, 1200.0) == ["east-0"]


@pytest.mark.parametrize(("models", "kept"), [((), True), (("A100",), True), (("H100",), False)])
def test_nodes_that_a_waiting_class_could_use_stay_awake(models: tuple[str, ...], kept: bool) -> None:
    domain = a_domain()
    demand = Demand(9, accelerators=4, accelerator_types=models)
    other = Demand(1, accelerators=1)
    begin = Request("east", "shard-0", Session(1, 1), 1, begins=True, classes=((1, demand), (2, other)))
    domain.handle(replace(begin, waiting=True, waiting_classes=(1,)), 1000.0)
    assert told(domain, RULES, 1200.0) == ([] if kept else ["east-0", "east-1", "east-2"])
    domain.handle(Request("east", "shard-0", Session(1, 1)), 1200.0)
    assert bool(told(domain, RULES, 1201.0)) is kept


def test_a_shard_says_which_classes_wait() -> None:
    network = a_network(1)
    (shard,) = network.shards.values()
    network.submit(shard, task(accelerators=1))
    exchanged(network)
    network.submit(shard, gang(6, accelerators=4))
    exchanged(network)
    for domain in network.domains.values():
        session = domain.sessions["shard-0"]
        assert [session.classes[number].ranks for number in session.waiting_classes] == [6]
        assert len(session.classes) == 2


def test_a_domain_without_rules_puts_nobody_to_sleep() -> None:
    domain = DomainGrants("east", a_fleet({"east": 3}, wake_s=30.0), POLICY, 1, begun_s=0.0)
    assert domain.rest(RULES, 1e6) == (domain.fleet, [])


def test_a_node_that_cannot_be_woken_takes_no_work_and_is_not_told() -> None:
    fleet = a_fleet({"east": 2})
    asleep_node = replace(fleet.nodes["east-0"], state=NodeState.ASLEEP)
    domain = a_domain(replace(fleet, nodes={**fleet.nodes, "east-0": asleep_node}))
    begin = Request("east", "shard-0", Session(1, 1), 1, begins=True, classes=((1, Demand(1, accelerators=4)),))
    reply = domain.handle(begin, 1000.0)
    assert reply is not None
    assert (reply.asleep, list(reply.rooms[1].values())) == (None, [1])
    assert told(domain, RULES, 5000.0) == []
