"""The simulator's own arithmetic: every expected time, loss and count is worked out by hand in the test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from services.scheduler.core.policy import Policy, RestartRules
from simulation.engine import Simulation
from simulation.failures import NodeEvent
from simulation.measures import JobRecord
from simulation.model import Network, SimDomain, SimNode, Throughputs, Trace, TraceJob
from simulation.policies import setting
from simulation.setting import Setting

FIRST_FIT = setting("first-fit")
SRTF = setting("srtf")


def nodes(domain_id: str, count: int, devices: int, model: str = "v100") -> list[SimNode]:
    return [SimNode(f"{domain_id}-{index}", domain_id, 64.0, 1 << 40, devices, model) for index in range(count)]


def network(count: int = 1, devices: int = 1, **more: object) -> Network:
    return Network([SimDomain("a", nodes("a", count, devices), **more)])  # type: ignore[arg-type]


def job(job_id: str, submit_s: float, duration_s: float, devices: int = 1, ranks: int = 1, **more: object) -> TraceJob:
    fields = {"restart_cost_s": 10.0} | more
    return TraceJob(job_id, submit_s, duration_s, ranks, devices, **fields)  # type: ignore[arg-type]


def simulation(where: Network, jobs: list[TraceJob], how: Setting = FIRST_FIT, **more: object) -> Simulation:
    throughputs = more.pop("throughputs", None)
    trace = Trace("by hand", jobs, throughputs)  # type: ignore[arg-type]
    return Simulation(where, trace, how, **more)  # type: ignore[arg-type]


def finished(run: Simulation) -> dict[str, JobRecord]:
    run.run()
    return {record.job_id: record for record in run.measures.jobs}


def endless() -> Iterator[NodeEvent]:
    """Node a-0 is down 10 s of every 100 s, a-1 the same half a period later; at any time one of them is down or will be."""
    for turn in itertools.count():
        for offset_s, node_id in ((50.0, "a-0"), (100.0, "a-1")):
            yield NodeEvent(100.0 * turn + offset_s, node_id, "down")
            yield NodeEvent(100.0 * turn + offset_s + 10.0, node_id, "up")


def never_whole() -> Iterator[NodeEvent]:
    """One node comes up only after the other went down: there is no instant with both up after the first failure."""
    yield NodeEvent(10.0, "a-0", "down")
    for turn in itertools.count():
        yield NodeEvent(100.0 * turn + 50.0, "a-1", "down")
        yield NodeEvent(100.0 * turn + 55.0, "a-0", "up")
        yield NodeEvent(100.0 * turn + 100.0, "a-0", "down")
        yield NodeEvent(100.0 * turn + 105.0, "a-1", "up")


def test_arrivals_and_ends_of_one_instant() -> None:
    """Two devices, three jobs of 100 s at once: two run, the third follows at 100, before one that arrives just then."""
    jobs = [job("a", 0, 100), job("b", 0, 100), job("c", 0, 100), job("d", 100, 100), job("e", 100, 50)]
    found = finished(simulation(network(2), jobs))
    assert {name: (record.first_start_s, record.finish_s) for name, record in found.items()} == {
        "a": (0, 100),
        "b": (0, 100),
        "c": (100, 200),
        "d": (100, 200),
        "e": (200, 250),
    }


@pytest.mark.parametrize(
    "name", ["fifo", "first-fit", "easy", "conservative", "sjf", "srtf", "las", "drf", "random", "gavel-fifo"]
)
def test_jobs_of_one_time_begin_in_the_order_of_the_trace(name: str) -> None:
    jobs = [job(str(number), 0.0, 100.0, devices=1, restart_cost_s=0.0) for number in (9, 10, 11, 1, 2)]
    found = finished(simulation(network(1, 1), jobs, setting(name)))
    assert sorted(found, key=lambda name: found[name].first_start_s) == ["9", "10", "11", "1", "2"]


def test_preemption_costs_a_restart_and_no_work() -> None:
    """100 of 1000 s done when the short job comes; it ends at 200; 10 s of restart, 900 s are left: 1110."""
    found = finished(simulation(network(), [job("long", 0, 1000), job("short", 100, 100)], SRTF))
    long = found["long"]
    assert found["short"].finish_s == 200
    assert long.finish_s == pytest.approx(1110)
    assert (long.interruptions, long.lost_s, long.overhead_s) == (1, 0, 10)
    assert long.ran_s == pytest.approx(100 + 910)
    assert long.wait_s == pytest.approx(100)


def test_interruptions_of_jobs_that_did_not_end_count_as_their_restarts_do() -> None:
    run = simulation(network(), [job("long", 0, 1000), job("short", 100, 100)], SRTF, until_s=300.0)
    run.run()
    figures = run.measures.figures()
    assert (figures["jobs"], figures["unfinished"]) == (1, 1)
    assert (figures["interruptions"], figures["restarts"]) == (1, 1)


def test_preemption_without_notice_goes_back_to_the_checkpoint() -> None:
    """Checkpoints every 30 s: of 100 s 90 are kept; restarted at 200, working from 210 on 910 s: 1120."""
    jobs = [job("long", 0, 1000, checkpoint_interval_s=30.0), job("short", 100, 100)]
    long = finished(simulation(network(), jobs, SRTF, graceful=False))["long"]
    assert long.finish_s == pytest.approx(1120)
    assert long.lost_s == pytest.approx(10)


def test_preempted_during_its_restart() -> None:
    """The long job restarts at 200; at 204 another short one comes: 4 s of restart were spent for nothing. It begins again at
    304 and works from 314 on for 900 s."""
    jobs = [job("long", 0, 1000), job("short", 100, 100), job("other", 204, 100)]
    long = finished(simulation(network(), jobs, SRTF))["long"]
    assert long.finish_s == pytest.approx(1214)
    assert long.interruptions == 2
    assert long.overhead_s == pytest.approx(4 + 10)


def test_failure_loses_work_since_the_checkpoint() -> None:
    """Down at 150: of 150 s 120 are kept. The other node takes it at once: 160 + 880 = 1040."""
    jobs = [job("a", 0, 1000, checkpoint_interval_s=60.0)]
    events = [NodeEvent(150.0, "a-0", "down"), NodeEvent(500.0, "a-0", "up")]
    record = finished(simulation(network(2), jobs, failures=events))["a"]
    assert record.finish_s == pytest.approx(1040)
    assert record.lost_s == pytest.approx(30)
    assert record.interruptions == 1


def test_a_job_that_loses_run_after_run_is_given_up_as_the_live_scheduler_does() -> None:
    """100 s without a checkpoint on a node that fails every 50 s: each of 51 runs is lost, and the other job ends."""
    events = (NodeEvent(50.0 * at, "a-0", "down" if at % 2 else "up") for at in itertools.count(1))
    jobs = [job("endless", 0, 100), job("short", 6000, 10)]
    run = simulation(network(), jobs, failures=events)
    assert [record.job_id for record in run.run().jobs] == ["short"]
    figures = run.measures.figures()
    assert (figures["jobs"], figures["unfinished"], figures["given_up"]) == (1, 1, 1)
    assert list(run.measures.given_up) == ["endless"]
    assert figures["interruptions"] == figures["restarts"] + 1 == 51
    assert figures["accelerator_hours"] == pytest.approx((51 * 50 + 10) / 3600)


def test_fewer_lost_runs_are_allowed_where_the_policy_says_so() -> None:
    events = (NodeEvent(50.0 * at, "a-0", "down" if at % 2 else "up") for at in itertools.count(1))
    policy = replace(FIRST_FIT.policy, restarts=RestartRules(max_recoveries=2))
    run = simulation(network(), [job("endless", 0, 100)], replace(FIRST_FIT, policy=policy), failures=events)
    run.run()
    assert run.measures.figures()["interruptions"] == 3


def test_failure_of_the_only_node_waits_for_its_repair() -> None:
    """Up at 500: 510 + 880 = 1390; accelerators were up 1390 - 350 of 1390 s, and held 150 + 890 s."""
    jobs = [job("a", 0, 1000, checkpoint_interval_s=60.0)]
    events = [NodeEvent(150.0, "a-0", "down"), NodeEvent(500.0, "a-0", "up")]
    run = simulation(network(), jobs, failures=events)
    record = finished(run)["a"]
    assert record.finish_s == pytest.approx(1390)
    assert record.wait_s == pytest.approx(350)
    assert run.measures.figures()["allocated_share_all"] == pytest.approx((150 + 890) / (1390 - 350))


def test_gang_stops_when_one_of_its_nodes_fails() -> None:
    """Two ranks of four on three nodes; one fails at 50, no checkpoint: all 50 s again, from 60 on: 160."""
    events = [NodeEvent(50.0, "a-1", "down")]
    run = simulation(network(3, 4), [job("gang", 0, 100, 4, 2)], failures=events)
    record = finished(run)["gang"]
    assert record.finish_s == pytest.approx(160)
    assert record.lost_s == pytest.approx(50)
    assert not run.cluster.running
    assert run.cluster.view.free_devices.sum() == 12


def test_spot_capacity_goes_and_returns() -> None:
    """All gone from 100 to 300: the 100 s are lost, 10 s of restart and 200 s from 300 on."""
    where = network(2, 4, spot=((0.0, 8), (100.0, 0), (300.0, 8)))
    run = simulation(where, [job("a", 0, 200, 4, 2)])
    record = finished(run)["a"]
    assert record.finish_s == pytest.approx(510)
    assert record.lost_s == pytest.approx(100)
    # Up: 8 for 100 s, none for 200 s, 8 for 210 s.
    assert run.measures.figures()["allocated_share_all"] == pytest.approx(1.0)


def test_spot_takes_the_newest_not_the_greatest() -> None:
    """Four accelerators are left at 100: the job that began at 10 with two goes, the one of four that began at 0 stays."""
    where = network(2, 4, spot=((0.0, 8), (100.0, 4), (300.0, 8)))
    found = finished(simulation(where, [job("old", 0, 200, 4), job("new", 10, 200, 2)]))
    assert found["old"].finish_s == 200
    assert found["old"].interruptions == 0
    # Back at 200, when the old one has gone: 10 s and all 200 s again.
    assert found["new"].finish_s == pytest.approx(410)
    assert found["new"].lost_s == pytest.approx(90)


@pytest.mark.parametrize("available", [4, 5])
def test_spot_never_gives_more_than_it_has(available: int) -> None:
    """Two jobs of two on two nodes of four, four or five left: a third job of two must wait, though each node has two free."""
    where = network(2, 4, spot=((0.0, 8), (100.0, available)))
    spread = Setting("spread", Policy(name="spread", scores=(("least_loaded", 1.0),), order=("age",)))
    jobs = [job("a", 0, 200, 2), job("b", 0, 400, 2), job("c", 150, 100, 2)]
    found = finished(simulation(where, jobs, spread))
    assert found["a"].finish_s == 200
    assert found["c"].first_start_s == 200
    assert found["b"].finish_s == 400


def test_failed_spot_node_stays_down() -> None:
    """All eight are back at 200, but a-0 is under repair until 400: a job of eight begins then."""
    where = network(2, 4, spot=((0.0, 8), (100.0, 0), (200.0, 8)))
    events = [NodeEvent(50.0, "a-0", "down"), NodeEvent(400.0, "a-0", "up")]
    assert finished(simulation(where, [job("a", 60, 100, 4, 2)], failures=events))["a"].finish_s == pytest.approx(500)


def test_until_ends_early() -> None:
    """At 300 s one job is done, one runs, one waits; 3.6 units an hour for one accelerator are 0.3 by then."""
    where = network(price_micro_units=3_600_000)
    run = simulation(where, [job("a", 0, 100), job("b", 0, 1000), job("c", 0, 10), job("d", 400, 1)], until_s=300.0)
    assert list(finished(run)) == ["a"]
    figures = run.measures.figures()
    assert run.now_s == 300
    assert figures["unfinished"] == 2
    assert figures["accelerator_money"] == pytest.approx(0.3)


def test_without_jobs() -> None:
    run = simulation(network(mtbf_node_s=1000.0), [])
    assert not finished(run)
    assert run.now_s == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("failures", [None, endless, never_whole])
def test_job_without_place_does_not_hang(failures: object) -> None:
    """Two ranks of four do not fit on two nodes of three; the other job runs."""
    events = None if failures is None else failures()  # type: ignore[operator]
    run = simulation(network(2, 3), [job("never", 0, 10, 4, 2), job("a", 0, 30)], failures=events)
    assert list(finished(run)) == ["a"]
    assert run.measures.figures()["unfinished"] == 1
    assert run.now_s <= 1000


@pytest.mark.timeout(60)
def test_waits_for_the_repair_when_that_helps() -> None:
    """Needs both nodes; at 5000 both are up for the first time."""
    events = [NodeEvent(0.0, "a-0", "down"), NodeEvent(5000.0, "a-0", "up")]
    assert finished(simulation(network(2, 4), [job("a", 1, 100, 4, 2)], failures=events))["a"].finish_s == 5100


@pytest.mark.timeout(60)
@pytest.mark.parametrize("failures", [None, endless])
@pytest.mark.parametrize("interval_s", [0.0, 60.0])
def test_rate_of_zero_does_not_hang(failures: object, interval_s: float) -> None:
    """A profile that does not run on the only model holds its device for ever, if no filter refuses it."""
    known = Throughputs()
    known.rates["good", 1] = {"v100": 2.0}
    known.rates["bad", 1] = {"v100": 0.0}
    jobs = [job("bad", 0, 100, profile="bad", work=100.0), job("good", 0, 50, profile="good", work=100.0)]
    events = None if failures is None else failures()  # type: ignore[operator]
    how = Setting("blind", Policy(name="blind", filters=("up", "capacity"), order=("age",), interval_s=interval_s))
    run = simulation(network(2), jobs, how, failures=events, throughputs=known)
    found = finished(run)
    assert list(found) == ["good"]
    assert found["good"].finish_s == 50
    assert run.measures.figures()["unfinished"] == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("failures", "interval_s"), [(None, 0.0), (None, 60.0), (endless, 60.0)])
def test_planner_that_places_nothing_does_not_hang(failures: object, interval_s: float) -> None:
    """Gavel's rounds, or a plan in every cycle: the job is too large, so they come to an end."""
    known = Throughputs()
    known.rates["good", 1] = {"v100": 1.0}
    known.rates["good", 8] = {"v100": 8.0}
    jobs = [job("never", 0, 100, ranks=8, profile="good", work=100.0), job("a", 0, 50, profile="good", work=50.0)]
    how = setting("gavel-las")
    how = replace(how, policy=replace(how.policy, interval_s=interval_s))
    events = None if failures is None else failures()  # type: ignore[operator]
    run = simulation(network(2), jobs, how, failures=events, throughputs=known)
    assert list(finished(run)) == ["a"]
    assert run.measures.figures()["unfinished"] == 1


def test_equal_inputs_equal_outcomes() -> None:
    """Failures are drawn from the seed alone; another seed draws others."""
    where = network(4, 2, mtbf_node_s=2000.0, mttr_node_s=100.0)
    jobs = [job(f"j{index}", index * 40.0, 600.0, 1 + index % 2) for index in range(20)]
    runs = [[(r.job_id, r.finish_s) for r in simulation(where, jobs, seed=seed).run().jobs] for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_processors_of_nodes_that_fail_or_go_are_not_up() -> None:
    """Two nodes of 64 processors for 100 s of submissions: one fails from 20 to 60 s; of a spot domain one node of two goes at 50 s."""
    jobs = [job(f"j{at}", at, 10, 0, cpus=1.0) for at in (0, 100)]
    events = [NodeEvent(20.0, "a-0", "down"), NodeEvent(60.0, "a-0", "up")]
    failed = simulation(network(2), jobs, failures=events).run().figures()
    assert failed["allocated_share"] == pytest.approx(10 / (128 * 100 - 64 * 40))
    gone = simulation(network(2, 4, spot=((0.0, 8), (50.0, 4))), jobs).run().figures()
    assert gone["allocated_share"] == pytest.approx(10 / (128 * 100 - 64 * 50))


@pytest.mark.parametrize("how", [setting("first-fit"), SRTF])
def test_ten_years_later_everything_is_the_same(how: Setting) -> None:
    """Failures and spot series begin with the first job; nothing is done about the years before it."""
    where = network(4, 2, mtbf_node_s=2000.0, mttr_node_s=100.0, spot=((0.0, 8), (300.0, 4), (900.0, 6)))
    outcomes = []
    for later_s in (0.0, 315_360_000.0):
        jobs = [job(f"j{index}", later_s + index * 40.0, 600.0 - index, 1 + index % 2) for index in range(20)]
        run = simulation(where, jobs, how, seed=1)
        done = finished(run)
        assert run.measures.figures()["interruptions"] > 0
        outcomes.append([value for name in sorted(done) for value in (done[name].jct_s, done[name].lost_s)])
    assert outcomes[0] == pytest.approx(outcomes[1], abs=1e-4)


def test_failure_keeps_what_a_preempted_job_wrote() -> None:
    """Checkpoints every 60 s. Preempted at 100, it writes one with 100 s of work; it works again from 210 on. At 220 its node fails: the
    10 s since are lost, not the 50 since the grid's 60. On the other node from 230 on 900 s are left: 1130."""
    jobs = [job("long", 0, 1000, checkpoint_interval_s=60.0), job("short", 100, 100)]
    events = [NodeEvent(10.0, "a-1", "down"), NodeEvent(220.0, "a-0", "down"), NodeEvent(220.0, "a-1", "up")]
    long = finished(simulation(network(2), jobs, SRTF, failures=events))["long"]
    assert long.finish_s == pytest.approx(1130)
    assert long.lost_s == pytest.approx(10)


def test_failure_before_it_works_again_loses_nothing() -> None:
    """The same, but the node fails at 205, within the restart: 10 s of restart again, 900 s are left: 1115."""
    jobs = [job("long", 0, 1000, checkpoint_interval_s=60.0), job("short", 100, 100)]
    events = [NodeEvent(10.0, "a-1", "down"), NodeEvent(205.0, "a-0", "down"), NodeEvent(205.0, "a-1", "up")]
    long = finished(simulation(network(2), jobs, SRTF, failures=events))["long"]
    assert long.finish_s == pytest.approx(1115)
    assert long.lost_s == 0


def elastic_run(**more: object) -> Simulation:
    """One job on two devices for 300 s, on one beside another job from the second round on, and on two again."""
    known = Throughputs()
    known.rates["p", 1], known.rates["p", 2] = {"v100": 1.0}, {"v100": 2.0}
    fields = {"min_ranks": 1, "max_ranks": 2, "profile": "p"}
    jobs = [job("one", 0, 1000, work=1000.0, **fields), job("two", 300, 300, work=300.0, **fields)]
    return simulation(network(2), jobs, setting("greedy-elastic"), throughputs=known, **more)


def test_an_elastic_job_is_charged_what_it_held() -> None:
    """What jobs held is what the domains gave, whatever number of ranks a job asked for; a slice by tenant says the same."""
    run = elastic_run()
    found = finished(run)
    figures = run.measures.figures()
    given = sum(run.measures.held_by_domain.values()) / 3600
    assert found["one"].interruptions >= 1
    assert max(held for _, held, _, _ in run.measures.series) == 2
    assert figures["accelerator_hours"] == pytest.approx(given)
    used = (figures["used_share_of_held"] or 0.0) * given * 3600
    # Two devices do two units a second: work done is device-seconds that were used.
    assert used == pytest.approx(1300)


def test_what_an_unfinished_job_held_counts() -> None:
    """Ended at 100: one job held its device for 50 s, one for 40, one that goes on for 60."""
    jobs = [job("a", 0, 50), job("b", 0, 40), job("c", 40, 500)]
    run = simulation(network(2), jobs, until_s=100.0)
    finished(run)
    figures = run.measures.figures()
    assert figures["accelerator_hours"] == pytest.approx((50 + 40 + 60) / 3600)
    assert figures["used_share_all"] == pytest.approx(150 / 200)
