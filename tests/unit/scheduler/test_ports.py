"""Ports that a service asks for by number are given to nobody else, whoever begins first."""

from __future__ import annotations

import zlib

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
