from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.heartbeat_network import Path, SimulatedDomain, simulate
from services.failover.beliefs import (
    Beat,
    DomainState,
    Evidence,
    KnownDomain,
    KnownNode,
    NodeState,
    NodeView,
    Summary,
    Thresholds,
    domain_state_of,
    node_state_of,
)
from services.failover.detector import Detector
from services.failover.transitions import (
    DomainAppeared,
    DomainForgotten,
    DomainLeaseChanged,
    DomainLeaseRanOut,
    DomainReturned,
    DomainWentSilent,
    NodeAppeared,
    NodeBecameSuspect,
    NodeDied,
    NodeForgotten,
    NodeReturned,
    Transition,
)

T = Thresholds()
STEP_S = 0.1


class Script:
    """One detector and what its domains say, every 0.1 s of virtual time."""

    def __init__(self, detector: Detector | None = None, domains: tuple[str, ...] = ("north", "south")) -> None:
        self.detector = detector or Detector(T, 0.0)
        self.now_s = 0.0
        self.sequence = 0
        self.agent_incarnation = 1
        self.speaking = set(domains)
        self.lag_s = 0.0
        # node -> (domain, incarnation, silent since or None, exited)
        self.nodes: dict[str, tuple[str, int, float | None, bool]] = {
            f"{domain}-1": (domain, 1, None, False) for domain in domains
        }
        self.run_ids: dict[str, tuple[str, ...]] = {}
        self.found: list[tuple[float, Transition]] = []

    def silence(self, node: str, *, exited: bool = False) -> None:
        domain, incarnation, _, _ = self.nodes[node]
        self.nodes[node] = (domain, incarnation, self.now_s, exited)

    def revive(self, node: str, *, incarnation: int | None = None) -> None:
        domain, old, _, _ = self.nodes[node]
        self.nodes[node] = (domain, incarnation or old, None, False)

    def run(self, seconds: float) -> list[Transition]:
        """What changed in the next ``seconds``."""
        before = len(self.found)
        for _ in range(round(seconds / STEP_S)):
            self.now_s = round(self.now_s + STEP_S, 6)
            self.sequence += 1
            for domain in sorted(self.speaking):
                self.detector.observe(self.summary(domain), self.now_s)
            self.found += [(self.now_s, item) for item in self.detector.tick(self.now_s)]
        return [item for _, item in self.found[before:]]

    def summary(self, domain: str) -> Summary:
        beats = tuple(
            Beat(
                node,
                incarnation,
                0.0 if silent_s is None else self.now_s - silent_s,
                exited=exited,
                run_ids=self.run_ids.get(node, ()),
            )
            for node, (home, incarnation, silent_s, exited) in self.nodes.items()
            if home == domain
        )
        sent_s = 1e9 + self.now_s - self.lag_s
        return Summary(domain, "agent", self.agent_incarnation, self.sequence, sent_s, STEP_S, 10.0, beats)

    def settle(self) -> None:
        self.run(6.0)

    def when(self, kind: type[Transition]) -> float:
        return next(at_s for at_s, item in self.found if isinstance(item, kind))


def test_appear_then_nothing_changes_while_all_beat() -> None:
    script = Script()
    found = script.run(60)
    assert {type(item) for item in found} == {DomainAppeared, NodeAppeared}
    assert len(found) == 4


def test_silent_node_is_suspected_at_1_s_and_failed_at_2_s() -> None:
    script = Script()
    script.settle()
    died_s = script.now_s
    script.silence("north-1")
    suspect, dead = script.run(3)
    assert isinstance(suspect, NodeBecameSuspect)
    assert isinstance(dead, NodeDied)
    assert script.when(NodeBecameSuspect) - died_s == pytest.approx(1.0, abs=0.15)
    assert script.when(NodeDied) - died_s == pytest.approx(2.0, abs=0.15)
    assert (dead.evidence, dead.incarnation, dead.quarantined) == (Evidence.SILENT, 1, False)
    assert dead.last_heard_s == pytest.approx(died_s, abs=0.11)


def test_exit_needs_confirmation_and_beats_silence() -> None:
    script = Script()
    script.settle()
    script.silence("north-1", exited=True)
    assert script.run(0.3) == []
    (dead,) = script.run(0.2)
    assert isinstance(dead, NodeDied)
    assert dead.evidence is Evidence.EXITED


def test_an_exit_that_is_taken_back_is_none() -> None:
    script = Script()
    script.settle()
    script.silence("north-1", exited=True)
    script.run(0.2)
    script.revive("north-1")
    assert script.run(5) == []


def test_suspected_node_that_is_heard_again_has_recovered() -> None:
    script = Script()
    script.settle()
    script.silence("north-1")
    script.run(1.5)
    script.revive("north-1")
    (returned,) = script.run(2)
    assert returned == NodeReturned("north", "north-1", 1, NodeState.SUSPECTED)


def test_failed_node_returns_at_once_as_a_new_incarnation_and_after_two_steady_seconds_as_the_old_one() -> None:
    script = Script()
    script.settle()
    script.silence("north-1")
    script.silence("south-1")
    script.run(3)
    back_s = script.now_s
    script.revive("north-1", incarnation=2)
    script.revive("south-1")
    script.run(4)
    returned = {item.node_id: at_s - back_s for at_s, item in script.found if isinstance(item, NodeReturned)}
    assert returned["north-1"] <= 0.2
    assert 1.9 <= returned["south-1"] <= 2.3


def test_restart_between_two_summaries_loses_the_runs_of_the_old_incarnation_only() -> None:
    script = Script()
    script.settle()
    script.run_ids["north-1"] = ("new.0.1",)
    script.revive("north-1", incarnation=2)
    dead, returned = script.run(0.2)
    assert isinstance(dead, NodeDied)
    assert (dead.evidence, dead.surviving_runs) == (Evidence.RESTARTED, frozenset({"new.0.1"}))
    assert returned == NodeReturned("north", "north-1", 2, NodeState.FAILED)


def test_beats_of_an_older_incarnation_do_not_revive() -> None:
    script = Script()
    script.settle()
    script.revive("north-1", incarnation=5)
    script.run(1)
    script.revive("north-1", incarnation=4)
    found = script.run(3)
    assert [type(item) for item in found] == [NodeBecameSuspect, NodeDied]


def test_node_that_its_agent_no_longer_names_fails() -> None:
    script = Script()
    script.settle()
    del script.nodes["north-1"]
    dead = script.run(3)[-1]
    assert isinstance(dead, NodeDied)
    assert dead.evidence is Evidence.NOT_LISTED


def test_silent_agent_makes_its_domain_unreachable_and_never_its_nodes_dead() -> None:
    script = Script()
    script.settle()
    script.speaking.discard("north")
    muted_s = script.now_s
    found = script.run(30)
    assert [type(item) for item in found] == [DomainWentSilent, DomainLeaseRanOut]
    assert script.when(DomainWentSilent) - muted_s == pytest.approx(3.0, abs=0.15)
    # Its lease of 10 s and the margin of 2 s.
    assert script.when(DomainLeaseRanOut) - muted_s == pytest.approx(12.0, abs=0.15)
    script.speaking.add("north")
    assert script.run(20) == [DomainReturned("north")]


def test_node_that_died_behind_a_silent_agent_fails_after_the_agent_is_back() -> None:
    script = Script()
    script.settle()
    script.speaking.discard("north")
    script.silence("north-1")
    script.run(5)
    script.speaking.add("north")
    found = script.run(T.agent_grace_s + 0.3)
    assert [type(item) for item in found] == [DomainWentSilent, DomainReturned, NodeDied][1:]


def test_all_domains_silent_together_is_held_for_30_s_then_declared() -> None:
    script = Script()
    script.settle()
    script.speaking.clear()
    muted_s = script.now_s
    assert script.run(20) == []
    assert script.detector.held(script.now_s) == "all domains fell silent together"
    script.run(20)
    lost = [(at_s - muted_s, item) for at_s, item in script.found if isinstance(item, DomainWentSilent)]
    assert len(lost) == 2
    assert lost[0][0] == pytest.approx(33.0, abs=0.3)


def test_hold_ends_when_one_is_heard_and_the_other_is_judged_afresh() -> None:
    script = Script()
    script.settle()
    script.speaking.clear()
    script.run(10)
    script.speaking.add("south")
    back_s = script.now_s
    lost, lease = script.run(5)
    assert isinstance(lost, DomainWentSilent)
    assert lost.domain_id == "north"
    # Its last beat was more than a lease ago by then.
    assert isinstance(lease, DomainLeaseRanOut)
    assert script.when(DomainWentSilent) - back_s == pytest.approx(3.0, abs=0.3)


def test_two_domains_that_die_apart_are_both_declared() -> None:
    script = Script()
    script.settle()
    script.speaking.discard("north")
    script.run(2)
    script.speaking.discard("south")
    found = script.run(5)
    assert [type(item) for item in found] == [DomainWentSilent, DomainWentSilent]


def test_all_silent_together_are_held_once_though_the_own_loop_stalls_when_it_ends() -> None:
    script = Script()
    script.settle()
    script.speaking.clear()
    script.run(T.unreachable_after_s + 1)
    assert script.detector.held(script.now_s) == "all domains fell silent together"
    script.now_s += T.hold_s
    assert script.detector.tick(script.now_s) == []
    found = script.run(T.unreachable_after_s + 1)
    assert [item.domain_id for item in found if isinstance(item, DomainWentSilent)] == ["north", "south"]


def test_a_domain_that_is_heard_again_has_time_to_hear_its_nodes() -> None:
    script = Script()
    script.settle()
    script.silence("north-1")
    script.speaking.discard("north")
    assert [type(item) for item in script.run(5)] == [DomainWentSilent]
    script.speaking.add("north")
    assert [type(item) for item in script.run(T.agent_grace_s - STEP_S)] == [DomainReturned]
    assert [type(item) for item in script.run(3 * STEP_S)] == [NodeDied]


def test_an_agent_that_beats_seldom_has_a_voice_for_three_of_its_intervals() -> None:
    detector, died_s = Detector(T, 0.0), 0.0
    for tenth in range(151):
        now_s = tenth / 10
        if tenth % 10 == 0:
            beat = Beat("n", 1, max(0.0, now_s - 10.8))
            detector.observe(Summary("d", "a", 1, tenth + 1, now_s, 1.0, 10.0, (beat,)), now_s)
        if any(isinstance(item, NodeDied) for item in detector.tick(now_s)):
            died_s = now_s
    # Silent since 10.8; the last beat before its time was over came 0.8 s before that.
    assert died_s == pytest.approx(10.8 + T.failed_after_s)


def test_a_single_domain_is_not_held() -> None:
    script = Script(domains=("north",))
    script.settle()
    script.speaking.clear()
    assert [type(item) for item in script.run(4)] == [DomainWentSilent]


def test_own_stall_declares_nothing_about_what_was_silent_meanwhile() -> None:
    script = Script()
    script.settle()
    # The loop stands for 20 s; then the first tick comes before anything that waited is heard.
    script.now_s += 20
    assert script.detector.tick(script.now_s) == []
    assert script.run(10) == []


def test_grace_after_the_start() -> None:
    script = Script()
    script.run(0.2)
    script.silence("north-1")
    assert not [item for item in script.run(4.5) if isinstance(item, NodeDied | NodeBecameSuspect)]
    assert [type(item) for item in script.run(1.0)] == [NodeDied]


def test_agent_restart_gives_its_nodes_time_and_does_not_count_against_them() -> None:
    script = Script()
    script.settle()
    for restart in range(2, 7):
        script.agent_incarnation, script.sequence = restart, 0
        script.silence("north-1")
        script.run(1.5)
        script.revive("north-1", incarnation=restart)
        found = script.run(5)
        died = [item for item in found if isinstance(item, NodeDied)]
        assert [(item.evidence, item.quarantined) for item in died] == [(Evidence.AGENT_RESTARTED, False)]
        assert isinstance(found[-1], NodeReturned)


def test_flapping_node_is_quarantined_until_a_steady_minute() -> None:
    script = Script()
    script.settle()
    for incarnation in (2, 3, 4):
        script.silence("north-1", exited=True)
        script.run(1)
        script.revive("north-1", incarnation=incarnation)
        last = script.run(1)
    assert last == []
    assert script.detector.nodes()["north-1"].quarantined
    script.run(30)
    script.silence("north-1")
    script.run(1)
    script.revive("north-1")
    again_s = script.now_s
    found = script.run(70)
    assert found == [NodeReturned("north", "north-1", 4, NodeState.FAILED)]
    assert script.found[-1][0] - again_s == pytest.approx(60.0, abs=0.3)
    assert not script.detector.nodes()["north-1"].quarantined


def test_failures_far_apart_do_not_quarantine() -> None:
    script = Script()
    script.settle()
    for incarnation in (2, 3, 4, 5):
        script.silence("north-1", exited=True)
        script.run(1)
        script.revive("north-1", incarnation=incarnation)
        assert [type(item) for item in script.run(320)] == [NodeReturned]


def test_duplicates_older_agents_and_backlog_are_passed_over() -> None:
    detector = Detector(T, 0.0)

    def summary(incarnation: int, sequence: int, sent_s: float) -> Summary:
        return Summary("north", "a", incarnation, sequence, sent_s, 0.2, 10.0, (Beat("n", 1, 0.0),))

    assert detector.observe(summary(2, 1, 100.0), 0.0)
    assert not detector.observe(summary(2, 1, 100.0), 0.1)
    assert not detector.observe(summary(1, 9, 100.0), 0.1)
    assert detector.observe(summary(2, 2, 100.2), 0.2)
    # Sent at 101, arrives at 20: 19 s late. The queue behind it comes at once.
    assert not detector.observe(summary(2, 3, 101.0), 20.0)
    assert not detector.observe(summary(2, 4, 110.0), 20.0)
    assert detector.observe(summary(2, 5, 119.9), 20.0)


def test_an_agent_whose_clock_was_set_back_is_believed_after_a_second() -> None:
    script = Script()
    script.settle()
    script.lag_s = 3600.0
    assert script.run(30) == []


def test_restored_state_goes_on() -> None:
    detector = Detector(
        T,
        0.0,
        domains=[
            KnownDomain("north", DomainState.REACHABLE, 10.0),
            KnownDomain("south", DomainState.UNREACHABLE, 10.0),
        ],
        nodes=[
            KnownNode("north-1", "north", 1, NodeState.FAILED, failed_ago_s=(30.0, 20.0)),
            KnownNode("north-2", "north", 1, NodeState.ALIVE),
            KnownNode("south-1", "south", 1, NodeState.ALIVE),
        ],
    )
    script = Script(detector)
    script.nodes["north-1"] = ("north", 2, None, False)
    found = script.run(8)
    # south was unreachable and is heard; north-1 came back; north-2 died while nobody watched.
    assert DomainReturned("south") in found
    assert NodeReturned("north", "north-1", 2, NodeState.FAILED) in found
    died = [item for item in found if isinstance(item, NodeDied)]
    assert [(item.node_id, item.evidence) for item in died] == [("north-2", Evidence.NOT_LISTED)]
    script.silence("north-1")
    dead = script.run(3)[-1]
    assert isinstance(dead, NodeDied)
    assert dead.quarantined


def _one_domain(name: str, nodes: int, to_agent: Path, to_failover: Path) -> SimulatedDomain:
    return SimulatedDomain(name, tuple(f"{name}-{index}" for index in range(nodes)), to_agent, to_failover)


def test_loss_and_jitter_raise_no_alarm_and_deaths_are_found_in_time() -> None:
    lossy = Path(delay_s=0.06, jitter_s=0.05, loss=0.05)
    domains = [_one_domain(name, 10, Path(0.001, 0.01, loss=0.05), lossy) for name in ("north", "south")]
    for domain in domains:
        for index, node in enumerate(domain.node_ids):
            domain.outages[node] = [(20.0 + 11.3 * index, 20.0 + 11.3 * index + 20.0)]
    found = simulate(domains, Detector(T, 0.0), 180.0, seed=7)
    died = {item.node_id: at_s for at_s, item in found if isinstance(item, NodeDied)}
    outages = {node: times[0][0] for domain in domains for node, times in domain.outages.items()}
    assert set(died) == set(outages)
    delays_s = sorted(died[node] - outages[node] for node in outages)
    assert delays_s[0] > 1.7
    assert delays_s[-1] < 3.0
    assert sum(isinstance(item, NodeDied) for _, item in found) == len(outages)
    assert not [item for _, item in found if isinstance(item, DomainWentSilent)]


@settings(max_examples=25, deadline=None)
@given(
    loss=st.floats(0, 0.05),
    jitter_s=st.floats(0.001, 0.1),
    partition=st.tuples(st.floats(10, 30), st.floats(0.5, 12)),
    seed=st.integers(0, 10_000),
)
def test_no_partition_of_a_domain_is_ever_the_death_of_a_node(
    loss: float, jitter_s: float, partition: tuple[float, float], seed: int
) -> None:
    # Nodes are heard well by their agent: whatever happens between agent and failover, none of them is dead.
    north = _one_domain("north", 3, Path(0.001, 0.001), Path(0.06, jitter_s, loss))
    south = _one_domain("south", 3, Path(0.001, 0.001), Path(0.06, jitter_s, loss))
    north.partitions = [(partition[0], sum(partition))]
    found = [item for _, item in simulate([north, south], Detector(T, 0.0), 50.0, seed=seed)]
    assert not [item for item in found if isinstance(item, NodeDied)]
    lost = [item for item in found if isinstance(item, DomainWentSilent)]
    returned = [item for item in found if isinstance(item, DomainReturned)]
    assert len(lost) == len(returned) <= 1
    if partition[1] > 5:
        assert [item.domain_id for item in lost] == ["north"]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["beat", "tick"]),
            st.floats(0, 5),
            st.integers(1, 3),
            st.floats(0, 5),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_transitions_of_a_node_keep_the_state_machine(steps: list[tuple[str, float, int, float, bool]]) -> None:
    detector = Detector(T, 0.0)
    now_s, sequence, found = 0.0, 0, []
    for what, wait_s, incarnation, age_s, exited in steps:
        now_s += wait_s
        if what == "beat":
            sequence += 1
            beat = Beat("n", incarnation, age_s, exited=exited)
            detector.observe(Summary("d", "a", 1, sequence, now_s, 0.2, 10.0, (beat,)), now_s)
        found += detector.tick(now_s)
    allowed = {
        None: {NodeAppeared},
        NodeAppeared: {NodeBecameSuspect, NodeDied},
        NodeBecameSuspect: {NodeDied, NodeReturned},
        NodeDied: {NodeReturned},
        NodeReturned: {NodeBecameSuspect, NodeDied},
    }
    state = None
    for item in found:
        if isinstance(item, NodeAppeared | NodeBecameSuspect | NodeDied | NodeReturned):
            assert type(item) in allowed[state]
            state = type(item)


BRIEF = Thresholds(forget_after_s=100.0)


def test_a_failed_node_that_its_agent_names_no_more_is_forgotten_and_new_when_it_comes_again() -> None:
    script = Script(Detector(BRIEF, 0.0))
    script.settle()
    gone = script.nodes.pop("north-1")
    [_, died] = script.run(3.0)
    assert isinstance(died, NodeDied)
    died_s = script.when(NodeDied)
    assert script.run(95.0) == []
    [forgotten] = script.run(10.0)
    assert isinstance(forgotten, NodeForgotten)
    assert (forgotten.domain_id, forgotten.node_id, forgotten.incarnation) == ("north", "north-1", 1)
    assert forgotten.failed_for_s == pytest.approx(100.0, abs=0.11)
    assert script.when(NodeForgotten) - died_s == pytest.approx(100.0, abs=0.11)
    assert set(script.detector.nodes()) == {"south-1"}
    script.nodes["north-1"] = gone
    assert script.run(5.0) == [NodeAppeared("north", "north-1", 1)]


def test_a_failed_node_that_its_agent_names_is_known_for_ever() -> None:
    script = Script(Detector(BRIEF, 0.0))
    script.settle()
    script.silence("north-1")
    script.run(300.0)
    assert not [item for _, item in script.found if isinstance(item, NodeForgotten)]
    script.revive("north-1", incarnation=2)
    [back] = script.run(1.0)
    assert isinstance(back, NodeReturned)


def test_an_alive_node_is_not_forgotten_with_its_agent() -> None:
    script = Script(Detector(BRIEF, 0.0))
    script.settle()
    script.speaking = {"south"}
    script.run(300.0)
    assert set(script.detector.nodes()) == {"north-1", "south-1"}


def test_failed_nodes_of_an_earlier_detector_are_forgotten_once_their_agent_had_time_to_name_them() -> None:
    known = [
        KnownNode(node_id, domain_id, 1, NodeState.FAILED, changed_ago_s=ago_s)
        for node_id, domain_id, ago_s in (
            ("removed", "north", 500.0),
            ("named", "north", 500.0),
            ("removed lately", "north", 50.0),
            ("of an agent that is away", "away", 500.0),
        )
    ]
    domains = [
        KnownDomain("north", DomainState.REACHABLE, 10.0),
        KnownDomain("away", DomainState.UNREACHABLE, 10.0, lease_ran_out=True),
    ]
    script = Script(Detector(BRIEF, 0.0, domains=domains, nodes=known))
    script.nodes["named"] = ("north", 1, -400.0, False)
    found = script.run(10.0)
    forgotten = {item.node_id for item in found if isinstance(item, NodeForgotten)}
    assert forgotten == {"removed", "of an agent that is away"}
    assert set(script.detector.nodes()) == {"north-1", "south-1", "named", "removed lately"}
    assert [type(item) for item in script.run(60.0)] == [NodeForgotten]


LEAVING = Thresholds(forget_domain_after_s=100.0)


def test_a_domain_that_is_silent_for_very_long_is_forgotten_with_its_nodes_and_new_when_it_comes_again() -> None:
    script = Script(Detector(LEAVING, 0.0))
    script.settle()
    script.speaking = {"south"}
    [silent, _] = script.run(20.0)
    assert isinstance(silent, DomainWentSilent)
    silent_s = script.when(DomainWentSilent)
    assert script.run(80.0) == []
    [forgotten] = script.run(10.0)
    assert isinstance(forgotten, DomainForgotten)
    assert forgotten.domain_id == "north"
    assert forgotten.silent_for_s == pytest.approx(100.0, abs=0.11)
    assert script.when(DomainForgotten) - silent_s == pytest.approx(100.0, abs=0.11)
    assert set(script.detector.domains) == {"south"}
    assert set(script.detector.nodes()) == {"south-1"}
    script.speaking = {"north", "south"}
    assert script.run(5.0) == [DomainAppeared("north", 10.0), NodeAppeared("north", "north-1", 1)]


def test_a_domain_that_is_heard_again_in_time_is_known_for_ever() -> None:
    script = Script(Detector(LEAVING, 0.0))
    script.settle()
    for _ in range(3):
        script.speaking = {"south"}
        script.run(60.0)
        script.speaking = {"north", "south"}
        script.run(60.0)
    assert not [item for _, item in script.found if isinstance(item, DomainForgotten)]


def test_a_domain_of_an_earlier_detector_is_forgotten_by_the_time_it_has_been_silent() -> None:
    domains = [
        KnownDomain("away", DomainState.UNREACHABLE, 10.0, lease_ran_out=True, changed_ago_s=500.0),
        KnownDomain("away lately", DomainState.UNREACHABLE, 10.0, lease_ran_out=True, changed_ago_s=50.0),
        KnownDomain("north", DomainState.UNREACHABLE, 10.0, lease_ran_out=True, changed_ago_s=500.0),
    ]
    nodes = [KnownNode("alive", "away", 1, NodeState.ALIVE)]
    script = Script(Detector(LEAVING, 0.0, domains=domains, nodes=nodes))
    found = [item for item in script.run(20.0) if isinstance(item, DomainForgotten)]
    assert [item.domain_id for item in found] == ["away"], "the agent of north had time to be heard"
    assert set(script.detector.domains) == {"north", "south", "away lately"}
    assert "alive" not in script.detector.nodes()
    assert [item.domain_id for item in script.run(40.0) if isinstance(item, DomainForgotten)] == ["away lately"]


class CountedNodes(dict[str, NodeView]):
    """How often all nodes of a domain are looked at."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_each_node_is_looked_at_once_in_a_tick() -> None:
    """Who may be forgotten is asked once a minute: 30 days are long."""
    script = Script(Detector(Thresholds(), 0.0))
    script.settle()
    ticks = 0
    for domain in script.detector.domains.values():
        domain.nodes = CountedNodes(domain.nodes)
    tick = script.detector.tick

    def counted(now_s: float) -> list[Transition]:
        nonlocal ticks
        ticks += 1
        return tick(now_s)

    script.detector.tick = counted  # type: ignore[method-assign]
    assert script.run(30.0) == []
    for domain in script.detector.domains.values():
        assert isinstance(domain.nodes, CountedNodes)
        assert ticks <= domain.nodes.looks <= ticks + 1


@pytest.mark.parametrize(
    ("text", "lease_ran_out", "taken"),
    [
        ("reachable", False, DomainState.REACHABLE),
        ("unreachable", True, DomainState.UNREACHABLE),
        ("of a later release", True, DomainState.UNREACHABLE),
        ("of a later release", False, DomainState.REACHABLE),
    ],
)
def test_a_state_of_a_domain_that_a_later_release_kept(text: str, lease_ran_out: bool, taken: DomainState) -> None:
    """An older instance may lead while the others are replaced."""
    assert domain_state_of(text, lease_ran_out=lease_ran_out) is taken


def test_a_state_of_a_node_that_a_later_release_kept() -> None:
    assert node_state_of("of a later release") is NodeState.ALIVE
    assert [node_state_of(str(state)) for state in NodeState] == list(NodeState)


@pytest.mark.parametrize("interval_s", [0.1, 0.7, 1.0, 3600.0, 1e300])
def test_nodes_are_not_dead_because_their_agent_is_silent_however_seldom_it_says_to_beat(interval_s: float) -> None:
    """Its runs go on: they are recovered when its lease has run out, and no sooner."""
    detector = Detector(T, 0.0)
    beats = (Beat("north-1", 1, 0.05), Beat("north-2", 1, 0.05))
    found: list[Transition] = []
    for step in range(1, 200):
        now_s = step * STEP_S
        if now_s <= 10.0:
            detector.observe(Summary("north", "agent", 1, step, 1e9 + now_s, interval_s, 300.0, beats), now_s)
        detector.observe(Summary("south", "agent", 1, step, 1e9 + now_s, STEP_S, 300.0, ()), now_s)
        found += detector.tick(now_s)
    assert not [item for item in found if isinstance(item, NodeDied)]
    assert [item.domain_id for item in found if isinstance(item, DomainWentSilent)] == ["north"]


def test_a_lease_that_changes_is_told_so_that_the_next_detector_waits_for_it_too() -> None:
    detector = Detector(T, 0.0)

    def beat(sequence: int, lease_s: float) -> list[Transition]:
        now_s = sequence * STEP_S
        detector.observe(Summary("north", "agent", 1, sequence, 1e9 + now_s, STEP_S, lease_s, ()), now_s)
        return detector.tick(now_s)

    assert beat(1, 0.0) == [DomainAppeared("north", 10.0)], "one that is not said is the usual one"
    assert beat(2, 10.0) == []
    assert beat(3, 60.0) == [DomainLeaseChanged("north", 60.0)]
    assert beat(4, 60.0) == []
    assert beat(5, 0.0) == []
    assert beat(6, 20.0) == [DomainLeaseChanged("north", 20.0)]
