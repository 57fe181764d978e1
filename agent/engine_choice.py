"""The engine of a domain as its file declares it: processes here, allocations of its Slurm, or pods of its Kubernetes."""

from __future__ import annotations

from typing import Any

from agent.engines.kubernetes.engine import KubernetesEngine
from agent.engines.kubernetes.engine_settings import KubernetesEngineSettings
from agent.engines.local.engine import LocalEngine, LocalEngineSettings
from agent.engines.slurm.cluster import Cluster
from agent.engines.slurm.engine import SlurmEngine
from agent.engines.slurm.engine_settings import SlurmEngineSettings
from agent.kubernetes_settings import KubernetesScheduling
from agent.placing.kubernetes import KubernetesParts
from agent.run_book import RunBook
from agent.settings import AgentSettings, Domain
from meridian.clock import Clock

ENDING_RUNS_S = 1.0
LATE_HEARTBEAT_S = 2.0
"""A heartbeat may be acknowledged so long after it was sent, and renews the lease of runs in allocations then."""
VISIBLE_DEVICES = {
    "nvidia": "CUDA_VISIBLE_DEVICES",
    "huawei": "ASCEND_RT_VISIBLE_DEVICES",
    "amd": "ROCR_VISIBLE_DEVICES",
    "hygon": "HIP_VISIBLE_DEVICES",
    "cambricon": "MLU_VISIBLE_DEVICES",
}


def engine_of(
    settings: AgentSettings, book: RunBook, cluster: Cluster | KubernetesParts | None, clock: Clock
) -> LocalEngine | SlurmEngine | KubernetesEngine:
    """The engine; ``cluster`` is the domain's Slurm or Kubernetes, None: it has none."""
    domain = settings.domain
    silence_s = max(settings.lease_s - 2, settings.lease_s / 2)
    if cluster is None:
        local = LocalEngineSettings(
            agent_silence_s=silence_s,
            restart_after_s=settings.restart_after_s,
            sleeping=domain.sleeping,
            can_sleep=domain.can_sleep,
            **_of_programs(settings),
        )
        return LocalEngine(local, book, clock)
    if isinstance(cluster, KubernetesParts):
        return _kubernetes_engine(settings, silence_s - LATE_HEARTBEAT_S, book, cluster, clock)
    slurm = SlurmEngineSettings(
        agent_silence_s=max(silence_s - LATE_HEARTBEAT_S, settings.lease_s / 3), **_of_programs(settings)
    )
    return SlurmEngine(slurm, cluster, book, clock)


def _kubernetes_engine(
    settings: AgentSettings, silence_s: float, book: RunBook, parts: KubernetesParts, clock: Clock
) -> KubernetesEngine:
    scheduling = settings.domain.own_scheduler
    assert isinstance(scheduling, KubernetesScheduling)
    kubernetes = KubernetesEngineSettings(
        domain_id=settings.domain.domain_id,
        shared_dir=settings.shared,
        node_ids=tuple(node.node_id for node in settings.domain.nodes),
        records_dir=settings.data_dir / "kubernetes",
        agent_silence_s=silence_s,
        start_timeout_s=scheduling.start_timeout_s,
        image_patience_s=scheduling.image_patience_s,
        gang_grace_s=ENDING_RUNS_S,
        lost_patience_s=scheduling.lost_patience_s,
        log_bytes=settings.log_bytes,
        job_images=scheduling.job_images,
    )
    return KubernetesEngine(kubernetes, parts.cluster, parts.scheduler, book, clock)


def _of_programs(settings: AgentSettings) -> dict[str, Any]:
    """What every engine is told."""
    domain = settings.domain
    return {
        "domain_id": domain.domain_id,
        "node_ids": tuple(node.node_id for node in domain.nodes),
        "shared_dir": settings.shared,
        "gang_grace_s": ENDING_RUNS_S,
        "log_bytes": settings.log_bytes,
        "device_variables": _device_variables(domain),
        "mps_nodes": frozenset(
            node.node_id
            for node in domain.nodes
            if any(group.vendor.lower() == "nvidia" for group in node.accelerators)
        ),
        "device_memory_bytes": {
            node.node_id: tuple(group.memory_bytes for group in node.accelerators for _ in range(group.count))
            for node in domain.nodes
        },
    }


def _device_variables(domain: Domain) -> dict[str, str]:
    """The environment variable by which programs of a real node see only their accelerators, by node."""
    if domain.emulated:
        return {}
    return {
        node.node_id: VISIBLE_DEVICES[group.vendor.lower()]
        for node in domain.nodes
        for group in node.accelerators[:1]
        if group.vendor.lower() in VISIBLE_DEVICES
    }
