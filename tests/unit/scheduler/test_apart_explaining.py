"""What a shard can say on two levels: why a unit runs where it does, and what it knows of domains while one waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.scheduler.core import binding, lifecycle
from services.scheduler.core.apart.dispatching import ANSWER_LIMIT_S, Dispatcher
from services.scheduler.core.apart.grants import DomainGrants
from services.scheduler.core.apart.knowledge import SILENT, KnownDomain
from services.scheduler.core.apart.messages import GrantName, Request, Session, Wanted
from services.scheduler.core.apart.turns import take_answers
from services.scheduler.core.book import Book
from services.scheduler.core.explaining.explanation import rederive, sentences
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, JobKind, JobSpec, UnitKey
from services.scheduler.shards.wire import answer_from, answer_message
from tests.unit.scheduler.world import a_fleet

POLICY = Policy(scores=(("pack", 1.0), ("price", 2.0)))
OF_DOMAINS = replace(POLICY, name="of-domains", scores=(("spread", 1.0), ("pack", 0.5)))
SIZES = {"east": 3, "west": 2, "north": 1}


class World:
    """A shard and its domains, which answer at once in the form of the contracts; ``deaf`` ones do not answer."""

    def __init__(self) -> None:
        fleet = a_fleet(SIZES)
        self.book = Book(POLICY)
        draft = self.book.draft()
        draft.fleet = fleet
        self.book.merge(draft)
        self.dispatcher = Dispatcher("s", Session(1, 1), POLICY)
        self.domains = {name: DomainGrants(name, fleet, OF_DOMAINS, 1) for name in fleet.domains}
        self.deaf: set[str] = set()
        self.now_s = 0.0
        self.explained: dict[str, dict[str, Any]] = {}
        self.chosen: dict[str, dict[str, int]] = {}

    def submit(self, job_id: str, demand: Demand, ranks: int = 1) -> None:
        kind = JobKind.GANG if ranks > 1 else JobKind.TASK
        spec = JobSpec(kind, demand, ranks=ranks if ranks > 1 else 0, command=("run",))
        draft = self.book.draft()
        lifecycle.submit(draft, job_id, "lab", spec, self.now_s)
        self.book.merge(draft)
        self.run()

    def run(self) -> None:
        """Until nobody says anything more."""
        self.book.advance(self.now_s)
        while requests := self.dispatcher.step(self.book, self.now_s).requests:
            for request in requests:
                if request.domain_id in self.deaf:
                    continue
                reply = self.domains[request.domain_id].handle(request, self.now_s)
                if reply is None:
                    continue
                draft = self.book.draft()
                known = answer_from(answer_message(reply, self.now_s))
                taken = take_answers(draft, self.dispatcher, [known], POLICY, self.now_s, lambda: "dec", binding.PORTS)
                self.explained |= {item.key.job_id: dict(item.explanation) for item in draft.records}
                for run in taken.runs:
                    nodes = self.chosen.setdefault(run.key.job_id, {})
                    for rank in run.ranks:
                        nodes[rank.node_id] = nodes.get(rank.node_id, 0) + 1
                self.book.merge(draft)

    def known(self, demand: Demand, job_id: str = "") -> dict[str, KnownDomain]:
        key = UnitKey(job_id, 0) if job_id else None
        return {item.domain_id: item for item in self.dispatcher.known(demand, key)}


def test_both_choices_follow_from_the_explanation_alone() -> None:
    world = World()
    world.submit("small", Demand(1, cpus=1.0, accelerators=2))
    world.submit("large", Demand(1, cpus=1.0, accelerators=3, excluded_domains=frozenset({"north"})), ranks=2)
    for job_id, body in world.explained.items():
        found = rederive(body)
        assert found.place == body["chosen"]["place"]
        assert dict(found.nodes) == world.chosen[job_id]
        # All domains stand in it with their scores, and the nodes with those of the domain's own policy.
        assert {row["place"] for row in body["domains"]} == ({*SIZES} if job_id == "small" else {"east", "west"})
        assert set(body["node_weights"][found.place]) == {"spread", "pack"}
        assert body["said_by"] == {found.place: {"policy_version": OF_DOMAINS.version}}
        assert body["nodes_considered"] == SIZES[found.place]
        assert (body["levels"], body["policy_version"]) == ("two", POLICY.version)
        assert sentences(body)
    assert [row["domain_id"] for row in world.explained["large"]["domains_rejected"]] == ["north"]


def test_a_split_has_the_nodes_of_each_domain() -> None:
    world = World()
    world.submit("wide", Demand(1, cpus=1.0, accelerators=4, cross_domain=True), ranks=5)
    body = world.explained["wide"]
    found = rederive(body)
    assert set(found.place.split("+")) == set(body["chosen"]["ranks"]) == set(body["said_by"])
    assert sum(body["chosen"]["ranks"].values()) == 5
    assert dict(found.nodes) == world.chosen["wide"]


def test_only_the_first_of_many_are_explained_by_their_domain() -> None:
    domain = DomainGrants("east", a_fleet({"east": 6}), OF_DOMAINS, 1)
    wanted = [Wanted(GrantName(UnitKey(f"job-{n}", 0), 1), "lab", 0, Demand(1, accelerators=1)) for n in range(24)]
    reply = domain.handle(Request("east", "s", Session(1, 1), 1, begins=True, wanted=tuple(wanted)), 0.0)
    assert reply is not None
    assert len(reply.placed) == 24
    assert list(reply.explanations) == [item.name for item in wanted[:20]]


def test_what_is_known_of_domains_while_a_unit_waits() -> None:
    world = World()
    whole = Demand(1, cpus=1.0, accelerators=4)
    # Another shard takes a node of east, and this one does not hear of it: it asks, and is refused.
    pinned = replace(whole, domains=frozenset({"east"}))
    world.submit("ours", pinned)
    world.submit("ours too", pinned)
    other = Wanted(GrantName(UnitKey("theirs", 0), 1), "mill", 0, whole)
    world.domains["east"].handle(Request("east", "t", Session(1, 1), 1, begins=True, wanted=(other,)), 0.0)
    world.submit("late", pinned)
    assert "late" not in world.chosen
    found = world.known(pinned, "late")
    east = found["east"]
    assert (east.ranks_that_fit, sum(east.summary.free_devices.values()), east.summary.running) == (0, 0, 3)
    assert "waiting for capacity" in east.refused
    assert found["west"].rejected.startswith("domain: ")
    # For a class without limits, by what was told: west has two whole nodes, north one; those with room come first.
    rows = world.dispatcher.known(whole)
    assert {row.domain_id: row.ranks_that_fit for row in rows} == {"west": 2, "north": 1, "east": 0}
    assert rows[-1].domain_id == "east"
    assert all(row.refused == "" for row in rows)
    body = east.as_json()
    assert (body["told"]["accelerators_free"], body["told"]["accelerators"]) == (0, 12)


def test_a_domain_that_does_not_answer_is_said_to_count_as_full() -> None:
    world = World()
    demand = Demand(1, cpus=1.0, accelerators=1, domains=frozenset({"north"}))
    world.submit("first", demand)
    world.deaf.add("north")
    world.submit("job", demand)
    world.now_s += ANSWER_LIMIT_S
    world.run()
    north = world.known(demand, "job")["north"]
    assert (north.state, north.ranks_that_fit) == (SILENT, 0)
    assert north.refused == "it did not answer in time"


def test_nothing_is_known_before_a_domain_has_told_of_itself() -> None:
    assert Dispatcher("s", Session(1, 1), POLICY).known(Demand(1)) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"chosen": 3}'])
def test_what_a_partners_agent_writes_there_is_not_looked_at(text: str) -> None:
    world = World()
    draft = world.book.draft()
    domains = {**draft.fleet.domains, "north": replace(draft.fleet.domains["north"], own_scheduler=True)}
    draft.fleet = replace(draft.fleet, domains=domains, asks_domains=True)
    world.book.merge(draft)
    handle = world.domains["north"].handle

    def answer(request: Request, now_s: float) -> Any:
        reply = handle(request, now_s)
        return reply and replace(reply, explanations={name: text for name, _ in reply.placed})

    world.domains["north"].handle = answer  # type: ignore[method-assign]
    world.submit("job", Demand(1, cpus=1.0, accelerators=1, domains=frozenset({"north"})))
    body = world.explained["job"]
    assert body["chosen"]["nodes"] == world.chosen["job"]
    assert "said_by" not in body
