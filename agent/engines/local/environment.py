"""The environment of a rank: nothing of the agent's own but what programs need to run, then the user's, then ours."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from agent.engines.base import LaunchRequest, RankPlacement
from agent.parts import Part

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "USER", "LOGNAME")
AGENT_MARK = "MERIDIAN_AGENT"


def base_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What passes from the agent to nodes and ranks: a short list, so that no secret of the agent does."""
    return {name: environment[name] for name in INHERITED if name in environment}


def run_environment(request: LaunchRequest, domain_id: str, agent_mark: str, work_dir: str) -> dict[str, str]:
    """Variables that all ranks of a run share; the user's cannot replace Meridian's."""
    ours = {
        "MERIDIAN_JOB_ID": request.job_id,
        "MERIDIAN_RUN_ID": request.run_id,
        "MERIDIAN_EPOCH": str(request.epoch),
        "MERIDIAN_DOMAIN": domain_id,
        "MERIDIAN_CHECKPOINT_DIR": request.checkpoint_dir,
        "MERIDIAN_RESTORE_FROM": request.restore_from,
        "MERIDIAN_WORK_DIR": work_dir,
        AGENT_MARK: agent_mark,
        "WORLD_SIZE": str(request.world_size),
        "MASTER_ADDR": request.master_addr,
        "MASTER_PORT": str(request.master_port),
        "OMP_NUM_THREADS": "1",
    }
    if request.array_index is not None:
        ours["MERIDIAN_ARRAY_INDEX"] = str(request.array_index)
    if request.service_port:
        ours["MERIDIAN_SERVICE_PORT"] = str(request.service_port)
    return {"PYTHONUNBUFFERED": "1", **request.env, **ours}


def rank_environment(
    request: LaunchRequest,
    placement: RankPlacement,
    device_variable: str = "",
    *,
    mps: bool = False,
    memory_bytes: Sequence[int] = (),
    parts: Mapping[int, Part] | None = None,
) -> dict[str, str]:
    """Variables of one rank; ``device_variable`` names the one that limits it to its accelerators, empty for none.

    ``mps``: the node's accelerators are NVIDIA's, so a share is told to their Multi-Process Service too. ``memory_bytes`` are
    those of the node's accelerators by index, as far as known. ``parts``: parts of its accelerators by number; the variable of
    visible devices has their makers' names, ``MERIDIAN_ACCELERATORS`` the numbers.
    """
    known = parts or {}
    local_world_size = sum(other.node_id == placement.node_id for other in request.ranks)
    devices = ",".join(map(str, placement.accelerator_indices))
    visible = ",".join(known[index].name if index in known else str(index) for index in placement.accelerator_indices)
    return {
        **({device_variable: visible} if device_variable else {}),
        **_share(placement, mps=mps, memory_bytes=memory_bytes, parts=known),
        "MERIDIAN_NODE": placement.node_id,
        "MERIDIAN_ACCELERATORS": devices,
        "RANK": str(placement.rank),
        "LOCAL_RANK": str(placement.local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
    }


def _share(
    placement: RankPlacement, *, mps: bool, memory_bytes: Sequence[int], parts: Mapping[int, Part]
) -> dict[str, str]:
    """What a rank is told that shares its accelerators; nothing for one that has them for itself.

    The variables of NVIDIA's Multi-Process Service (docs.nvidia.com/deploy/mps, "Environment Variables"): the part of the
    threads in percent, and the memory per device as the program numbers them.
    """
    milli = placement.accelerator_milli
    if milli >= 1000 or not placement.accelerator_indices:
        return {}
    known = [
        parts[index].memory_bytes if index in parts else memory_bytes[index] if index < len(memory_bytes) else 0
        for index in placement.accelerator_indices
    ]
    limits = [amount * milli // 1000 for amount in known]
    share = {"MERIDIAN_DEVICE_SHARE": f"{milli / 1000:g}"}
    if all(limits):
        share["MERIDIAN_DEVICE_MEMORY_BYTES"] = ",".join(map(str, limits))
    if mps:
        share["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{milli / 10:g}"
        if all(limits):
            share["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(
                f"{number}={limit // 2**20}M" for number, limit in enumerate(limits)
            )
    return share


def resolve_command(command: tuple[str, ...]) -> list[str]:
    """The command with ``python`` standing for the interpreter that runs the agent, so that its libraries are found."""
    first, *rest = command
    return [sys.executable if first in {"python", "python3"} else first, *rest]
