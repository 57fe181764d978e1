"""The environment of a rank: nothing of the agent's own but what programs need to run, then the user's, then ours."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from agent.engines.base import LaunchRequest, RankPlacement

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


def rank_environment(request: LaunchRequest, placement: RankPlacement, device_variable: str = "") -> dict[str, str]:
    """Variables of one rank; ``device_variable`` names the one that limits it to its accelerators, empty for none."""
    local_world_size = sum(other.node_id == placement.node_id for other in request.ranks)
    devices = ",".join(map(str, placement.accelerator_indices))
    return {
        **({device_variable: devices} if device_variable else {}),
        "MERIDIAN_NODE": placement.node_id,
        "MERIDIAN_ACCELERATORS": devices,
        "RANK": str(placement.rank),
        "LOCAL_RANK": str(placement.local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
    }


def resolve_command(command: tuple[str, ...]) -> list[str]:
    """The command with ``python`` standing for the interpreter that runs the agent, so that its libraries are found."""
    first, *rest = command
    return [sys.executable if first in {"python", "python3"} else first, *rest]
