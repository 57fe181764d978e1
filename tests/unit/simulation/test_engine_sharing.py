"""Jobs side by side on one device, service levels and the facts of plugins: expected values are worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from services.scheduler.core.policy import Policy
from services.scheduler.core.sla_values import Objective, ObjectiveKind
from simulation.engine import Simulation
from simulation.facts import HourlyCarbon, device_index, facts_of
from simulation.failures import NodeEvent
from simulation.interference import Interference, Pair, Profile
from simulation.measures import JobRecord
from simulation.model import Network, SimDomain, SimNode, Throughputs, Trace, TraceJob
from simulation.policies import setting
from simulation.setting import Setting
from simulation.sharing import SharedDevices

FIRST_FIT = setting("first-fit")
TABLE = Interference([Pair(Profile("train"), Profile("serve"), "", 0.8, 0.5)])
"""Training keeps 0.8 of its speed beside an inference job, which keeps 0.5; what is not known gets 0.5."""


def network(devices: int = 1, count: int = 1, **more: object) -> Network:
    nodes = [SimNode(f"a-{place}", "a", 64.0, 1 << 40, devices, "v100") for place in range(count)]
    return Network([SimDomain("a", nodes, **more)])  # type: ignore[arg-type]


def job(job_id: str, submit_s: float, duration_s: float, share: float, profile: str, **more: object) -> TraceJob:
    fields = {"accelerators": 1, "restart_cost_s": 10.0} | more
    return TraceJob(job_id, submit_s, duration_s, device_share=share, profile=profile, **fields)  # type: ignore[arg-type]


def simulation(
    jobs: list[TraceJob], how: Setting = FIRST_FIT, where: Network | None = None, **more: object
) -> Simulation:
    throughputs = more.pop("throughputs", None)
    given = {"interference": TABLE} | more
    return Simulation(where or network(), Trace("by hand", jobs, throughputs), how, **given)  # type: ignore[arg-type]


def finished(run: Simulation) -> dict[str, JobRecord]:
    run.run()
    return {record.job_id: record for record in run.measures.jobs}


# -- side by side ----------------------------------------------------------------------------------------------------


def test_inference_beside_training() -> None:
    """Training (0.7 of the device) from 0; an urgent inference job (0.3) from 50 takes nobody's place. It makes 0.5 a second: 20 s
    of work take 40, until 90; training has done 50 + 0.8 x 40 = 82 of 100 s then, and ends at 108."""
    jobs = [job("train", 0, 100, 0.7, "train"), job("serve", 50, 20, 0.3, "serve", priority=9)]
    how = Setting("urgent", Policy(name="urgent", order=("priority", "age"), preemptions=("priority",)))
    run = simulation(jobs, how)
    found = finished(run)
    assert found["serve"].first_start_s == 50
    assert found["serve"].finish_s == pytest.approx(90)
    assert found["train"].finish_s == pytest.approx(108)
    assert found["train"].interruptions == 0
    # 0.7 of an accelerator for 108 s and 0.3 for 40 s.
    assert run.measures.figures()["accelerator_hours"] == pytest.approx((0.7 * 108 + 0.3 * 40) / 3600)


def test_second_inference_waits_for_its_share() -> None:
    """0.7 + 0.3 are taken: the next inference job begins when the first one ends, at 40."""
    jobs = [job("train", 0, 100, 0.7, "train"), job("one", 0, 20, 0.3, "serve"), job("two", 1, 20, 0.3, "serve")]
    found = finished(simulation(jobs))
    assert found["one"].finish_s == pytest.approx(40)
    assert found["two"].first_start_s == pytest.approx(40)
    assert found["two"].finish_s == pytest.approx(80)
    # 80 s at 0.8 are 64; 36 are left.
    assert found["train"].finish_s == pytest.approx(116)


def test_three_on_a_device_multiply() -> None:
    """Training beside two inference jobs keeps 0.64; each of those 0.5 of training times 0.5 of the unknown pair."""
    shared = SharedDevices(TABLE)
    shared.began(("t", 0), Profile("train"), [((0, 0), "v100")])  # type: ignore[arg-type]
    shared.began(("s", 0), Profile("serve"), [((0, 0), "v100")])  # type: ignore[arg-type]
    rates = shared.began(("u", 0), Profile("serve"), [((0, 0), "v100")])  # type: ignore[arg-type]
    assert rates == {("t", 0): pytest.approx(0.64), ("s", 0): pytest.approx(0.25), ("u", 0): pytest.approx(0.25)}
    assert shared.ended(("s", 0)) == {("t", 0): pytest.approx(0.8), ("u", 0): pytest.approx(0.5)}  # type: ignore[arg-type]
    assert shared.ended(("s", 0)) == {}  # type: ignore[arg-type]


def test_gang_goes_at_its_slowest_device() -> None:
    """Two ranks of 0.7 on two devices, one of them with an inference job: 0.8 of the speed throughout."""
    pairs = [Pair(Profile("train", 2), Profile("serve"), "", 0.8, 0.5)]
    jobs = [job("gang", 0, 100, 0.7, "train", ranks=2), job("serve", 0, 500, 0.3, "serve")]
    found = finished(simulation(jobs, where=network(2), interference=Interference(pairs)))
    assert found["gang"].finish_s == pytest.approx(125)
    # 125 s at half speed are 62.5; 437.5 are left.
    assert found["serve"].finish_s == pytest.approx(562.5)


def test_whole_devices_and_other_devices_do_not_disturb() -> None:
    jobs = [job("train", 0, 100, 1.0, "train"), job("serve", 0, 20, 0.3, "serve")]
    found = finished(simulation(jobs, where=network(2)))
    assert found["train"].finish_s == 100
    assert found["serve"].finish_s == 20


def test_without_measured_pairs_nobody_is_slowed_down() -> None:
    jobs = [job("train", 0, 100, 0.7, "train"), job("serve", 0, 20, 0.3, "serve")]
    found = finished(simulation(jobs, interference=None))
    assert (found["train"].finish_s, found["serve"].finish_s) == (100, 20)


def test_pairs_of_the_trace_are_used() -> None:
    """Rates of 10 and 4 alone, 5 and 3 together: 0.5 and 0.75. The second's 30 units take 10 s; by then the first has 50 of 100,
    the other 50 take 5 s."""
    known = Throughputs()
    known.rates["x", 1], known.rates["y", 1] = {"v100": 10.0}, {"v100": 4.0}
    known.pairs["x", 1, "v100"] = {("y", 1): (5.0, 3.0)}
    jobs = [job("x", 0, 10, 0.5, "x", work=100.0), job("y", 0, 7.5, 0.5, "y", work=30.0)]
    found = finished(simulation(jobs, interference=None, throughputs=known))
    assert found["y"].finish_s == pytest.approx(10)
    assert found["x"].finish_s == pytest.approx(15)


def test_together_at_rate_zero_neither_ends_and_the_run_does() -> None:
    jobs = [job("x", 0, 10, 0.5, "x"), job("y", 5, 10, 0.5, "y")]
    nothing = Interference([Pair(Profile("x"), Profile("y"), "", 0.0, 0.0)])
    run = simulation(jobs, interference=nothing)
    assert not finished(run)
    assert run.measures.figures()["unfinished"] == 2


def test_failure_of_a_shared_device_frees_the_neighbours() -> None:
    """Both stop at 20 (training had 16, the other 10 s) and begin anew together at 50 + 10: 20 s of serving take 40, until 100; by
    then training has 32 s, and ends at 168."""
    jobs = [job("train", 0, 100, 0.7, "train"), job("serve", 0, 20, 0.3, "serve")]
    events = [NodeEvent(20.0, "a-0", "down"), NodeEvent(50.0, "a-0", "up")]
    run = simulation(jobs, failures=events)
    found = finished(run)
    assert found["serve"].finish_s == pytest.approx(100)
    assert found["train"].finish_s == pytest.approx(168)
    assert found["train"].lost_s == pytest.approx(16)


def test_the_score_sees_the_neighbours() -> None:
    """Beside a profile that costs half, or alone on the other node: the score chooses, the fullest node otherwise."""
    jobs = [job("train", 0, 100, 0.5, "train"), job("serve", 1, 10, 0.5, "serve")]
    scores = (("spread", 0.001), ("interference", 1.0), ("pack", 0.1))
    where = network(count=2)
    apart = finished(simulation(jobs, Setting("apart", Policy(name="apart", scores=scores, order=("age",))), where))
    packed = finished(simulation(jobs, Setting("packed", Policy(name="packed", scores=(("best_fit", 1.0),))), where))
    assert apart["serve"].finish_s == 11
    assert packed["serve"].finish_s == pytest.approx(21)


# -- facts -----------------------------------------------------------------------------------------------------------


def test_device_index_is_the_geometric_mean_over_common_profiles() -> None:
    """p runs on all, q on the k80 and v100 only: v100/k80 are sqrt(4 x 9) = 6; p100/k80 is 2. The first of the models on which
    most run (k80) counts 1; what shares no profile with it is left out."""
    known = Throughputs()
    known.rates["p", 1] = {"k80": 1.0, "v100": 4.0, "p100": 2.0}
    known.rates["q", 1] = {"k80": 2.0, "v100": 18.0, "p100": 0.0}
    known.rates["r", 1] = {"t4": 5.0}
    assert device_index(known, ["v100", "k80", "p100", "t4"]) == {
        "k80": 1.0,
        "p100": pytest.approx(2.0),
        "v100": pytest.approx(6.0),
    }


def test_facts_of_a_network() -> None:
    where = network()
    where.domains[0].electricity_micro_units_per_kwh = 90_000
    where.domains.append(SimDomain("b", []))
    found = facts_of(where, Trace("none", []), ("b", "a"), TABLE)
    assert math.isnan(found["electricity_micro_units_per_kwh"][0])
    assert found["electricity_micro_units_per_kwh"][1] == 90_000
    assert found["interference"] is TABLE
    assert "throughputs" not in found
    assert "electricity_micro_units_per_kwh" not in facts_of(network(), Trace("none", []), ("a",))


def test_carbon_follows_the_hours() -> None:
    where = network(carbon_g_per_kwh=tuple(float(hour) for hour in range(24)))
    where.domains.append(SimDomain("b", [], carbon_g_per_kwh=(7.0,)))
    assert HourlyCarbon.varies(where)
    assert not HourlyCarbon.varies(network())
    carbon = HourlyCarbon(where, ("a", "b"))
    np.testing.assert_array_equal(carbon.at(2 * 3600.0), [2.0, 7.0])
    assert carbon.due_s == 3 * 3600.0
    np.testing.assert_array_equal(carbon.at(25 * 3600.0 + 1), [1.0, 7.0])
    assert math.isnan(carbon.at(24 * 3600.0)[0])  # 0 is unknown


def test_work_goes_where_the_hour_is_clean() -> None:
    """a is clean at night, b by day: the same demand goes to a at 1 h, to b at 13 h, and to a again a day later."""
    night, day = tuple([10.0] * 12 + [90.0] * 12), tuple([90.0] * 12 + [10.0] * 12)
    domains = [
        SimDomain(name, [SimNode(f"{name}-0", name, 64.0, 1 << 40, 1, "v100")], carbon_g_per_kwh=series)
        for name, series in (("a", night), ("b", day))
    ]
    jobs = [TraceJob(f"{hour}", hour * 3600.0, 60.0, 1, 1) for hour in (1, 13, 25)]
    clean = Setting("clean", Policy(name="clean", scores=(("carbon", 1.0),), order=("age",)))
    run = Simulation(Network(domains), Trace("by hand", jobs), clean)
    run.run()
    assert run.measures.held_by_domain == {"a": pytest.approx(120), "b": pytest.approx(60)}


# -- service levels --------------------------------------------------------------------------------------------------


def promised(*objectives: Objective) -> Setting:
    policy = Policy(name="promised", scores=(("spread", 1.0),), order=("sla",))
    return Setting("promised", policy, "exact", objectives=(("gold", objectives),))


def test_recovery_times_and_penalties() -> None:
    """Lost at 20, working again at 50 + 10: 40 s, more than 30 promised; another loss at 70 recovers at 75 + 10, in time."""
    how = promised(Objective(ObjectiveKind.RECOVERY_TIME, 30.0, 3600.0, 2_000_000))
    events = [
        NodeEvent(20.0, "a-0", "down"),
        NodeEvent(50.0, "a-0", "up"),
        NodeEvent(70.0, "a-0", "down"),
        NodeEvent(75.0, "a-0", "up"),
    ]
    run = simulation([job("one", 0, 100, 1.0, "", tenant="gold")], how, failures=events)
    assert finished(run)["one"].finish_s == pytest.approx(185)
    figures = run.measures.figures()
    assert figures["sla_penalty_cost_usd"] == 2
    assert figures["sla_violations_count"] == 1
    assert figures["sla_met_share"] == 0
    assert run.levels is not None
    [row] = run.levels.rows(run.now_s)
    assert (row.observations, row.value) == (2, 0.5)


def test_deadlines_in_the_accounts() -> None:
    """One job at a time: the gold one that can still keep its deadline goes before the older one of nobody."""
    how = promised(Objective(ObjectiveKind.DEADLINE, 0.0, 86_400.0, 1_000_000))
    jobs = [
        job("first", 0, 100, 1.0, ""),
        job("other", 1, 100, 1.0, ""),
        job("gold", 2, 50, 1.0, "", tenant="gold", deadline_s=160.0),
        job("late", 3, 50, 1.0, "", tenant="gold", deadline_s=170.0),
    ]
    run = simulation(jobs, how)
    found = finished(run)
    assert found["gold"].finish_s == 150
    assert run.measures.figures()["sla_violations_count"] == 1
    assert run.measures.figures()["sla_penalty_cost_usd"] == 1
    assert found["late"].finish_s > 170


def test_average_wait_of_a_tenant() -> None:
    """Waits of 0 and 100 s are 50 on average, more than 40: one window of 1000 s is broken."""
    how = promised(Objective(ObjectiveKind.AVERAGE_WAIT, 40.0, 1000.0, 500_000))
    jobs = [
        job("one", 0, 100, 1.0, "", tenant="gold"),
        job("two", 0, 100, 1.0, "", tenant="gold"),
        job("last", 900, 200, 1.0, ""),
    ]
    run = simulation(jobs, how)
    finished(run)
    assert run.now_s == 1100
    assert run.measures.figures()["sla_penalty_cost_usd"] == 0.5


def test_a_resized_job_goes_on_in_the_accounts() -> None:
    """An elastic job that a planner gives another size was interrupted and started again at once: no wait, nothing lost."""
    known = Throughputs()
    known.rates["p", 1], known.rates["p", 2] = {"v100": 1.0}, {"v100": 2.0}
    jobs = [
        job("one", 0, 1000, 1.0, "p", work=1000.0, min_ranks=1, max_ranks=2, tenant="gold"),
        job("two", 300, 300, 1.0, "p", work=300.0, min_ranks=1, max_ranks=2, tenant="gold"),
    ]
    promise = Objective(ObjectiveKind.AVERAGE_WAIT, 100.0, 1e6)
    how = replace(setting("greedy-elastic"), objectives=(("gold", (promise,)),))
    run = simulation(jobs, how, network(2), interference=None, throughputs=known)
    assert len(finished(run)) == 2
    interruptions = sum(record.interruptions for record in run.measures.jobs)
    assert interruptions >= 1
    assert run.levels is not None
    [row] = run.levels.rows(run.now_s)
    assert row.observations == 2 + interruptions
    assert row.met


def test_without_promises_no_figures_of_them() -> None:
    run = simulation([job("one", 0, 100, 1.0, "")])
    finished(run)
    assert not [name for name in run.measures.figures() if name.startswith("sla")]
