from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.forecast import ledger
from services.forecast.ledger import Amount, EndedRun, Job, Placement, Subject, SubjectKind, Unit

TENANT = Subject(SubjectKind.TENANT, "t")
NORTH = Subject(SubjectKind.DOMAIN, "north")
SOUTH = Subject(SubjectKind.DOMAIN, "south")
A100 = Subject(SubjectKind.CHIP, "a100")
OTHER = Subject(SubjectKind.CHIP, "b")
GANG = [Unit(0, Amount(8, 16), cpus_per_rank=4)]


def submitted(units: list[Unit] | None = None) -> Job:
    return ledger.submit(Job("j"), "t", units or GANG)


def placed(job: Job, epoch: int = 1) -> Job:
    given = Placement(
        {"north": 4, "south": 4}, {"north": 2, "south": 2}, {"north": {"a100": 4}, "south": {"a100": 1, "b": 3}}, 100.0
    )
    return ledger.place(job, "t", 0, epoch, given)


def test_a_waiting_unit_counts_for_its_tenant_and_for_the_only_domain_it_may_run_in() -> None:
    assert ledger.demand(submitted()) == {TENANT: Amount(8, 16)}
    assert ledger.demand(submitted([Unit(0, Amount(8, 16), 4, only_domain="north")])) == {
        TENANT: Amount(8, 16),
        NORTH: Amount(8, 16),
    }


def test_a_waiting_unit_counts_for_the_only_model_it_may_run_on() -> None:
    units = [Unit(0, Amount(8, 16), 4, only_chip="a100")]
    assert ledger.demand(submitted(units)) == {TENANT: Amount(8, 16), A100: Amount(8)}


def test_ends_of_runs_say_how_long_they_lasted() -> None:
    job = placed(submitted())
    half = ledger.end_well(job, 0, 1, "north")
    assert ledger.ended_runs(job, half, 160.0, by_itself=True) == []
    whole = ledger.end_well(half, 0, 1, "south")
    assert ledger.ended_runs(half, whole, 400.0, by_itself=True) == [EndedRun(0, 4, 300.0, by_itself=True)]
    lost = ledger.end_badly(job, 0, 1)
    assert ledger.ended_runs(job, lost, 130.0, by_itself=False) == [EndedRun(0, 8, 30.0, by_itself=False)]
    assert ledger.ended_runs(job, ledger.finish(job), 90.0, by_itself=True)[0].lasted_s == 0.0
    assert ledger.ended_runs(whole, ledger.finish(whole), 500.0, by_itself=True) == []
    assert ledger.ended_runs(job, placed(job, 2), 500.0, by_itself=False) == [EndedRun(0, 8, 400.0, by_itself=False)]


def test_a_held_unit_counts_where_it_is_held() -> None:
    assert ledger.demand(placed(submitted())) == {
        TENANT: Amount(8, 16),
        NORTH: Amount(4, 8),
        SOUTH: Amount(4, 8),
        A100: Amount(5),
        OTHER: Amount(3),
    }


def test_each_domain_is_released_when_its_part_finishes() -> None:
    job = ledger.end_well(placed(submitted()), 0, 1, "north")
    assert ledger.demand(job) == {TENANT: Amount(4, 8), SOUTH: Amount(4, 8), A100: Amount(1), OTHER: Amount(3)}
    assert ledger.demand(ledger.end_well(job, 0, 1, "south")) == {}


def test_a_lost_unit_asks_again_until_the_job_is_finished() -> None:
    job = ledger.end_badly(placed(submitted()), 0, 1)
    assert ledger.demand(job) == {TENANT: Amount(8, 16)}
    assert ledger.demand(placed(job, 2)) == ledger.demand(placed(submitted()))
    assert ledger.demand(ledger.finish(job)) == {}


def test_the_end_of_an_older_epoch_takes_nothing() -> None:
    job = placed(ledger.end_badly(placed(submitted()), 0, 1), 2)
    assert ledger.end_badly(job, 0, 1) == job
    assert ledger.end_well(job, 0, 1, "north") == job


def test_a_workflow_asks_for_what_may_start() -> None:
    job = submitted([Unit(0, Amount(1, 0)), Unit(1, Amount(2, 0), depends_on=(0,))])
    assert ledger.demand(job)[TENANT] == Amount(1, 0)
    job = ledger.place(job, "t", 0, 1, Placement({"north": 1}, {"north": 1}))
    job = ledger.end_well(job, 0, 1, "north")
    assert ledger.demand(job) == {TENANT: Amount(2, 0)}


REQUESTS = [lambda job: ledger.submit(job, "t", GANG)]
LIFECYCLE = [placed, lambda job: placed(job, 2)]
RUNS = [
    lambda job: ledger.end_badly(job, 0, 1),
    lambda job: ledger.end_well(job, 0, 2, "north"),
    lambda job: ledger.end_well(job, 0, 2, "south"),
]


@given(st.data())
def test_topics_in_any_order_end_in_the_same_demand(data: st.DataObject) -> None:
    topics = [list(REQUESTS), list(LIFECYCLE), list(RUNS)]
    length = data.draw(st.integers(0, 3))
    topics[2] = topics[2][:length]
    expected = {0: ledger.demand(placed(submitted(), 2)), 1: ledger.demand(placed(submitted(), 2))}
    expected[2] = {TENANT: Amount(4, 8), SOUTH: Amount(4, 8), A100: Amount(1), OTHER: Amount(3)}
    expected[3] = {}
    job = Job("j")
    while any(topics):
        topic = data.draw(st.sampled_from([topic for topic in topics if topic]))
        job = topic.pop(0)(job)
    assert ledger.demand(job) == expected[length]


def test_changes_are_what_came_and_went() -> None:
    before, after = {TENANT: Amount(8, 1), NORTH: Amount(1, 0)}, {TENANT: Amount(8, 1), SOUTH: Amount(2, 0)}
    assert ledger.changes(before, after) == {NORTH: Amount(-1, 0), SOUTH: Amount(2, 0)}
