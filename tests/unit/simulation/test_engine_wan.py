"""Data and traffic between domains in the simulator: every expected time, byte and price is worked out by hand.

The link from a to b carries 100 MiB/s, its round trip is 2 s, a GiB costs 0.05: 1 GiB alone takes 10.24 + 2 s.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from meridian.errors import InvalidArgumentError
from services.scheduler.core.policy import Policy
from simulation.engine import Simulation
from simulation.failures import NodeEvent
from simulation.measures import JobRecord
from simulation.model import Network, SimDomain, SimLink, SimNode, Trace, TraceJob
from simulation.policies import SETTINGS, setting
from simulation.setting import Setting

MIB, GIB = 1 << 20, 1 << 30
ALONE_S = 12.24
FIRST_FIT = setting("first-fit")
ROOMIEST = Setting("roomiest", Policy(name="roomiest", scores=(("spread", 1.0),), order=("age",)))


def network(devices: tuple[int, ...] = (0, 2), count: int = 1, **more: object) -> Network:
    """Domains a, b, ...; those with 0 have one node without devices. Links both ways between all."""
    names = "abcdef"[: len(devices)]
    domains = [
        SimDomain(name, [SimNode(f"{name}-{place}", name, 64.0, 1 << 40, each, "v100") for place in range(count)])
        for name, each in zip(names, devices, strict=True)
    ]
    given = {"bandwidth_bytes_per_s": 100.0 * MIB, "rtt_s": 2.0, "price_micro_units_per_gib": 50_000} | more
    links = [SimLink(one, other, **given) for one in names for other in names if one != other]  # type: ignore[arg-type]
    return Network(domains, links)


def staged(job_id: str, submit_s: float, **more: object) -> TraceJob:
    """100 s of one device, with 1 GiB in a."""
    fields = {"restart_cost_s": 10.0, "data_domain": "a", "data_bytes": float(GIB), "accelerators": 1} | more
    return TraceJob(job_id, submit_s, 100.0, **fields)  # type: ignore[arg-type]


def gang(job_id: str, submit_s: float, duration_s: float, bytes_per_s: float, **more: object) -> TraceJob:
    """Two ranks with one device each, that may be in two domains."""
    fields = {"cross_domain": True, "traffic_bytes_per_s": bytes_per_s, "restart_cost_s": 10.0} | more
    return TraceJob(job_id, submit_s, duration_s, 2, 1, **fields)  # type: ignore[arg-type]


def simulation(where: Network, jobs: list[TraceJob], how: Setting = FIRST_FIT, **more: object) -> Simulation:
    return Simulation(where, Trace("by hand", jobs), how, **more)  # type: ignore[arg-type]


def finished(run: Simulation) -> dict[str, JobRecord]:
    run.run()
    return {record.job_id: record for record in run.measures.jobs}


# -- staging ---------------------------------------------------------------------------------------------------------


def test_staging_takes_time_and_money() -> None:
    run = simulation(network(), [staged("one", 0)])
    record = finished(run)["one"]
    assert record.finish_s == pytest.approx(ALONE_S + 100)
    assert record.overhead_s == pytest.approx(ALONE_S)
    assert run.measures.wan_bytes == GIB
    assert run.measures.wan_micro_units == 50_000
    figures = run.measures.figures()
    assert figures["used_share_of_held"] == pytest.approx(100 / (100 + ALONE_S))


def test_nothing_moves_where_the_data_lies() -> None:
    run = simulation(network((1, 0)), [staged("one", 0)])
    assert finished(run)["one"].finish_s == 100
    assert run.measures.wan_bytes == 0


def test_two_stagings_share_the_link() -> None:
    """The first has 512 MiB when the second comes at 5.12, the rest at half speed: sent at 15.36; the second's other half alone
    until 20.48. Both then cross in 2 s."""
    found = finished(simulation(network(), [staged("one", 0), staged("two", 5.12)]))
    assert found["one"].finish_s == pytest.approx(15.36 + 2 + 100)
    assert found["two"].finish_s == pytest.approx(20.48 + 2 + 100)


def test_interrupted_while_staging() -> None:
    """The node fails at 5: 500 MiB had left and are paid for. From 50 on all of it comes again, which takes longer than the
    restart; no work was lost, 5 + 12.24 s were spent for nothing."""
    events = [NodeEvent(5.0, "b-0", "down"), NodeEvent(50.0, "b-0", "up")]
    run = simulation(network(), [staged("one", 0)], failures=events)
    record = finished(run)["one"]
    assert record.finish_s == pytest.approx(50 + ALONE_S + 100)
    assert (record.interruptions, record.lost_s) == (1, 0)
    assert record.overhead_s == pytest.approx(5 + ALONE_S)
    # What left of a cancelled transfer is known to 1 in 10^9.
    assert run.measures.wan_bytes == pytest.approx(500 * MIB + GIB, abs=2)


@pytest.mark.parametrize("data_bytes", [0.0, 1e12])
def test_getting_ready_is_not_taken_for_run_time(data_bytes: float) -> None:
    """Two jobs of 3,000 s that each time on the device take 10,000 s to be ready, after ten of 60 s by which they are
    predicted. Were that time taken for run time, each would look longer with every renewal than the one that waits, and
    would be taken off for it, for ever."""
    short = [TraceJob(f"short-{place}", 60.0 * place, 60.0, accelerators=1) for place in range(10)]
    more = {"data_bytes": data_bytes, "restart_cost_s": 0.0 if data_bytes else 10_000.0}
    long = [replace(staged(f"long-{place}", 700.0 + place, **more), duration_s=3000.0) for place in range(2)]
    run = simulation(network((0, 1)), short + long, SETTINGS["meridian"], until_s=100_000.0)
    ended = finished(run)
    assert {"long-0", "long-1"} <= set(ended)
    assert all(ended[name].overhead_s < 30_000 for name in ("long-0", "long-1"))


def test_interrupted_after_staging_finds_its_data() -> None:
    """Fails at 62.24 after 50 s of work without a checkpoint; the copy is there: at 100 + 10 all 100 s again."""
    events = [NodeEvent(50 + ALONE_S, "b-0", "down"), NodeEvent(100.0, "b-0", "up")]
    run = simulation(network(), [staged("one", 0)], failures=events)
    record = finished(run)["one"]
    assert record.finish_s == pytest.approx(210)
    assert record.lost_s == pytest.approx(50)
    assert record.overhead_s == pytest.approx(ALONE_S + 10)
    assert run.measures.wan_bytes == GIB


def test_the_original_stays_where_it_was() -> None:
    """A job holds a until 60, so the data is staged to b, whose node fails at 50. From 60 on a has room, and the data: no
    transfer, 10 s of restart."""
    jobs = [TraceJob("first", 0, 60.0, 1, 1), staged("one", 1)]
    run = simulation(network((1, 1)), jobs, failures=[NodeEvent(50.0, "b-0", "down")])
    assert finished(run)["one"].finish_s == pytest.approx(60 + 10 + 100)
    assert run.measures.wan_bytes == GIB


def test_comes_from_the_nearest_copy_that_has_a_link() -> None:
    """Staged to b, which fails at 50 for good; c has room when its job ends at 60. From a it would take 10.24 + 2 s; over the link
    from b, ten times as wide, 1.024 + 2 s, or there is none."""
    for wide in (True, False):
        where = network((0, 1, 1))
        where.links = [link for link in where.links if (link.from_domain, link.to_domain) != ("b", "c")]
        if wide:
            where.links.append(SimLink("b", "c", 1000.0 * MIB, 2.0))
        jobs = [
            TraceJob("early", 0, 20.0, 1, 1),
            TraceJob("first", 0, 60.0, 1, 1),
            staged("one", 20, restart_cost_s=0.0),
        ]
        run = simulation(where, jobs, failures=[NodeEvent(50.0, "b-0", "down")])
        assert finished(run)["one"].finish_s == pytest.approx(60 + (3.024 if wide else ALONE_S) + 100)
        assert run.wan.moved_bytes()["a", "b"] == GIB


def test_restart_and_staging_go_on_together() -> None:
    """Preempted by nobody, but failed at once: restart cost of 60 s exceeds the transfer, so it works from 50 + 60 on."""
    events = [NodeEvent(5.0, "b-0", "down"), NodeEvent(50.0, "b-0", "up")]
    record = finished(simulation(network(), [staged("one", 0, restart_cost_s=60.0)], failures=events))["one"]
    assert record.finish_s == pytest.approx(50 + 60 + 100)
    assert record.overhead_s == pytest.approx(5 + 60)


# -- gangs over domains ----------------------------------------------------------------------------------------------


def test_gang_goes_at_the_pace_of_its_link() -> None:
    """200 MiB/s wanted, 100 granted: half speed, 200 s; each way 100 MiB/s for 200 s, so 2 x 20000 MiB."""
    run = simulation(network((1, 1)), [gang("one", 0, 100.0, 200.0 * MIB)])
    assert finished(run)["one"].finish_s == pytest.approx(200)
    assert run.measures.wan_bytes == 2 * 20_000 * MIB
    # 20000 / 1024 GiB each way are 976562.5 micro-units, rounded up.
    assert run.measures.wan_micro_units == 2 * 976_563


def test_gang_undisturbed_where_the_link_suffices() -> None:
    run = simulation(network((1, 1)), [gang("one", 0, 100.0, 50.0 * MIB)])
    assert finished(run)["one"].finish_s == pytest.approx(100)
    assert run.measures.wan_bytes == 2 * 5000 * MIB


def test_gangs_share_a_link() -> None:
    """Both want 100 MiB/s. The first is alone until 40 (40 s done), then both at half speed: the second's 30 s take 60, until
    100 (the first has 70 done); then alone for its last 30: 130."""
    fillers = [TraceJob(f"filler-{name}", 0, 40.0, 1, 1) for name in "ab"]
    jobs = [*fillers, gang("one", 0, 100.0, 100.0 * MIB), gang("two", 0, 30.0, 100.0 * MIB)]
    found = finished(simulation(network((2, 2)), jobs, ROOMIEST))
    assert found["one"].first_start_s == 0
    # At 40 one device is free in each domain: the second spans them.
    assert found["two"].first_start_s == 40
    assert found["two"].finish_s == pytest.approx(100)
    assert found["one"].finish_s == pytest.approx(130)


def test_a_transfer_slows_a_gang_down_and_back() -> None:
    """The gang takes what is left at 10, one device in a and one in b, and wants 100 MiB/s of the link from a to b. At 20 a job
    in b fetches 1 GiB from a: both get 50 for 20.48 s, in which the gang does 10.24 s of work. So it ends 10.24 s late; the
    transfer takes 20.48 + 2 s."""
    jobs = [
        TraceJob("in a", 0, 10.0, 1, 1),
        TraceJob("in b", 0, 20.0, 1, 1),
        gang("one", 0, 100.0, 100.0 * MIB),
        staged("two", 20),
    ]
    found = finished(simulation(network((1, 2)), jobs, ROOMIEST))
    assert found["one"].first_start_s == 10
    assert found["two"].finish_s == pytest.approx(20 + 20.48 + 2 + 100)
    assert found["one"].finish_s == pytest.approx(10 + 100 + 10.24)


def test_gang_of_three_domains_and_its_end_on_failure() -> None:
    """Each of three links both ways carries the traffic; when a node fails at 30 all flows end with the run: 6 x 30 s."""
    where = network((1, 1, 1))
    three = gang("one", 0, 100.0, 50.0 * MIB)
    three.ranks = 3
    events = [NodeEvent(30.0, "c-0", "down")]
    run = simulation(where, [three], failures=events)
    assert not finished(run)
    assert run.measures.wan_bytes == 6 * 30 * 50 * MIB


def test_flows_begin_after_the_restart() -> None:
    """Failed at 30 and up at 40: nothing done, restart until 50, 100 s of work: flows for 30 + 100 s."""
    events = [NodeEvent(30.0, "b-0", "down"), NodeEvent(40.0, "b-0", "up")]
    run = simulation(network((1, 1)), [gang("one", 0, 100.0, 50.0 * MIB)], failures=events)
    assert finished(run)["one"].finish_s == pytest.approx(150)
    assert run.measures.wan_bytes == 2 * (30 + 100) * 50 * MIB


def test_a_gang_is_split_only_where_the_policy_allows() -> None:
    """split_cost refuses links that carry less than is exchanged; isolated settings split nothing."""
    jobs = [gang("one", 0, 100.0, 200.0 * MIB)]
    refusing = Setting(
        "refusing", Policy(name="refusing", scores=(("spread", 1.0), ("split_cost", 1.0)), order=("age",))
    )
    for how in (refusing, setting("isolated-first-fit")):
        own = [gang("one", 0, 100.0, 200.0 * MIB, home_domain="a")]
        run = simulation(network((1, 1)), own if how.isolated else jobs, how)
        assert not finished(run)
        assert run.measures.figures()["unfinished"] == 1
        assert run.measures.wan_bytes == 0


def test_gang_within_a_domain_exchanges_nothing_over_links() -> None:
    run = simulation(network((2, 0)), [gang("one", 0, 100.0, 200.0 * MIB)])
    assert finished(run)["one"].finish_s == 100
    assert run.measures.wan_bytes == 0


def test_link_without_bandwidth_stops_the_gang_but_not_the_run() -> None:
    run = simulation(network((1, 1), bandwidth_bytes_per_s=0.0), [gang("one", 0, 100.0, 1.0)])
    assert not finished(run)
    assert run.measures.figures()["unfinished"] == 1


def test_no_link_is_an_error_that_names_the_domains() -> None:
    where = network((0, 1))
    where.links.clear()
    with pytest.raises(InvalidArgumentError, match="'a' to 'b'"):
        simulation(where, [staged("one", 0)]).run()
