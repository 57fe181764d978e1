"""The agent's values and the messages of the contracts say the same."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from agent import contract_messages
from agent.collectors.base import Reading, Source, Statistic
from agent.collectors.metrics import Metric
from agent.engines.base import (
    Checkpoint,
    FailureKind,
    NodeState,
    NodeStatus,
    Progress,
    RankExited,
    RunFailed,
    RunRefused,
)
from agent.registration import read_answer, registration_request
from agent.settings import AgentSettings, read_settings
from meridian.contracts.resource.v1 import resource_pb2
from meridian.contracts.run.v1 import run_pb2
from meridian.embedded.domains import DEFAULT_FILE, read_domains, write_agent_config
from meridian.errors import ConfigurationError, InvalidArgumentError

AT = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
DOMAINS = read_domains(DEFAULT_FILE)


def _settings(tmp_path: Path, number: int = 0) -> AgentSettings:
    connection = {"kafka_bootstrap_servers": "127.0.0.1:1", "data_dir": str(tmp_path / "data"), "http_port": 1}
    return read_settings(write_agent_config(tmp_path, DOMAINS[number], connection))


@pytest.mark.parametrize("number", range(len(DOMAINS)))
def test_the_shipped_domains_are_understood(tmp_path: Path, number: int) -> None:
    settings = _settings(tmp_path, number)
    inventory = contract_messages.inventory(settings, {}, "http://127.0.0.1:9")
    declared = DOMAINS[number].declaration
    assert inventory.domain_id == declared["domain_id"]
    assert inventory.price_per_accelerator_hour.micro_units == declared["price_micro_per_accelerator_hour"]
    assert [node.node_id for node in inventory.nodes] == [node["node_id"] for node in declared["nodes"]]
    assert [item.index for item in inventory.nodes[0].accelerators] == list(range(8))
    assert {link.to_domain_id for link in inventory.links} == {domain.domain_id for domain in DOMAINS} - {
        inventory.domain_id
    }
    assert all(link.from_domain_id == inventory.domain_id and link.emulated for link in inventory.links)


def test_what_nodes_must_see_may_lie_apart(tmp_path: Path) -> None:
    alone = _settings(tmp_path)
    assert (alone.shared, alone.checkpoints) == (tmp_path / "data", tmp_path / "data" / "checkpoints")
    path = tmp_path / "shared.yaml"
    content = {"domain": DOMAINS[0].declaration, "kafka_bootstrap_servers": "b:1", "data_dir": "own"}
    path.write_text(yaml.safe_dump(content | {"shared_dir": "everywhere"}))
    apart = read_settings(path)
    assert (apart.data_dir, apart.shared) == (Path("own").resolve(), Path("everywhere").resolve())
    assert apart.checkpoints == Path("everywhere").resolve() / "checkpoints"
    path.write_text(yaml.safe_dump(content | {"checkpoint_dir": "kept"}))
    # Programs run elsewhere.
    assert read_settings(path).checkpoints == Path("kept").resolve()


def test_wrong_settings_name_the_field(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump({"domain": {"domain_id": "d", "nodes": []}, "data_dir": "x", "heartbeat_hz": 0}))
    with pytest.raises(ConfigurationError) as caught:
        read_settings(path)
    for field in ("domain.nodes", "kafka_bootstrap_servers", "heartbeat_hz"):
        assert field in caught.value.detail
    path.write_text("{")
    with pytest.raises(ConfigurationError):
        read_settings(path)


OWN_DOMAINS = """# mine
defaults: &node
  cpus: many
domains:
  - {domain_id: a, nodes: [{node_id: a-1}]}
  - domain_id: b
    region: north
    nodes:
      - node_id: b-1
        cpus: -4
        gpus: 8
      - <<: *node
        node_id: b-2
      - cpus: 1
links:
  - {between: [a, b], rtt_s: 0.1}
  - between: [b, a]
    loss: 7
"""


def test_a_wrong_field_of_a_domains_file_is_named_where_its_user_wrote_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(OWN_DOMAINS)
    connection = {"kafka_bootstrap_servers": "b:1", "data_dir": "own", "heartbeat_hz": 99}
    first, second = (write_agent_config(tmp_path, domain, connection) for domain in read_domains(file))
    with pytest.raises(ConfigurationError) as caught:
        read_settings(second)
    for place in (
        "line 10: domains[1].nodes[0].cpus: Input should be greater",
        "line 11: domains[1].nodes[0].gpus: Extra inputs",
        "line 3: domains[1].nodes[1].cpus: Input should be a valid number",
        "line 14: domains[1].nodes[2].node_id: Field required",
        "line 18: links[1].loss: Input should be less",
    ):
        assert f"domains file {file}, {place}" in caught.value.detail
    # What the user did not write is said to be wrong in the file that was made.
    assert f"configuration {second}: heartbeat_hz: Input should be less" in caught.value.detail
    with pytest.raises(ConfigurationError, match=r"line 18: links\[1\]\.loss"):
        read_settings(first)


def test_heartbeats_that_do_not_keep_the_lease_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    content = {"domain": DOMAINS[0].declaration, "kafka_bootstrap_servers": "b:1", "data_dir": "own"}
    path.write_text(yaml.safe_dump(content | {"heartbeat_hz": 0.3}))
    with pytest.raises(
        ConfigurationError, match=r"heartbeat_hz: 0\.3 .* a lease of 10 s \(lease_s\) .* at least 0\.4 are needed"
    ):
        read_settings(path)
    path.write_text(yaml.safe_dump(content | {"heartbeat_hz": 0.3, "lease_s": 20}))
    assert read_settings(path).heartbeat_hz == 0.3


def test_a_start_becomes_a_request() -> None:
    order = run_pb2.Assignment(
        domain_id="d",
        action=run_pb2.ASSIGNMENT_ACTION_START,
        run_id="job-1.2.3",
        job_id="job-1",
        unit_index=2,
        epoch=3,
        tenant_id="acme",
        world_size=4,
        command=["python", "a.py"],
        env={"A": "1"},
        memory_bytes=100,
        max_run_time_s=60,
        restore_from="/c/step-5",
        restore_step=5,
        master_addr="10.0.0.1",
        master_port=20001,
        array_index=0,
        service_port=8080,
    )
    order.ranks.add(rank=3, node_id="n1", local_rank=1, accelerator_indices=[4, 5])
    request = contract_messages.launch_request(order, Path("/data/checkpoints"))
    assert (request.run_id, request.unit_index, request.epoch, request.world_size) == ("job-1.2.3", 2, 3, 4)
    assert request.ranks[0].accelerator_indices == (4, 5)
    assert request.checkpoint_dir == "/data/checkpoints/job-1/2"
    assert request.array_index == 0, "index 0 of an array is not the absence of one"
    assert (request.limits.memory_bytes, request.limits.max_run_time_s) == (100, 60)
    assert (request.master_addr, request.master_port, request.restore_from) == ("10.0.0.1", 20001, "/c/step-5")
    order.ClearField("array_index")
    assert contract_messages.launch_request(order, Path("/d")).array_index is None
    order.job_id = "../../etc"
    with pytest.raises(InvalidArgumentError):
        contract_messages.launch_request(order, Path("/d"))


def test_a_limit_that_is_none_is_refused_with_its_field() -> None:
    order = run_pb2.Assignment(
        run_id="job-1.0.1", job_id="job-1", epoch=1, command=["true"], cpus=math.nan, memory_bytes=-1
    )
    order.max_run_time_s = math.inf
    order.ranks.add(node_id="n1")
    with pytest.raises(InvalidArgumentError) as caught:
        contract_messages.launch_request(order, Path("/d"))
    assert [error.pointer for error in caught.value.errors] == ["/cpus", "/memory_bytes", "/max_run_time_s"]


@pytest.mark.parametrize(
    ("ordered_s", "taken_s"), [(0.0, 0.0), (2.5, 2.5), (math.nan, 5.0), (math.inf, 5.0), (-1.0, 5.0)]
)
def test_a_stop_is_carried_out_whatever_its_grace(ordered_s: float, taken_s: float) -> None:
    """A timer of no time would keep the run, or mix up all timers of the agent."""
    order = run_pb2.Assignment(run_id="job-1.0.1", job_id="job-1", epoch=1, grace_s=ordered_s)
    assert contract_messages.stop_request(order).grace_s == taken_s


@pytest.mark.parametrize("kind", FailureKind)
def test_every_failure_has_its_contract(kind: FailureKind) -> None:
    message = contract_messages.run_event(RunFailed("r", "j", 1, 2, AT, kind, "why", 0, "n1", None, 9, "tail"), "d")
    assert isinstance(message, run_pb2.RunFailed)
    assert run_pb2.RunFailureKind.Name(message.kind) == f"RUN_FAILURE_KIND_{kind.name}"
    assert message.at.ToDatetime(UTC) == AT
    assert message.HasField("rank")
    assert not message.HasField("exit_code")
    assert (message.signal, message.log_tail, message.domain_id) == (9, "tail", "d")


def test_other_events() -> None:
    refused = contract_messages.run_event(RunRefused("r", "j", 0, 1, AT, 5, "stale"), "d")
    assert isinstance(refused, run_pb2.RunFailed)
    assert refused.kind == run_pb2.RUN_FAILURE_KIND_REFUSED
    progress = contract_messages.run_event(Progress("r", "j", 0, 1, AT, 0, 7, None, {"loss": 0.5}), "d")
    assert isinstance(progress, run_pb2.RunProgress)
    assert (progress.step, progress.total_steps, dict(progress.metrics)) == (7, 0, {"loss": 0.5})
    checkpoint = contract_messages.run_event(Checkpoint("r", "j", 0, 1, AT, 0, 7, "/c", None), "d")
    assert isinstance(checkpoint, run_pb2.RunCheckpointed)
    assert (checkpoint.path, checkpoint.size_bytes) == ("/c", 0)
    assert contract_messages.run_event(RankExited("r", "j", 0, 1, AT, 0, "n", 0, None, None, 1, 1, 1, 0), "d") is None


def test_readings_and_beats() -> None:
    message = contract_messages.reading(
        Reading("n", Metric.POWER, 3.5, Source.ESTIMATION, AT, accelerator_index=0, statistic=Statistic.MEAN)
    )
    assert (message.metric, message.unit, message.value) == ("hw.power", "W", 3.5)
    assert message.HasField("accelerator_index")
    assert message.source == resource_pb2.READING_SOURCE_ESTIMATION
    unknown = contract_messages.reading(Reading("n", Metric.POWER, None, Source.NOMINAL, AT, reason="why"))
    assert not unknown.HasField("value")
    assert not unknown.HasField("accelerator_index")
    assert unknown.reason == "why"
    beat = contract_messages.node_beat(NodeStatus("n", NodeState.EXITED, 3, 1.5, ("r",), frozenset()))
    assert (beat.state, beat.incarnation, beat.age_s) == (resource_pb2.NODE_PROCESS_STATE_EXITED, 3, 1.5)


def test_registration_takes_only_issued_ids(tmp_path: Path) -> None:
    body = registration_request(_settings(tmp_path), "CSR")
    assert body["nodes"][0]["accelerators"][7] == {
        "index": 7,
        "vendor": "NVIDIA",
        "model": "H100",
        "emulated": True,
        "aliases": {},
    }
    answer = {
        "agent_id": "a",
        "spiffe_id": "spiffe://x",
        "rotate_at": "2026-01-01T00:30:00Z",
        "not_after": "2026-01-01T01:00:00Z",
        "nodes": [
            {
                "node_id": "n1",
                "status": "issued",
                "compute_id": "c1",
                "accelerators": [
                    {"index": 0, "status": "issued", "compute_id": "c2"},
                    {"index": 1, "status": "quarantined", "compute_id": "c3"},
                ],
            },
            {"node_id": "n2", "status": "revoked", "compute_id": "c4", "accelerators": []},
        ],
    }
    registration = read_answer(answer)
    assert registration.compute_ids == {("n1", None): "c1", ("n1", 0): "c2"}
    with pytest.raises(KeyError):
        read_answer({})
