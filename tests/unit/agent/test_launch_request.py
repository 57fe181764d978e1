"""Orders that cannot be carried out are refused where they enter, with the field named."""

from __future__ import annotations

import math
import sys

import pytest

from agent.engines.base import LaunchRequest, RankPlacement, RunLimits
from agent.engines.local.environment import base_environment, rank_environment, resolve_command, run_environment
from meridian.errors import InvalidArgumentError

GOOD: dict[str, object] = {
    "run_id": "job-1.0.1",
    "job_id": "job-1",
    "unit_index": 0,
    "epoch": 1,
    "tenant": "acme",
    "ranks": (RankPlacement(0, "n1"), RankPlacement(1, "n1", 1, (2, 3))),
    "world_size": 4,
    "command": ("python", "train.py"),
}


def _request(**changes: object) -> LaunchRequest:
    return LaunchRequest(**{**GOOD, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"run_id": "../../etc"}, "/run_id"),
        ({"run_id": ".."}, "/run_id"),
        ({"run_id": ""}, "/run_id"),
        ({"epoch": 0}, "/epoch"),
        ({"command": ()}, "/command"),
        ({"command": ("a\0b",)}, "/command"),
        ({"env": {"A=B": "1"}}, "/env"),
        ({"working_dir": "here"}, "/working_dir"),
        ({"ranks": ()}, "/ranks"),
        ({"ranks": (RankPlacement(0, "n1"), RankPlacement(0, "n2"))}, "/ranks"),
        ({"ranks": (RankPlacement(4, "n1"),)}, "/ranks"),
        ({"ranks": (RankPlacement(0, "n1", -1),)}, "/ranks"),
        ({"ranks": (RankPlacement(0, "n1", 0, (0, -1)),)}, "/ranks"),
        ({"limits": RunLimits(cpus=math.nan)}, "/cpus"),
        ({"limits": RunLimits(cpus=math.inf)}, "/cpus"),
        ({"limits": RunLimits(cpus=-0.5)}, "/cpus"),
        ({"limits": RunLimits(memory_bytes=-1)}, "/memory_bytes"),
        ({"limits": RunLimits(max_run_time_s=math.nan)}, "/max_run_time_s"),
        ({"limits": RunLimits(max_run_time_s=math.inf)}, "/max_run_time_s"),
        ({"limits": RunLimits(max_run_time_s=-1.0)}, "/max_run_time_s"),
        ({"master_port": -1}, "/master_port"),
        ({"service_port": 65_536}, "/service_port"),
        ({"restore_step": -1}, "/restore_step"),
    ],
)
def test_a_bad_field_is_named(changes: dict[str, object], pointer: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        _request(**changes)
    assert pointer in [error.pointer for error in caught.value.errors]


def test_the_environment_of_a_rank() -> None:
    request = _request(env={"COLOUR": "blue", "WORLD_SIZE": "9"}, array_index=3, service_port=8080, restore_from="/c/1")
    shared = run_environment(request, "north", "mark", "/work")
    assert shared["COLOUR"] == "blue"
    assert shared["WORLD_SIZE"] == "4", "a user cannot replace ours"
    assert shared["MERIDIAN_ARRAY_INDEX"] == "3"
    assert shared["MERIDIAN_SERVICE_PORT"] == "8080"
    assert shared["MERIDIAN_RESTORE_FROM"] == "/c/1"
    assert rank_environment(request, request.ranks[1]) == {
        "MERIDIAN_NODE": "n1",
        "MERIDIAN_ACCELERATORS": "2,3",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    limited = rank_environment(request, request.ranks[0], "CUDA_VISIBLE_DEVICES")
    assert limited["CUDA_VISIBLE_DEVICES"] == "", "no accelerators: none are seen"
    assert rank_environment(request, request.ranks[1], "CUDA_VISIBLE_DEVICES")["CUDA_VISIBLE_DEVICES"] == "2,3"
    plain = run_environment(_request(), "north", "mark", "/work")
    assert "MERIDIAN_ARRAY_INDEX" not in plain
    assert "MERIDIAN_SERVICE_PORT" not in plain


def test_only_a_short_list_is_inherited() -> None:
    assert base_environment({"PATH": "/bin", "MERIDIAN_JOIN_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "y"}) == {
        "PATH": "/bin"
    }


def test_python_is_the_agents_own() -> None:
    assert resolve_command(("python", "a.py")) == [sys.executable, "a.py"]
    assert resolve_command(("/bin/sh", "-c", "python")) == ["/bin/sh", "-c", "python"]


def test_a_rank_that_shares_is_told_its_part_and_its_memory() -> None:
    request = _request(ranks=(RankPlacement(0, "n1", 0, (1,), 250),), world_size=1)
    memory = (0, 8 * 2**30)
    assert (
        rank_environment(request, request.ranks[0], memory_bytes=memory).items()
        >= {
            "MERIDIAN_DEVICE_SHARE": "0.25",
            "MERIDIAN_DEVICE_MEMORY_BYTES": str(2 * 2**30),
            "MERIDIAN_ACCELERATORS": "1",
        }.items()
    )
    nvidia = rank_environment(request, request.ranks[0], "CUDA_VISIBLE_DEVICES", mps=True, memory_bytes=memory)
    assert (
        nvidia.items()
        >= {
            "CUDA_VISIBLE_DEVICES": "1",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M",
        }.items()
    )
    # Of unknown memory nothing is said; nor of a share where there is none.
    unknown = rank_environment(request, request.ranks[0], mps=True)
    assert {"MERIDIAN_DEVICE_MEMORY_BYTES", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}.isdisjoint(unknown)
    whole = _request(ranks=(RankPlacement(0, "n1", 0, (1,)),), world_size=1)
    found = rank_environment(whole, whole.ranks[0], mps=True, memory_bytes=memory)
    assert not [name for name in found if "SHARE" in name or "MPS" in name]


@pytest.mark.parametrize("milli", [0, -1, 1001])
def test_a_share_beyond_the_device_is_refused(milli: int) -> None:
    with pytest.raises(InvalidArgumentError):
        _request(ranks=(RankPlacement(0, "n1", 0, (1,), milli),), world_size=1)
