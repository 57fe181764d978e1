"""Slurm as the scheduler and the engine of a domain as its file declares it."""

from __future__ import annotations

import sys
from pathlib import Path

from agent.engines.own_scheduler import DeviceKind
from agent.engines.slurm.allocation import Site
from agent.engines.slurm.cluster import Cluster, SlurmSettings
from agent.engines.slurm.scheduler import QueueRules, SlurmScheduler
from agent.settings import Domain, SlurmScheduling

ALIAS = "slurm"
"""The alias of a node that is Slurm's name of it."""


def cluster_of(domain: Domain, settings: SlurmScheduling, shared_dir: Path) -> Cluster:
    """The cluster; what agent and nodes share lies in ``shared_dir``."""
    return Cluster(
        SlurmSettings(
            domain_id=domain.domain_id,
            shared_dir=shared_dir / "slurm",
            node_names={node.node_id: node.aliases.get(ALIAS, node.node_id) for node in domain.nodes},
            site=Site(
                partition=settings.partition,
                account=settings.account,
                qos=settings.qos,
                features=settings.features,
                gres_types=settings.gres_types,
                gres=settings.gres,
                licences=settings.licences,
                mps=settings.mps,
            ),
            programs_dir=settings.programs_dir,
            configuration=settings.configuration,
            python=settings.python or sys.executable,
            poll_s=settings.poll_s,
            abandon_s=settings.abandon_s,
        )
    )


def slurm_scheduler_of(domain: Domain, settings: SlurmScheduling, cluster: Cluster) -> SlurmScheduler:
    """What answers for the domain."""
    devices = {
        node.node_id: tuple(
            DeviceKind(group.vendor, group.model) for group in node.accelerators for _ in range(group.count)
        )
        for node in domain.nodes
    }
    rules = QueueRules(settings.answer_s, settings.claim_s, settings.most_queued)
    return SlurmScheduler(cluster, rules, devices, emulated=domain.emulated)
