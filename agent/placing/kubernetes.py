"""Kubernetes as the scheduler and the engine of a domain as its file declares it."""

from __future__ import annotations

from dataclasses import dataclass

from agent.engines.kubernetes.access import access_of
from agent.engines.kubernetes.api import KubernetesApi
from agent.engines.kubernetes.cluster import Cluster, KubernetesSettings
from agent.engines.kubernetes.scheduler import KubernetesScheduler, PodRules
from agent.engines.kubernetes.site import Site, Volume
from agent.engines.own_scheduler import DeviceKind
from agent.kubernetes_settings import KubernetesScheduling
from agent.settings import Domain

ALIAS = "kubernetes"
"""The alias of a node that is Kubernetes' name of it."""


@dataclass(frozen=True, slots=True)
class KubernetesParts:
    """What scheduler and engine share, and the scheduler."""

    cluster: Cluster
    scheduler: KubernetesScheduler


def kubernetes_of(domain: Domain, settings: KubernetesScheduling, grace_s: float) -> KubernetesParts:
    """The parts; nothing is asked of the API server yet. ``grace_s`` is what programs have to end when nobody says how long.

    :raises ConfigurationError: names the field by which the API server cannot be reached.
    """
    access = access_of(
        kubeconfig=settings.kubeconfig,
        context=settings.context,
        server=settings.server,
        token_path=settings.token_path,
        ca_path=settings.ca_path,
    )
    names = {node.node_id: node.aliases.get(ALIAS, node.node_id) for node in domain.nodes}
    cluster = Cluster(
        KubernetesSettings(
            domain.domain_id, site_of(settings), names, whole_cluster=settings.whole_cluster, poll_s=settings.poll_s
        ),
        KubernetesApi(access),
    )
    devices = {
        node.node_id: tuple(
            DeviceKind(group.vendor, group.model) for group in node.accelerators for _ in range(group.count)
        )
        for node in domain.nodes
    }
    rules = PodRules(settings.answer_s, settings.claim_s, settings.most_queued, settings.abandon_s, grace_s)
    return KubernetesParts(cluster, KubernetesScheduler(cluster, rules, devices, emulated=domain.emulated))


def site_of(settings: KubernetesScheduling) -> Site:
    """What the file says of the cluster."""
    volume = settings.volume
    return Site(
        image=settings.image,
        namespace=settings.namespace,
        resources=settings.resources,
        model_labels=settings.model_labels,
        counted=settings.counted,
        topology_keys=settings.topology_keys,
        node_selector=settings.node_selector,
        tolerations=settings.tolerations,
        queue=settings.queue,
        gang=settings.gang,
        scheduler_name=settings.scheduler_name,
        priority_class=settings.priority_class,
        runtime_class=settings.runtime_class,
        service_account=settings.service_account,
        pull_secrets=settings.pull_secrets,
        run_as_user=settings.run_as_user,
        host_network=settings.host_network,
        volume=Volume(volume.path, volume.claim, volume.host) if volume is not None else None,
        node_loss_s=settings.node_loss_s,
    )
