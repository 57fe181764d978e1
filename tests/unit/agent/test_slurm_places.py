"""Ranks in what Slurm gave, devices as a step sees them, and what an end in Slurm means: computed by hand."""

from __future__ import annotations

import json

import pytest

from agent.engines.base import FailureKind, LaunchRequest, RankPlacement, RunLimits
from agent.engines.own_scheduler import Constraints
from agent.engines.run_records import launch_record, request_of
from agent.engines.slurm.places import PlacesError, rank_places
from agent.engines.slurm.step import with_own_devices
from agent.engines.slurm.verdict import cause_of, cause_of_silence
from agent.engines.slurm.words import QueuedJob

NODE_IDS = {"n1": "north-1", "n2": "north-2"}
THREE = Constraints(3, accelerators=2)


def test_ranks_are_numbered_node_after_node() -> None:
    given = {"n1": (0, 1, 2, 3), "n2": (1, 3)}
    assert rank_places(THREE, ("n1", "n2"), (2, 1), given, NODE_IDS.get, {}) == (
        RankPlacement(0, "north-1", 0, (0, 1)),
        RankPlacement(1, "north-1", 1, (2, 3)),
        RankPlacement(2, "north-2", 0, (1, 3)),
    )


def test_devices_without_numbers_are_those_that_no_other_run_has() -> None:
    found = rank_places(THREE, ("n1",), (3,), {"n1": None}, NODE_IDS.get, {"north-1": {0, 3}})
    assert [rank.accelerator_indices for rank in found] == [(1, 2), (4, 5), (6, 7)]


def test_parts_of_one_device_are_its_own_count() -> None:
    part = Constraints(1, accelerators=1, accelerator_milli=250)
    (rank,) = rank_places(part, ("n1",), (1,), {"n1": ()}, NODE_IDS.get, {"north-1": {0}})
    assert (rank.accelerator_indices, rank.accelerator_milli) == ((0,), 250)


@pytest.mark.parametrize(
    ("nodes", "tasks", "given", "why"),
    [
        (("n1", "n9"), (2, 1), {"n1": (0, 1, 2, 3), "n9": (0, 1)}, "does not declare Slurm's node n9"),
        (("n1",), (2,), {"n1": (0, 1, 2, 3)}, "2 of 3 ranks"),
        (("n1",), (3,), {"n1": (0, 1, 2, 3)}, "4 accelerators on n1 for 3 ranks with 2 each"),
        (("n1", "n2"), (3,), {}, "2 nodes and tasks on 1"),
    ],
)
def test_what_cannot_be_used_is_said(
    nodes: tuple[str, ...], tasks: tuple[int, ...], given: dict[str, tuple[int, ...] | None], why: str
) -> None:
    with pytest.raises(PlacesError, match=why):
        rank_places(THREE, nodes, tasks, given, NODE_IDS.get, {})


def test_devices_are_called_as_slurm_calls_them_inside() -> None:
    rank = {
        "env": {"CUDA_VISIBLE_DEVICES": "2,3"},
        "device_variable": "CUDA_VISIBLE_DEVICES",
        "device_positions": [1, 2],
    }
    # Confined to devices 1, 2 and 3 of the node, which are 0, 1 and 2 in there.
    (found,) = with_own_devices([rank], {"CUDA_VISIBLE_DEVICES": "0,1,2"})
    assert found["env"] == {"CUDA_VISIBLE_DEVICES": "1,2"}
    (found,) = with_own_devices([rank], {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b,MIG-c"})
    assert found["env"] == {"CUDA_VISIBLE_DEVICES": "MIG-b,MIG-c"}
    (found,) = with_own_devices([rank], {})
    assert found["env"] == {"CUDA_VISIBLE_DEVICES": "2,3"}, "Slurm says nothing: the node's own numbers"
    assert with_own_devices([{"env": {"A": "b"}}], {"CUDA_VISIBLE_DEVICES": "0"})[0]["env"] == {"A": "b"}


@pytest.mark.parametrize(
    ("state", "kind", "said"),
    [
        ("TIMEOUT", FailureKind.TIME_LIMIT, "Slurm's time limit of job 7 is over, the run's own is 60 s"),
        ("PREEMPTED", FailureKind.NODE_LOST, "Slurm's job 7 was preempted by Slurm (Preempted)"),
        ("NODE_FAIL", FailureKind.NODE_LOST, "Slurm's job 7 lost a node (Preempted)"),
        ("OUT_OF_MEMORY", FailureKind.OUT_OF_MEMORY, "Slurm ended job 7: out of memory"),
    ],
)
def test_ends_that_stand_above_the_ranks(state: str, kind: FailureKind, said: str) -> None:
    cause = cause_of(7, QueuedJob(7, state, "Preempted"), 60)
    assert cause is not None
    assert (cause.kind, cause.reason) == (kind, said)


def test_ends_that_the_ranks_decide() -> None:
    assert cause_of(7, QueuedJob(7, "COMPLETED"), 60) is None
    assert cause_of(7, QueuedJob(7, "FAILED", "NonZeroExitCode"), 60) is None
    assert cause_of(7, None, 60) is None


def test_silence_is_a_loss_unless_nothing_ever_began() -> None:
    failed = QueuedJob(7, "FAILED")
    assert cause_of_silence(7, failed, "srun: error", began=False).kind is FailureKind.NOT_STARTABLE
    assert cause_of_silence(7, failed, "", began=True).kind is FailureKind.NODE_LOST
    assert cause_of_silence(7, None, "", began=False).kind is FailureKind.NODE_LOST


def test_an_order_is_read_again_as_it_was() -> None:
    request = LaunchRequest(
        run_id="j.0.1", job_id="j", unit_index=0, epoch=1, tenant="acme", world_size=4,
        ranks=(RankPlacement(2, "north-1", 0, (1, 3), 500),), command=("python", "x.py"), env={"A": "b"},
        limits=RunLimits(1.5, 2**30, 60), restore_from="/c", restore_step=7, array_index=3, service_port=80,
    )  # fmt: skip
    assert request_of(json.loads(json.dumps(launch_record(request)))) == request
