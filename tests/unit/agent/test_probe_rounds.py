"""Which node is measured next, with which accelerator first, and the event that comes of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agent.benchmark.idleness import device_order, due_node, left_out
from agent.benchmark.program import CPU, CPU_QUICK, CUDA, CUDA_QUICK, TINY, Value, body, sizes_of
from agent.benchmark.rounds import probe_message
from agent.engines.base import NodeState, NodeStatus
from agent.parts import Part
from agent.settings import AgentSettings
from meridian.contracts.telemetry.v1.telemetry_pb2 import ProbeReported

NOW_S = 1_800_000_000.0
DAY_S = 86_400.0


def status(node_id: str, state: NodeState = NodeState.RUNNING, runs: tuple[str, ...] = ()) -> NodeStatus:
    return NodeStatus(node_id, state, 1, 0.0, runs, frozenset())


def due(*nodes: NodeStatus, asleep: frozenset[str] = frozenset(), **ages_s: float) -> str | None:
    measured = {node_id: NOW_S - age_s for node_id, age_s in ages_s.items()}
    return due_node(nodes, asleep, measured, NOW_S, DAY_S)


def test_the_node_that_waits_longest_is_next() -> None:
    assert due(status("a"), status("b")) == "a"
    assert due(status("a"), status("b"), a=DAY_S, b=DAY_S + 1) == "b"
    assert due(status("a"), status("b"), a=DAY_S + 1) == "b"
    assert due(status("a"), status("b"), a=DAY_S - 1, b=0) is None


def test_nothing_is_measured_while_something_runs() -> None:
    assert due(status("a"), status("b", runs=("r",))) is None


def test_nodes_that_are_gone_or_asleep_are_not_measured() -> None:
    assert due(status("a", NodeState.EXITED), status("b", NodeState.STARTING), status("c")) == "c"
    assert due(status("a"), asleep=frozenset({"a"})) is None


def test_a_node_with_a_divided_accelerator_is_not_measured() -> None:
    passed = left_out({"a"}, {("b", 0): (Part("7"),), ("c", 3): ()})
    assert due(*map(status, "abcd"), asleep=passed) == "d"


def test_each_accelerator_is_first_in_its_turn() -> None:
    assert [device_order(3, turn) for turn in range(4)] == [(0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 1, 2)]
    assert device_order(0, 5) == ()


def test_sizes_have_names() -> None:
    assert (sizes_of("full", cuda=True), sizes_of("quick", cuda=True)) == (CUDA, CUDA_QUICK)
    assert (sizes_of("full", cuda=False), sizes_of("quick", cuda=False), sizes_of("tiny", cuda=False)) == (
        CPU, CPU_QUICK, TINY,
    )  # fmt: skip


def test_the_event_has_what_was_measured() -> None:
    values = [
        Value("gemm", "fp32", 2e12, "FLOP/s", 0.1, 0.0, 3),
        Value("memory_bandwidth", "unstated", 1e9, "By/s", 0.1, 0.0, 3),
    ]
    found = body("run-1", "Chip 9", "numpy 2", "2026-01-02T03:04:05+00:00", TINY, values)
    message = probe_message("north", "n1", found)
    assert isinstance(message, ProbeReported)
    assert (message.domain_id, message.node_id, message.run_id, message.chip) == ("north", "n1", "run-1", "Chip 9")
    assert message.program == "meridian-probe/1 64/2x8x16"
    assert [(item.task, item.precision, item.throughput, item.unit) for item in message.results] == [
        ("gemm", "fp32", 2e12, "FLOP/s"),
        ("memory_bandwidth", "", 1e9, "By/s"),
    ]
    assert message.measured_at.ToJsonString() == "2026-01-02T03:04:05Z"
    named = probe_message("north", "n1", found, "NVIDIA L40S")
    assert isinstance(named, ProbeReported)
    assert named.chip == "NVIDIA L40S"


def settings(**benchmark: Any) -> AgentSettings:
    domain = {"domain_id": "north", "nodes": [{"node_id": "n1"}], "own_scheduler": {"kind": "slurm"}}
    content = {"domain": domain, "kafka_bootstrap_servers": "b:1", "data_dir": "/d", "benchmark": benchmark}
    return AgentSettings.model_validate(content)


def test_it_is_off_by_default_and_refused_where_nodes_are_slurms() -> None:
    assert not settings().benchmark.enabled
    with pytest.raises(ValidationError, match=r"benchmark\.enabled"):
        settings(enabled=True)
