"""How the engine of a Slurm domain behaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.engines.base import RunFolders


@dataclass(frozen=True, slots=True)
class SlurmEngineSettings(RunFolders):
    """How the engine behaves; see `LocalEngineSettings` for what concerns programs. Times in seconds."""

    domain_id: str
    shared_dir: Path
    node_ids: tuple[str, ...]
    agent_silence_s: float = 6.0
    start_timeout_s: float = 60.0
    gang_grace_s: float = 1.0
    time_limit_grace_s: float = 5.0
    log_bytes: int = 16 * 1024 * 1024
    rank_nice: int = 0
    bound_address_space: bool = False
    device_variables: Mapping[str, str] = field(default_factory=dict)
    mps_nodes: frozenset[str] = frozenset()
    device_memory_bytes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
