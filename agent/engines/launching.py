"""The order to a node's process (`agent.node`) to start the ranks of a run that lie on it; the same for every engine."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from agent.engines.base import LaunchRequest, RankPlacement
from agent.engines.local import environment
from agent.node import wire
from agent.parts import Part


class ProgramSettings(Protocol):
    """What of an engine's settings concerns its programs; see `LocalEngineSettings`."""

    @property
    def domain_id(self) -> str: ...
    @property
    def time_limit_grace_s(self) -> float: ...
    @property
    def log_bytes(self) -> int: ...
    @property
    def rank_nice(self) -> int: ...
    @property
    def bound_address_space(self) -> bool: ...
    @property
    def device_variables(self) -> Mapping[str, str]: ...
    @property
    def mps_nodes(self) -> Collection[str]: ...
    @property
    def device_memory_bytes(self) -> Mapping[str, tuple[int, ...]]: ...
    def log_path(self, run_id: str, rank: int) -> Path: ...
    def own_work_dir(self, run_id: str) -> Path: ...


def launch_message(
    settings: ProgramSettings,
    agent_mark: str,
    request: LaunchRequest,
    node_id: str,
    parts: Mapping[int, Part] | None = None,
) -> wire.Message:
    """The ``launch`` message for one node of a run; ``parts`` are those of its accelerators by number."""
    own_work_dir = str(settings.own_work_dir(request.run_id))
    work_dir = request.working_dir or own_work_dir
    shared = environment.run_environment(request, settings.domain_id, agent_mark, work_dir)
    folders = [] if request.working_dir else [own_work_dir]
    if request.checkpoint_dir:
        folders.append(request.checkpoint_dir)
    return {
        "op": "launch",
        "run": request.run_id,
        "epoch": request.epoch,
        "argv": environment.resolve_command(request.command),
        "env": {**environment.base_environment(os.environ), **shared},
        "cwd": work_dir,
        "folders": folders,
        "limits": {
            "memory_bytes": request.limits.memory_bytes,
            "address_space_bytes": request.limits.memory_bytes if settings.bound_address_space else 0,
            "max_run_time_s": request.limits.max_run_time_s,
            "grace_s": settings.time_limit_grace_s,
            "log_bytes": settings.log_bytes,
            "nice": settings.rank_nice,
        },
        "ranks": [
            _rank_message(settings, request, placement, parts or {})
            for placement in request.ranks
            if placement.node_id == node_id
        ],
    }


def share_file(log: Path) -> Path:
    """Where a rank that shares its accelerators, with this log, finds its part of them (0-1) as it is now."""
    return log.with_suffix(".share")


def write_share(log: Path, placement: RankPlacement) -> None:
    """Tell a rank its part; a reader sees the old or the new number, never half of one."""
    path = share_file(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".share.new")
    new.write_text(f"{placement.accelerator_milli / 1000:g}\n")
    new.replace(path)


def _rank_message(
    settings: ProgramSettings, request: LaunchRequest, placement: RankPlacement, parts: Mapping[int, Part]
) -> wire.Message:
    share = share_file(settings.log_path(request.run_id, placement.rank))
    shares = placement.accelerator_indices and placement.accelerator_milli < 1000
    # An engine that cannot tell of changes has written none.
    told = {"MERIDIAN_DEVICE_SHARE_FILE": str(share)} if shares and share.exists() else {}
    return {
        "rank": placement.rank,
        "env": {
            **told,
            **environment.rank_environment(
                request,
                placement,
                settings.device_variables.get(placement.node_id, ""),
                mps=placement.node_id in settings.mps_nodes,
                memory_bytes=settings.device_memory_bytes.get(placement.node_id, ()),
                parts=parts,
            ),
        },
        "log": str(settings.log_path(request.run_id, placement.rank)),
    }
