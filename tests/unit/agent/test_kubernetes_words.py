"""What a real API server (1.34.4) said of jobs, pods and nodes, read and judged. kubernetes_answers.json was recorded from the control plane
of tests/integration/kubernetes, its managed fields and templates left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.engines.base import FailureKind
from agent.engines.kubernetes.places import PlacesError, all_bound, rank_places, why_not_yet
from agent.engines.kubernetes.verdict import cause_of, never_began, not_startable, rank_end, taken_away
from agent.engines.kubernetes.words import Job, Pod, job_of, node_of, pod_of, time_of
from agent.engines.own_scheduler import Constraints, UnitName

ANSWERS: dict[str, Any] = json.loads((Path(__file__).parent / "kubernetes_answers.json").read_text())


def pod(name: str) -> Pod:
    return pod_of(ANSWERS[name], "north")


def job(name: str) -> Job:
    return job_of(ANSWERS[name], "north")


def test_a_pod_that_waits_for_its_order() -> None:
    found = pod("pod that waits for its order")
    assert (found.unit, found.rank, found.phase, found.runs, found.end) == (
        UnitName("waits", 0, 1),
        0,
        "Pending",
        False,
        None,
    )
    assert found.node in {"k1", "k2", "k3"}
    assert found.holds
    assert found.ip == "127.0.0.1"
    assert found.waits[0] == "CreateContainerConfigError"
    assert found.requests == {"cpu": 1.0, "memory": 2.0**28, "nvidia.com/gpu": 2.0}
    patience = {"image_patience_s": 30.0, "start_timeout_s": 600.0}
    assert not_startable(found, waited_s=100, **patience) == "", "it has no order yet"
    assert not_startable(found, waited_s=601, **patience).startswith(
        "not begun within 600 s: CreateContainerConfigError: secret"
    )
    pulling = replace(found, waits=("ImagePullBackOff", "Back-off"))
    assert not_startable(pulling, waited_s=29, **patience) == ""
    assert not_startable(pulling, waited_s=31, **patience) == "ImagePullBackOff: Back-off"
    assert not_startable(replace(found, waits=("InvalidImageName", "")), waited_s=0, **patience) == "InvalidImageName"


def test_a_pod_that_runs() -> None:
    found = pod("pod that runs")
    assert found.runs
    assert found.started_at is not None
    assert taken_away(found) == ""


def test_a_pod_that_was_evicted_is_taken_away_whatever_its_program_said() -> None:
    found = pod("pod that is evicted")
    assert found.end is not None
    assert taken_away(found) == "EvictionByEvictionAPI: Eviction API: evicting"
    under_pressure = replace(pod("pod that failed"), failed=("Evicted", "The node was low on resource: memory."))
    assert taken_away(under_pressure) == "Evicted: The node was low on resource: memory."


def test_a_pod_without_a_node() -> None:
    found = pod("pod without a node")
    assert (found.node, found.holds) == ("", False)
    assert found.unschedulable.startswith("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    assert why_not_yet(job("job that is active"), [found], "") == found.unschedulable


def test_how_ranks_end() -> None:
    found = pod("pod that failed")
    assert taken_away(found) == ""
    end = rank_end(found, 4, "tail", stopped=False)
    assert (end.rank, end.exit_code, end.signal, end.why, end.log_tail) == (4, 7, None, "exited", "tail")
    assert found.end is not None
    killed = replace(found, end=replace(found.end, exit_code=137, reason="OOMKilled"))
    assert rank_end(killed, 0, "", stopped=False).why == "out_of_memory"
    ended = replace(found, end=replace(found.end, exit_code=143, reason="Error"))
    assert (rank_end(ended, 0, "", stopped=True).why, rank_end(ended, 0, "", stopped=True).signal) == ("stopped", 15)
    assert rank_end(ended, 0, "", stopped=False).why == "exited", "nobody told it to"
    good = replace(found, end=replace(found.end, exit_code=0, reason="Completed"))
    assert rank_end(good, 0, "", stopped=True).good, "it ended by itself"
    absent = replace(found, end=replace(found.end, exit_code=128, reason="StartError", message="no such file"))
    assert never_began(absent) == "StartError: no such file"
    assert never_began(found) == ""


def test_what_the_job_controller_did() -> None:
    assert cause_of(job("job that is active"), 20) is None
    assert cause_of(job("job that failed"), 20) is None, "its ranks say why"
    late = cause_of(job("job past its deadline"), 20)
    assert late is not None
    assert (late.kind, late.reason) == (
        FailureKind.LEASE_EXPIRED,
        "Kubernetes ended the Job: no sign of the agent for 20 s",
    )
    suspended = cause_of(job("job that is suspended"), 20)
    assert suspended is not None
    assert suspended.kind is FailureKind.NODE_LOST
    gone = cause_of(None, 20)
    assert gone is not None
    assert gone.reason == "the Job was deleted in Kubernetes"


def test_jobs() -> None:
    found = job("job that is active")
    assert (found.unit, found.ranks, found.suspended, found.ended) == (UnitName("waits", 0, 1), 1, False, False)
    assert found.started_at is not None
    assert job("job that failed").ended
    assert job("job past its deadline").ended
    assert (
        why_not_yet(job("job that is suspended"), [], "")
        == "the Job is suspended and waits to be admitted: Job suspended"
    )
    assert why_not_yet(None, [], "") == "Kubernetes does not show the Job yet"
    assert why_not_yet(found, [], "exceeded quota") == "exceeded quota"
    assert job_of(ANSWERS["job that is active"], "south").unit is None, "another domain's"


def test_nodes() -> None:
    found = node_of(ANSWERS["node"])
    assert (found.name, found.ready, found.takes_pods) == ("k1", True, True)
    assert (found.allocatable["nvidia.com/gpu"], found.allocatable["cpu"], found.allocatable["memory"]) == (
        4,
        8,
        16 * 2.0**30,
    )
    closed = {**ANSWERS["node"], "spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoSchedule"}]}}
    assert (node_of(closed).ready, node_of(closed).takes_pods, node_of(closed).taints) == (True, False, ("a",))


@pytest.mark.parametrize(
    "odd", [{}, {"metadata": None, "spec": [], "status": "x"}, {"status": {"conditions": [1], "containerStatuses": {}}}]
)
def test_what_is_not_of_the_expected_form_was_not_said(odd: dict[str, Any]) -> None:
    assert pod_of(odd, "north").end is None
    assert not pod_of(odd, "north").holds
    assert not job_of(odd, "north").ended
    assert not node_of(odd).ready
    assert time_of("yesterday") is None


def test_places_of_ranks() -> None:
    first = replace(pod("pod that runs"), rank=1, node="k1")
    second = replace(first, rank=0, node="k2")
    third = replace(first, rank=2, node="k1")
    assert not all_bound([first], 2)
    assert all_bound([first, second, third], 3)
    names = {"k1": "a", "k2": "b"}
    ranks = rank_places(Constraints(3, accelerators=2), [first, second, third], names.get, {"a": {0, 3}})
    assert [(rank.rank, rank.node_id, rank.local_rank, rank.accelerator_indices) for rank in ranks] == [
        (0, "b", 0, (0, 1)),
        (1, "a", 0, (1, 2)),
        (2, "a", 1, (4, 5)),
    ]
    with pytest.raises(PlacesError, match="the domain does not declare Kubernetes' node k1"):
        rank_places(Constraints(2), [first, second], {"k2": "b"}.get, {})
    with pytest.raises(PlacesError, match="rank 1 has no node"):
        rank_places(Constraints(2), [second], names.get, {})
