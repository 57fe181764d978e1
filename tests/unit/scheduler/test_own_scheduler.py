"""A domain with a scheduler of its own as a shard sees it: whom a request is for, and what stands in it."""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.core import lifecycle
from services.scheduler.core.apart.carrying import carry_out
from services.scheduler.core.apart.dispatching import Dispatcher
from services.scheduler.core.apart.grants import DomainGrants
from services.scheduler.core.apart.messages import GrantName, Reply, Request, Session, Wanted
from services.scheduler.core.book import Book
from services.scheduler.core.fleet import Fleet
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Demand, JobKind, JobSpec, UnitKey
from tests.unit.scheduler.world import a_fleet

POLICY = Policy(order=("priority", "age"))
FLEET = a_fleet({"east": 1, "west": 1})


def own(fleet: Fleet, *names: str) -> Fleet:
    """The fleet where these domains schedule for themselves."""
    domains = {name: replace(item, own_scheduler=name in names) for name, item in fleet.domains.items()}
    return replace(fleet, domains=domains)


class Shard:
    """A shard, and domains that answer at once; ``refusing`` ones grant nothing."""

    def __init__(self, fleet: Fleet) -> None:
        self.book = Book(POLICY)
        self.use(fleet)
        self.dispatcher = Dispatcher("s", Session(1, 1), POLICY)
        self.domains = {name: DomainGrants(name, FLEET, POLICY, 1) for name in FLEET.domains}
        self.refusing: dict[str, str] = {}
        self.asked: list[Request] = []
        self.own = {name for name, item in fleet.domains.items() if item.own_scheduler}
        self.placed: dict[str, str] = {}

    def use(self, fleet: Fleet) -> None:
        draft = self.book.draft()
        draft.fleet = fleet
        self.book.merge(draft)
        self.own = {name for name, item in fleet.domains.items() if item.own_scheduler}

    def submit(self, job_id: str, demand: Demand) -> None:
        draft = self.book.draft()
        lifecycle.submit(draft, job_id, "lab", JobSpec(JobKind.TASK, demand, command=("run",)), 0.0)
        self.book.merge(draft)

    def run(self) -> list[Request]:
        """Steps and answers until nobody says anything more; what was asked."""
        before = len(self.asked)
        self.book.advance(0.0)
        while (step := self.dispatcher.step(self.book, 0.0)).requests:
            self.asked += step.requests
            for request in step.requests:
                reply = self.answer(request)
                if reply is None:
                    continue
                draft = self.book.draft()
                heard = self.dispatcher.answer(reply, draft)
                self.placed |= {item.unit.key.job_id: item.ranks[0].domain_id for item in heard.carried}
                carry_out(draft, heard.carried, POLICY, 0.0, lambda: "dec")
                assert not heard.requests
                self.book.merge(draft)
        self.waiting = {key.job_id: reason for key, reason in (step.waiting or {}).items()}
        return self.asked[before:]

    def hear(self, replies: list[Reply]) -> None:
        """What domains tell unasked."""
        for reply in replies:
            if reply.shard == "s":
                told = replace(reply, summary=replace(reply.summary, own_scheduler=True), rooms={})
                self.dispatcher.answer(told, self.book.draft())

    def answer(self, request: Request) -> Reply | None:
        name = request.domain_id
        reason = self.refusing.get(name)
        reply = self.domains[name].handle(replace(request, wanted=()) if reason else request, 0.0)
        if reply is None:
            return None
        if reason:
            reply = replace(reply, refused=tuple((item.name, reason) for item in request.wanted))
        if name in self.own:
            reply = replace(reply, summary=replace(reply.summary, own_scheduler=True), rooms={})
        return reply


def test_requests_say_for_whom_they_are() -> None:
    shard = Shard(own(FLEET, "east"))
    asked = shard.run()
    assert {item.domain_id: item.own_scheduler for item in asked} == {"east": True, "west": False}


def test_one_that_is_told_of_no_classes_gets_the_demand_itself() -> None:
    shard = Shard(own(FLEET, "east"))
    demand = Demand(1, cpus=1.0, accelerators=1)
    for number in range(3):
        shard.submit(f"job-{number}", demand)
    asked = shard.run()
    assert sorted(shard.placed) == ["job-0", "job-1", "job-2"]
    wanted = [(item.domain_id, unit) for item in asked for unit in item.wanted]
    assert all((unit.demand == demand) == (name == "east") for name, unit in wanted)
    assert not any(item.classes for item in asked if item.domain_id == "east")


def test_a_refusal_comes_back_once_and_the_unit_goes_elsewhere() -> None:
    shard = Shard(own(FLEET, "east"))
    shard.refusing["east"] = "the domain runs nothing longer than 60 s"
    shard.submit("only", Demand(1, accelerators=1, excluded_domains=frozenset({"north"})))
    asked = shard.run()
    tried = [item.domain_id for item in asked if item.wanted]
    assert tried in (["east", "west"], ["west"])
    assert shard.placed == {"only": "west"}
    shard.submit("pinned", Demand(1, accelerators=1, domains=frozenset({"east"})))
    tried = [item.domain_id for item in shard.run() if item.wanted]
    assert tried == ["east"]
    assert shard.waiting == {"pinned": "east: the domain runs nothing longer than 60 s"}
    assert not [item for item in shard.run() if item.wanted], "nothing has changed there"
    # Somebody else gives something back there: now it may think otherwise.
    del shard.refusing["east"]
    other = GrantName(UnitKey("other", 0), 1)
    shard.domains["east"].handle(Request("east", "t", Session(1, 1), 1, begins=True, holdings=()), 0.0)
    shard.domains["east"].handle(
        Request("east", "t", Session(1, 1), 2, wanted=(Wanted(other, "lab", 0, Demand(1, cpus=1.0)),)), 0.0
    )
    shard.domains["east"].handle(Request("east", "t", Session(1, 1), released=(other,)), 0.0)
    shard.hear(shard.domains["east"].news())
    shard.run()
    assert shard.placed["pinned"] == "east"


def test_a_domain_that_gets_a_scheduler_of_its_own_is_begun_with_anew() -> None:
    shard = Shard(FLEET)
    shard.submit("job-1", Demand(1, accelerators=1, domains=frozenset({"east"})))
    shard.run()
    assert shard.placed == {"job-1": "east"}
    shard.use(own(FLEET, "east"))
    begun = [item for item in shard.run() if item.begins]
    assert [(item.domain_id, item.own_scheduler) for item in begun] == [("east", True)]
    assert [holding.name.key.job_id for holding in begun[0].holdings or ()] == ["job-1"]
    shard.use(FLEET)
    assert [(item.domain_id, item.own_scheduler) for item in shard.run() if item.begins] == [("east", False)]


def test_who_answers_for_a_domain_from_now_on_is_heard_whatever_the_other_had_counted() -> None:
    shard = Shard(FLEET)
    shard.domains["east"] = DomainGrants("east", FLEET, POLICY, 9)
    shard.run()
    shard.use(own(FLEET, "east"))
    # An agent in its first incarnation, after a decider in its ninth term.
    shard.domains["east"] = DomainGrants("east", FLEET, POLICY, 1)
    shard.run()
    assert shard.dispatcher.told["east"].own_scheduler
    assert shard.dispatcher.told["east"].sequence == shard.domains["east"].sequence


def test_on_one_level_its_nodes_take_no_work() -> None:
    fleet = own(FLEET, "east")
    why = {node.domain_id: fleet.why_down(node) for node in fleet.nodes.values()}
    assert "scheduler of its own" in why["east"]
    assert why["west"] == ""
    shard = replace(fleet, asks_domains=True)
    assert not any(shard.why_down(node) for node in shard.nodes.values())
