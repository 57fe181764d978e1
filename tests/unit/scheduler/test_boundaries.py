"""What the core may import, and what the contracts and rows say about its values."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from meridian.contracts.common.v1.types_pb2 import Money, Resources
from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.run.v1 import run_pb2
from meridian.errors import ConfigurationError, InvalidArgumentError
from services.scheduler import wire
from services.scheduler.api import parse_spec
from services.scheduler.app import read_policy
from services.scheduler.core import fleet as facts
from services.scheduler.core.decide import snapshot_of
from services.scheduler.core.effects import Start
from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.fleet import Domain, Fleet, Link, NodeState
from services.scheduler.core.state import (
    Checkpoint,
    Demand,
    FailureKind,
    JobKind,
    JobSpec,
    Nomination,
    PlacedRank,
    UnitKey,
)
from services.scheduler.store_rows import domain_of, node_of, row_of_node, row_of_run, row_of_unit, run_of, unit_of
from services.scheduler.store_statements import compact
from services.scheduler.what_if import answer
from tests.unit.scheduler.world import World, a_fleet, gang, task

CORE = Path(__file__).parents[3] / "services/scheduler/core"
ALLOWED = {
    "__future__", "abc", "bisect", "collections", "copy", "dataclasses", "enum", "functools", "hashlib", "heapq", "itertools", "json", "math", "numpy", "operator", "re",
    "typing", "weakref", "zlib",
}  # fmt: skip
PURE = {"meridian.errors", "meridian.hardware.accelerator_types", "meridian.hardware.parts"}
"""Modules of the house that do no more than the core itself may."""


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_the_core_does_no_io_and_reads_no_clock(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            inside = name.startswith("services.scheduler.core") or name in PURE
            assert inside or name.split(".")[0] in ALLOWED, f"{path.name} imports {name}"


def test_a_specification_comes_through_whole() -> None:
    message = job_pb2.JobSpec(
        kind=job_pb2.JOB_KIND_WORKFLOW,
        command=["x"],
        env={"A": "b"},
        resources=Resources(cpus=2, memory_bytes=7, accelerators=1, accelerator_types=["b", "a"]),
        tasks=[
            job_pb2.WorkflowTask(name="t", depends_on=["s"], ranks=2),
            job_pb2.WorkflowTask(name="s", resources=Resources(cpus=1)),
        ],
        placement=job_pb2.PlacementConstraints(
            domains=["d"], exclude_domains=["e"], min_security_level=2, require_real_accelerators=True
        ),
        allow_cross_domain=True,
        max_restarts=4,
        priority=5,
        max_run_time_s=6.5,
    )
    spec = wire.spec_from(message)
    assert (spec.kind, spec.env, spec.max_restarts, spec.priority) == (JobKind.WORKFLOW, {"A": "b"}, 4, 5)
    demand = spec.demand
    assert (demand.cpus, demand.memory_bytes, demand.accelerators, demand.accelerator_types) == (2, 7, 1, ("a", "b"))
    assert (demand.domains, demand.excluded_domains) == ({"d"}, {"e"})
    assert (demand.min_security_level, demand.real_accelerators, demand.cross_domain) == (2, True, True)
    assert spec.tasks[0].demand is None
    assert spec.tasks[1].demand is not None
    assert (spec.tasks[1].demand.accelerators, spec.tasks[1].demand.domains) == (0, {"d"})


def test_a_rank_that_asks_for_nothing_counts_as_one_cpu() -> None:
    assert wire.spec_from(job_pb2.JobSpec(kind=job_pb2.JOB_KIND_TASK)).demand.cpus == 1.0
    with pytest.raises(MalformedJobError):
        wire.spec_from(job_pb2.JobSpec())


def test_every_failure_kind_of_the_contract_is_known() -> None:
    kinds = {wire.failure_kind(number) for name, number in run_pb2.RunFailureKind.items() if number}
    assert kinds == set(FailureKind)
    states = {wire.node_state(number) for number in graph_pb2.NodeState.values()}
    assert states == set(NodeState)


def test_links_of_a_partial_update_are_added_to_the_known_ones() -> None:
    before = Domain("a", links=(Link("b", 0.1, 1.0), Link("c", 0.2, 2.0)))
    inventory = resource_pb2.DomainInventory(
        domain_id="a", price_per_accelerator_hour=Money(micro_units=5, currency="CNY"), carbon_g_per_kwh=3
    )
    link = resource_pb2.Link(from_domain_id="a", to_domain_id="c", rtt_s=0.5, bandwidth_bytes_per_s=9.0)
    partial = wire.domain_from(inventory, [link], before, full=False)
    assert partial.links == (Link("b", 0.1, 1.0), Link("c", 0.5, 9.0))
    assert (partial.price_micro_units, partial.currency) == (5, "CNY")
    assert wire.domain_from(inventory, [link], before, full=True).links == (Link("c", 0.5, 9.0),)


def test_the_fleet_stays_the_same_object_when_nothing_that_matters_changed() -> None:
    fleet = a_fleet({"a": 2})
    same = facts.with_domain(fleet, fleet.domains["a"], list(fleet.nodes.values()), full_of="a")
    assert same is fleet
    fewer = facts.with_domain(fleet, None, [fleet.nodes["a-0"]], full_of="a")
    assert set(fewer.nodes) == {"a-0"}
    assert facts.with_domain(fleet, None, [], removed=["a-1"]).nodes.keys() == {"a-0"}
    assert facts.with_node_state(fleet, "unknown", NodeState.FAILED, "") is fleet
    assert facts.without_marks(Fleet(), [(facts.MarkKind.NODE_FAILED, "x")]) == Fleet()


class Row(dict):  # type: ignore[type-arg]
    __getattr__ = dict.__getitem__


def test_rows_give_back_the_same_values() -> None:
    world = World(a_fleet({"a": 2, "b": 1}))
    world.submit("job", gang(3, accelerators=4, cross_domain=True))
    world.cycle()
    run, unit = world.run("job"), next(iter(world.book.units.values()))
    assert run_of(Row(row_of_run(run))) == run  # type: ignore[arg-type]
    assert unit_of(Row(row_of_unit(unit))) == unit  # type: ignore[arg-type]
    node = world.book.fleet.nodes["a-0"]
    assert node_of(row_of_node(node)["facts"]) == node
    domain = world.book.fleet.domains["a"]
    assert domain_of(asdict(domain)) == domain


def test_facts_that_a_later_release_keeps_with_more_fields_are_read() -> None:
    """While replicas are replaced one by one an older one may lead after a newer one wrote."""
    world = World(a_fleet({"a": 1, "b": 1}))
    node, domain = world.book.fleet.nodes["a-0"], world.book.fleet.domains["a"]
    more = {"of_a_later_release": 1}
    facts = asdict(node)
    later = {**facts, "devices": [device | more for device in facts["devices"]]} | more
    assert node_of(later) == node
    facts = asdict(domain)
    assert domain_of({**facts, "links": [link | more for link in facts["links"]]} | more) == domain
    world.submit("job", task())
    unit = replace(
        world.book.units[UnitKey("job", 0)],
        checkpoint=Checkpoint("/ckpt", 1, "a", 2),
        nomination=Nomination((PlacedRank(0, "a", "a-0", 0, ()),), frozenset({"job.0.1"}), 10.0),
    )
    row = row_of_unit(unit)
    for name in ("checkpoint", "nomination"):
        row[name] = row[name] | more
    assert unit_of(Row(row)) == unit


def test_each_domain_is_told_its_own_ranks() -> None:
    world = World(a_fleet({"a": 1, "b": 1}))
    world.submit("job", gang(2, accelerators=4, cross_domain=True))
    world.cycle()
    starts = [wire.message_of(effect, 5.0) for effect in world.effects if isinstance(effect, Start)]
    assert {item.domain_id: [rank.rank for rank in item.ranks] for item in starts} == {"a": [0], "b": [1]}  # type: ignore[attr-defined]
    assert all(item.world_size == 2 for item in starts)  # type: ignore[attr-defined]
    assert len({(item.master_addr, item.master_port) for item in starts}) == 1  # type: ignore[attr-defined]
    assert not any(item.HasField("array_index") for item in starts)


def test_specifications_over_http() -> None:
    spec = parse_spec({"spec": {"kind": "gang", "ranks": 2, "resources": {"cpus": 3}}})
    assert isinstance(spec, JobSpec)
    assert (spec.kind, spec.ranks, spec.demand.cpus) == (JobKind.GANG, 2, 3.0)
    assert parse_spec({"kind": "JOB_KIND_TASK"}).kind is JobKind.TASK
    for body in ({"kind": "gang", "ranks": "many"}, {"kind": "gang"}, {}, {"kind": 7, "x": 1}):
        with pytest.raises(InvalidArgumentError):
            parse_spec(body)


def test_a_wrong_policy_file_stops_the_start(tmp_path: Path) -> None:
    assert read_policy(None).name == "balanced"
    file = tmp_path / "policy.json"
    file.write_text('{"name": "green", "scores": {"carbon": 2}}')
    assert read_policy(file).scores == (("carbon", 2.0),)
    for text in ("[]", "{", '{"nonsense": 1}'):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=r"policy\.json"):
            read_policy(file)


@pytest.mark.parametrize(
    ("text", "kept"),
    [("a\x00b", "ab"), ("\x00\x00", ""), (r"\u0000", r"\u0000"), ("\\\\\x00", "\\\\"), ("plain", "plain")],
)
def test_nul_characters_do_not_reach_the_database(text: str, kept: str) -> None:
    assert json.loads(compact({"reason": text})) == {"reason": kept}


def test_what_if_judges_a_bounded_number_of_units() -> None:
    world = World(a_fleet({"a": 1}))
    spec = JobSpec(JobKind.ARRAY, Demand(1, cpus=1.0), array_size=100_000)
    found = answer(snapshot_of(world.book, world.now_s), world.policy, spec, "lab", world.now_s)
    assert (found["units"], found["units_judged"], found["placed_now"], found["placeable"]) == (100_000, 1000, 8, False)
    assert [item["placeable"] for item in found["items"][6:10]] == [True, True, False, False]
    assert not world.book.jobs
