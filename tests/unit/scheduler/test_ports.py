"""Ports that a service asks for by number are given to nobody else, whoever begins first."""

from __future__ import annotations

import zlib

from services.scheduler.core import binding
from services.scheduler.core.binding import PORTS
from services.scheduler.core.state import Demand, JobKind, JobSpec
from tests.unit.scheduler.world import World, a_fleet, task


def wished_by(run_id: str) -> int:
    """The port that a run is given for its rendezvous when nothing is taken."""
    return PORTS[zlib.crc32(run_id.encode()) % len(PORTS)]


def a_service(port: int) -> JobSpec:
    return JobSpec(JobKind.SERVICE, Demand(1, cpus=1.0), replicas=1, service_port=port, command=("serve",))


def test_a_run_that_begins_in_the_same_cycle_takes_another_port() -> None:
    world = World(a_fleet({"a": 1}))
    world.submit("a", task())
    world.submit("b", a_service(wished_by("a.0.1")))
    assert len(world.cycle().placed) == 2
    assert world.run("b").service_port == wished_by("a.0.1")
    assert world.run("a").master_port not in {0, wished_by("a.0.1")}


def test_a_run_that_begins_while_the_service_waits_leaves_it_its_port() -> None:
    world = World(a_fleet({"a": 1}, cpus=1.0))
    world.submit("before", task())
    world.cycle()
    world.submit("later", a_service(wished_by("a.0.1")))
    world.submit("a", task())
    world.finish(world.run("before"))
    world.cycle()
    world.restart()
    assert world.run("a").master_port not in {0, wished_by("a.0.1")}


def test_without_such_a_service_a_run_has_the_port_that_its_name_gives() -> None:
    world = World(a_fleet({"a": 1}))
    world.submit("a", task())
    world.cycle()
    assert world.run("a").master_port == wished_by("a.0.1")


class Counted(set[int]):
    """A set that counts how often it is asked for one port."""

    asked = 0

    def __contains__(self, port: object) -> bool:
        self.asked += 1
        return super().__contains__(port)


def test_ports_are_given_out_until_none_is_left_and_then_nobody_looks_at_each() -> None:
    among = range(20_000, 20_050)
    taken = Counted({80, 443})
    given = [binding._free_port(taken, f"run-{number}", among) for number in range(60)]
    assert sorted(given[:50]) == list(among)
    assert given[50:] == [0] * 10
    before = taken.asked
    assert binding._free_port(taken, "one more", among) == 0
    assert taken.asked == before
