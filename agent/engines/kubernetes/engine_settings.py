"""How the engine of a Kubernetes domain behaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.engines.base import RunFolders


@dataclass(frozen=True, slots=True)
class KubernetesEngineSettings(RunFolders):
    """Times in seconds. ``records_dir``: what the next agent knows runs by, on the agent's own disk.

    ``agent_silence_s``: ranks end when the agent has had no contact for so long. ``start_timeout_s``: containers begin within it after
    the order, images included; ``image_patience_s``: for so long an image that cannot be pulled is tried. ``lost_patience_s``: a pod on
    a node that is not heard counts as gone so long after it was told to end. ``job_images``: beginnings of the images that
    jobs may name.
    """

    domain_id: str
    shared_dir: Path
    node_ids: tuple[str, ...]
    records_dir: Path
    agent_silence_s: float = 20.0
    start_timeout_s: float = 600.0
    image_patience_s: float = 30.0
    gang_grace_s: float = 1.0
    time_limit_grace_s: float = 5.0
    lost_patience_s: float = 60.0
    log_bytes: int = 16 * 1024 * 1024
    job_images: tuple[str, ...] = ()
