"""A cycle that looks only where something changed decides as one that remembers nothing and looks at all that wait."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.deciding import partitions
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.reach import Changed
from simulation import engine
from simulation.engine import Simulation
from simulation.made_networks import philly_network
from simulation.model import Network, Trace, TraceJob
from simulation.policies import setting

Row = tuple[int, int, int, int, int]
"""Seconds since the arrival before, run time in tens of seconds, ranks, accelerators per rank, number of the home domain."""

rows = st.lists(
    st.tuples(
        st.integers(0, 60), st.integers(1, 90), st.sampled_from([1, 1, 1, 2]), st.integers(1, 4), st.integers(0, 2)
    ),
    min_size=5,
    max_size=40,
)


def trace_of(found: list[Row]) -> Trace:
    at_s = 0.0
    jobs = []
    for number, (after_s, tens, ranks, accelerators, home) in enumerate(found):
        at_s += after_s
        # Predictions rest on the tenant's former jobs: some are late, some early.
        jobs.append(
            TraceJob(
                f"j{number}",
                at_s,
                10.0 * tens,
                ranks=ranks,
                accelerators=accelerators,
                tenant=f"t{number % 2}",
                home_domain=f"d{home}",
            )
        )
    return Trace("drawn", jobs)


def network() -> Network:
    """Three domains of two nodes with four accelerators each."""
    jobs = [TraceJob(f"d{home}", 0.0, 10.0, ranks=2, accelerators=4, home_domain=f"d{home}") for home in range(3)]
    return philly_network(Trace("even", jobs), accelerators=24, node_size=4)


def outcomes(name: str, trace: Trace, *, forgets: bool) -> list[tuple[str, float, float, int]]:
    def forgetful(cluster: Cluster, *state: object, **more: object) -> Decisions:
        cluster.forget()
        return decide(cluster, *state, **more)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        if forgets:
            patch.setattr(engine, "decide", forgetful)
        measures = Simulation(network(), trace, setting(name)).run()
    return [(job.job_id, job.first_start_s, job.finish_s, job.interruptions) for job in measures.jobs]


NAMES = ("srtf", "las", "isolated-srtf", "isolated-las", "isolated-easy", "isolated-easy-predicted", "easy-predicted")


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(found=rows)
def test_what_did_not_change_need_not_be_looked_at(name: str, found: list[Row]) -> None:
    trace = trace_of(found)
    kept = outcomes(name, trace, forgets=False)
    assert len(kept) == len(found)
    assert kept == outcomes(name, trace, forgets=True)


BUSY: list[Row] = [(5, 20 + 7 * (number % 11), 1, 1 + number % 4, number % 3) for number in range(60)]


@pytest.mark.parametrize("name", ["srtf", "las", "isolated-las"])
def test_nodes_without_a_change_spare_most_demands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the test above is about something: many demands are left out because no node that changed can hold a rank."""
    answers = []
    ask = Changed.may_hold

    def counted(self: Changed, *state: object) -> bool:
        answers.append(ask(self, *state))  # type: ignore[arg-type]
        return answers[-1]

    monkeypatch.setattr(Changed, "may_hold", counted)
    outcomes(name, trace_of(BUSY), forgets=False)
    assert answers.count(False) > answers.count(True) > 0


def test_partitions_without_a_change_are_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    choose = partitions.changed_partitions

    def counted(cluster: Cluster, estimate: str, now_s: float) -> object:
        found = choose(cluster, estimate, now_s)
        if found is not None:
            asked.append((len({lane.demand.domains for lane in found}), len(cluster.pending.lanes)))
        return found

    monkeypatch.setattr("services.scheduler.core.deciding.chances.changed_partitions", counted)
    outcomes("isolated-easy", trace_of(BUSY), forgets=False)
    assert sum(changed <= 1 for changed, _ in asked) > 60


def test_partitions_that_overlap_are_looked_at_together() -> None:
    """Jobs without a home may go anywhere: what they may use is a part of every partition."""
    mixed = [
        TraceJob(
            f"j{number}",
            5.0 * number,
            100.0 + number,
            accelerators=4,
            home_domain=f"d{number % 3}" if number % 4 else "",
        )
        for number in range(40)
    ]
    trace = Trace("mixed", mixed)
    assert outcomes("isolated-easy", trace, forgets=False) == outcomes("isolated-easy", trace, forgets=True)
