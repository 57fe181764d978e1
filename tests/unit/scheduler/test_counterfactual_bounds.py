"""The search for counterfactuals is bounded, and says which kinds of changes it did not try to the end."""

from __future__ import annotations

import pytest

from meridian.cli.explanation import lines
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.errors import GivenUpError
from services.scheduler.core.explaining.allowance import Allowance
from services.scheduler.core.explaining.counterfactual import Search, counterfactuals, search
from services.scheduler.core.explaining.decided_again import Change, Counterfactual, Question
from services.scheduler.core.futures.prospect import prospects
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, JobKind, JobSpec, UnitKey
from services.scheduler.core.waiting_unit import PendingUnit
from services.scheduler.times import rfc3339
from services.scheduler.what_if import answer
from tests.unit.scheduler.test_counterfactual import NOW_S, a_case, a_cluster, a_unit
from tests.unit.scheduler.world import a_fleet

CONSERVATIVE = Policy(order=("age",), discipline="conservative")


def waiting_behind(count: int, policy: Policy = CONSERVATIVE) -> tuple[Cluster, PendingUnit]:
    """Two domains of one node, held until 900 s after they began; so many wait, and last a unit of 8 accelerators of which
    the free half of a node would do."""
    held = [
        a_unit("r0", Demand(1, cpus=1.0, accelerators=8), expected_s=2000.0),
        a_unit("r1", Demand(1, cpus=1.0, accelerators=4), expected_s=3000.0),
    ]
    others = [
        a_unit(f"w{number}", Demand(1, cpus=1.0, accelerators=8), queued_at_s=float(number), expected_s=600.0)
        for number in range(count)
    ]
    asked = a_unit("asked", Demand(1, cpus=4.0, accelerators=8), queued_at_s=float(count), expected_s=600.0)
    return a_cluster(a_fleet({"a": 1, "b": 1}, devices=8), policy, held, [*others, asked]), asked


def as_found(found: Search) -> list[tuple[object, ...]]:
    return [(item.field, item.new, item.outcome) for item in found.found]


def sure(item: Counterfactual, found: Search) -> bool:
    """Whether its kind was searched to the end."""
    return not any(kind in item.field for kind in found.not_searched)


def test_a_search_with_enough_decisions_is_complete() -> None:
    cluster, unit = waiting_behind(3)
    whole = search(cluster, CONSERVATIVE, unit.key, NOW_S)
    assert whole.not_searched == ()
    assert {"accelerators": 4}.items() <= {item.field: item.new for item in whole.found}.items()
    assert whole.as_json() == {"complete": True, "decisions": whole.decisions, "not_searched": []}
    assert as_found(search(cluster, CONSERVATIVE, unit.key, NOW_S, Allowance(most=1000))) == as_found(whole)


@pytest.mark.parametrize("most", range(9))
def test_no_more_is_decided_than_is_allowed_and_what_was_not_tried_is_named(most: int) -> None:
    cluster, unit = waiting_behind(3)
    whole = search(cluster, CONSERVATIVE, unit.key, NOW_S)
    assert whole.decisions > most
    found = search(cluster, CONSERVATIVE, unit.key, NOW_S, Allowance(most=most))
    assert found.decisions <= most
    assert found.not_searched
    assert found == search(cluster, CONSERVATIVE, unit.key, NOW_S, Allowance(most=most)), (
        "the same whenever it is asked"
    )
    # Whatever was tried to the end is as in the whole search; what was begun flips the decision with no more than that.
    done = {item.field: item.new for item in whole.found}
    for item in found.found:
        if sure(item, found):
            assert item.new == done[item.field]
        else:
            assert item.new <= done[item.field]
    for field in set(done) - {item.field for item in found.found}:
        assert found.not_searched == ("all",) or any(kind in field for kind in found.not_searched)


@pytest.mark.parametrize("seed", range(30))
def test_part_of_a_search_says_nothing_that_the_whole_does_not(seed: int) -> None:
    """Of placed and waiting units alike: with less allowed, what is found flips the decision too, with no smaller a change."""
    _, policy, cluster = a_case(seed)
    for key in [*cluster.running, *(unit.key for unit in cluster.pending)][:4]:
        whole = search(cluster, policy, key, NOW_S)
        for most in (1, whole.decisions // 3, whole.decisions // 2):
            part = search(cluster, policy, key, NOW_S, Allowance(most=most))
            assert part.decisions <= most
            said = {item.sentence for item in part.found if sure(item, part)}
            assert said <= {item.sentence for item in whole.found}


def test_a_decision_that_takes_longer_than_there_is_time_is_given_up_within() -> None:
    """Under conservative backfilling one decision makes a reservation for each that waits: it is not waited for to the end."""
    cluster, unit = waiting_behind(200)
    asked = 0

    def goes_on(part: float) -> bool:
        nonlocal asked
        asked += 1
        return asked <= 50

    found = search(cluster, CONSERVATIVE, unit.key, NOW_S, Allowance(goes_on=goes_on))
    assert found == Search((), 1, ("all",))
    assert asked == 51
    assert len(cluster.pending) == 201


def test_those_behind_a_unit_are_not_decided_about_again() -> None:
    """In an order of units alone nobody behind changes anything: so that the first of a long queue costs one reservation."""
    cluster, _ = waiting_behind(200)
    first = UnitKey("w0", 0)
    looked_at = 0

    def goes_on(part: float) -> bool:
        nonlocal looked_at
        looked_at += 1
        return True

    question = Question(cluster, CONSERVATIVE, first, NOW_S, Allowance(goes_on=goes_on))
    assert question.ask(Change()) is None
    assert looked_at == 2, "before the decision and before its only unit"
    assert {item.field for item in counterfactuals(cluster, CONSERVATIVE, first, NOW_S)} >= {"accelerators"}


def test_decisions_are_given_up_before_a_unit_and_nothing_is_changed() -> None:
    for discipline in ("greedy", "strict", "easy", "conservative"):
        policy = Policy(order=("age",), discipline=discipline)
        cluster, _ = waiting_behind(3, policy)
        before = [unit.key for unit in cluster.pending], cluster.view.free_device_totals.tolist()
        with pytest.raises(GivenUpError):
            decide(cluster, policy, NOW_S, goes_on=lambda: False)
        assert before == ([unit.key for unit in cluster.pending], cluster.view.free_device_totals.tolist())
        assert decide(cluster, policy, NOW_S, goes_on=lambda: True) is not None


def test_futures_that_are_decided_end_when_there_is_no_time_left() -> None:
    policy = Policy(order=("priority", "age"), preemptions=("priority",))
    cluster, unit = waiting_behind(5, policy)
    whole = prospects(cluster, policy, NOW_S, [unit.key])[unit.key]
    assert whole.start_s < float("inf")
    for most in (0, 30):
        left = most

        def patience(part: float) -> bool:
            nonlocal left
            left -= 1
            return left >= 0

        found = prospects(cluster, policy, NOW_S, [unit.key], patience=patience)[unit.key]
        assert found.start_s == float("inf")
        assert not found.never
        assert found.cycles < whole.cycles
        assert "no further" in found.note


def test_a_what_if_has_a_bound_and_leaves_out_what_it_had_no_time_for() -> None:
    spec = JobSpec(JobKind.TASK, Demand(1, cpus=1.0, accelerators=4), command=("x",), max_run_time_s=600.0)
    policy = Policy(order=("age",), discipline="strict")
    cluster, _ = waiting_behind(20, policy)
    with pytest.raises(GivenUpError):
        answer(cluster, policy, spec, "lab", NOW_S, goes_on=lambda: False)
    looked_at = 0

    def goes_on() -> bool:
        nonlocal looked_at
        looked_at += 1
        return True

    answer(cluster, policy, spec, "lab", NOW_S, times=rfc3339, goes_on=goes_on)
    all_of_it, looked_at = looked_at, 0

    def in_time() -> bool:
        goes_on()
        return looked_at < all_of_it

    displaced = answer(cluster, policy, spec, "lab", NOW_S, times=rfc3339, goes_on=in_time)["displaces"]
    assert (displaced["delayed"], displaced["delayed_units"]) == (None, None)
    assert "no time" in displaced["note"]


def test_people_are_told_where_the_search_ended() -> None:
    unit = {
        "unit_index": 0,
        "name": "train",
        "state": "queued",
        "counterfactuals": [],
        "counterfactuals_search": Search((), 12, ("priority", "limit_s")).as_json(),
    }
    text = lines({"job_id": "j", "state": "queued", "policy_version": "p", "units": [unit]})
    assert text[-1] == "  not searched further: priority, limit_s (time for 12 decisions)"
