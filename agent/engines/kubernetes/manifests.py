"""What a unit needs as an Indexed Job, and its order as a Secret. Pure.

Sources: the API reference of batch/v1 Job and core/v1 Pod; "Jobs" (completion mode Indexed, backoff limit, pod replacement policy,
active deadline); Kueue ("Run a Kubernetes Job"), Volcano and scheduler-plugins (PodGroup).

One pod per rank, and a unit lives and dies as a whole: ``backoffLimit`` 0 makes the Job end the others when one fails. Pods are bound by
the cluster's scheduler before the program is known, so their containers wait: their environment is that of a Secret which does not
exist yet, and the kubelet starts no container without it. The order makes the Secret. ``activeDeadlineSeconds`` is the lease: the agent
renews it, and the Job controller ends what is not renewed.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from agent.engines.base import LaunchRequest
from agent.engines.kubernetes.site import (
    CONTAINER,
    UNIT_ANNOTATION,
    UNIT_LABEL,
    Site,
    job_name,
    labels_of,
    mark_of,
    unit_annotation,
)
from agent.engines.local.environment import run_environment
from agent.engines.own_scheduler import Constraints, DeviceKind, Refusal, UnitName
from meridian.hardware.accelerator_types import is_meant

HOSTNAME = "kubernetes.io/hostname"
IMAGE_VARIABLE = "MERIDIAN_IMAGE"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MOST_SECRET_BYTES = 1024 * 1024
# What a container runs: its rank's part of the order, the working directory, and then the program in its own place (it is PID 1
# and gets the signals). $() and `` do not occur, as Kubernetes expands $(NAME) itself.
SCRIPT = (
    'eval "eval \\"\\$MERIDIAN_RANK_$JOB_COMPLETION_INDEX\\""; '
    '[ -z "$MERIDIAN_OWN_WORK_DIR" ] || mkdir -p "$MERIDIAN_WORK_DIR"; '
    '[ -z "$MERIDIAN_CHECKPOINT_DIR" ] || mkdir -p "$MERIDIAN_CHECKPOINT_DIR"; '
    'cd "$MERIDIAN_WORK_DIR" && eval "exec $MERIDIAN_COMMAND"'
)

Manifest = dict[str, Any]
Devices = Mapping[str, Sequence[DeviceKind]]
"""Accelerators of each of the domain's nodes, by Kubernetes' name of the node."""


def secret_name(job: str) -> str:
    """The Secret that is the order of a Job."""
    return f"{job}-order"


def job_manifests(
    domain_id: str, name: UnitName, constraints: Constraints, site: Site, devices: Devices, *, hold_s: int, grace_s: int
) -> tuple[Manifest, ...] | Refusal:
    """A Job for each way to satisfy a unit, to be tried in order (a pod asks for one extended resource), or why there is none.

    :param devices: all nodes of the domain; those of ``constraints.excluded_nodes`` by the same names are left out.
    :param hold_s: after so long the Job ends if nobody renews it.
    :param grace_s: how long programs have between ``SIGTERM`` and ``SIGKILL``.
    """
    wrong = _not_expressible(constraints, site)
    if wrong:
        return Refusal(wrong)
    nodes = [node for node in devices if node not in constraints.excluded_nodes]
    if not nodes:
        return Refusal("all nodes of the domain are excluded")
    if not constraints.accelerators:
        return (_job(domain_id, name, constraints, site, "", [_term(nodes)], hold_s, grace_s),)
    by_resource: dict[str, list[Manifest]] = {}
    for kind in _kinds(constraints, devices, nodes):
        resource = site.resource_of(kind)
        if not resource:
            return Refusal(f"no extended resource of Kubernetes is known for {kind.vendor} {kind.model} (resources)")
        having = [node for node in nodes if kind in devices[node]]
        by_resource.setdefault(resource, []).append(_term(having, site.model_labels.get(kind.model, {})))
    if not by_resource:
        what = " or ".join(constraints.accelerator_types) or "any kind"
        return Refusal(f"the domain declares no accelerators of {what} on nodes that may be used")
    return tuple(
        _job(domain_id, name, constraints, site, resource, terms, hold_s, grace_s)
        for resource, terms in by_resource.items()
    )


def _kinds(constraints: Constraints, devices: Devices, nodes: Sequence[str]) -> list[DeviceKind]:
    """The kinds that are meant: those of the type that was named first come first."""
    known = list(dict.fromkeys(kind for node in nodes for kind in devices[node]))
    if not constraints.accelerator_types:
        return [kind for kind in known if is_meant(kind.vendor, kind.model, ())]
    wanted = [
        kind for name in constraints.accelerator_types for kind in known if is_meant(kind.vendor, kind.model, (name,))
    ]
    return list(dict.fromkeys(wanted))


def _not_expressible(constraints: Constraints, site: Site) -> str:
    if constraints.accelerators and constraints.accelerator_milli < 1000:
        return "parts of an accelerator are not given out here: an extended resource is counted in whole ones"
    if constraints.topology and constraints.topology_required and constraints.topology not in site.topology_keys:
        return f"no label of nodes stands for the topology {constraints.topology!r} here (topology_keys)"
    for name, amount in constraints.resources:
        if name not in site.counted:
            return f"Kubernetes does not count {name} here"
        if amount != int(amount):
            return f"Kubernetes counts {name} in whole numbers, not {amount:g}"
    return ""


def _term(nodes: Sequence[str], labels: Mapping[str, str] | None = None) -> Manifest:
    return {
        "matchExpressions": [
            {"key": HOSTNAME, "operator": "In", "values": sorted(nodes)},
            *({"key": key, "operator": "In", "values": [value]} for key, value in sorted((labels or {}).items())),
        ]
    }


def _job(
    domain_id: str,
    name: UnitName,
    constraints: Constraints,
    site: Site,
    resource: str,
    terms: list[Manifest],
    hold_s: int,
    grace_s: int,
) -> Manifest:
    labels = labels_of(domain_id, name)
    called = job_name(domain_id, name)
    annotations = {UNIT_ANNOTATION: unit_annotation(domain_id, name)}
    pod_labels = {**labels, **{mark_of(label): "1" for label in sorted(constraints.labels)}}
    pod_annotations = dict(annotations)
    job_labels = dict(labels)
    queued = bool(site.queue) and site.gang != "volcano"
    if queued:
        job_labels["kueue.x-k8s.io/queue-name"] = site.queue
    if site.gang == "coscheduling":
        pod_labels["scheduling.x-k8s.io/pod-group"] = called
    if site.gang == "volcano":
        pod_annotations["scheduling.k8s.io/group-name"] = called
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": called,
            "namespace": site.namespace,
            "labels": job_labels,
            "annotations": annotations,
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": constraints.ranks,
            "parallelism": constraints.ranks,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "activeDeadlineSeconds": hold_s,
            **({"suspend": True} if queued else {}),
            "template": {
                "metadata": {"labels": pod_labels, "annotations": pod_annotations},
                "spec": _pod(called, constraints, site, resource, terms, labels, grace_s),
            },
        },
    }


def _pod(
    called: str,
    constraints: Constraints,
    site: Site,
    resource: str,
    terms: list[Manifest],
    labels: Mapping[str, str],
    grace_s: int,
) -> Manifest:
    volumes, mounts = _volumes(site)
    lost = [
        {
            "key": f"node.kubernetes.io/{name}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": site.node_loss_s,
        }
        for name in ("not-ready", "unreachable")
    ]
    container = {
        "name": CONTAINER,
        "image": site.image,
        "command": ["/bin/sh", "-c", SCRIPT],
        "envFrom": [{"secretRef": {"name": secret_name(called)}}],
        "resources": _resources(constraints, site, resource),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
            **(
                {"runAsUser": site.run_as_user, "runAsNonRoot": site.run_as_user > 0}
                if site.run_as_user is not None
                else {}
            ),
        },
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if constraints.service_port:
        # The scheduler gives a port of a node to one pod only.
        container["ports"] = [{"containerPort": constraints.service_port, "hostPort": constraints.service_port}]
    optional = {
        "nodeSelector": dict(site.node_selector),
        "schedulerName": site.scheduler_name or ("volcano" if site.gang == "volcano" else ""),
        "priorityClassName": site.priority_class,
        "runtimeClassName": site.runtime_class,
        "serviceAccountName": site.service_account,
        "imagePullSecrets": [{"name": name} for name in site.pull_secrets],
        "volumes": volumes,
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": _affinity(constraints, site, terms, labels),
        "tolerations": [*map(dict, site.tolerations), *lost],
        "containers": [container],
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if site.host_network else {}),
        **{key: value for key, value in optional.items() if value},
    }


def _volumes(site: Site) -> tuple[list[Manifest], list[Manifest]]:
    if site.volume is None:
        return [], []
    volume = site.volume
    source: Manifest = (
        {"hostPath": {"path": volume.path, "type": "Directory"}}
        if volume.host
        else {"persistentVolumeClaim": {"claimName": volume.claim}}
    )
    return [{"name": "shared", **source}], [{"name": "shared", "mountPath": volume.path}]


def _resources(constraints: Constraints, site: Site, resource: str) -> Manifest:
    """Requests of all; limits of what must not be exceeded, and of extended resources, whose limits are their requests."""
    fixed: dict[str, str] = {}
    if constraints.memory_bytes:
        fixed["memory"] = str(math.ceil(constraints.memory_bytes))
    if resource:
        fixed[resource] = str(constraints.accelerators)
    for name, amount in constraints.resources:
        fixed[site.counted[name]] = str(int(amount))
    cpus = {"cpu": f"{max(math.ceil(constraints.cpus * 1000), 1)}m"} if constraints.cpus else {}
    return {"requests": {**cpus, **fixed}, "limits": fixed}


def _affinity(constraints: Constraints, site: Site, terms: list[Manifest], labels: Mapping[str, str]) -> Manifest:
    affinity: Manifest = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    }
    key = site.topology_keys.get(constraints.topology, "")
    if key and constraints.ranks > 1:
        together = {"labelSelector": {"matchLabels": {UNIT_LABEL: labels[UNIT_LABEL]}}, "topologyKey": key}
        affinity["podAffinity"] = (
            {"requiredDuringSchedulingIgnoredDuringExecution": [together]}
            if constraints.topology_required
            else {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": together}]}
        )
    if constraints.avoid:
        affinity["podAntiAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchExpressions": [{"key": mark_of(label), "operator": "Exists"}]},
                    "topologyKey": HOSTNAME,
                }
                for label in sorted(constraints.avoid)
            ]
        }
    return affinity


def pod_group(manifest: Manifest, site: Site) -> tuple[str, Manifest] | None:
    """Path of the collection and the PodGroup that a gang scheduler wants to see before its pods; None: it wants none."""
    groups = {
        "volcano": "scheduling.volcano.sh/v1beta1",
        "coscheduling": "scheduling.x-k8s.io/v1alpha1",
    }
    if site.gang not in groups:
        return None
    version, about = groups[site.gang], manifest["metadata"]
    spec: Manifest = {"minMember": manifest["spec"]["completions"]}
    if site.gang == "volcano" and site.queue:
        spec["queue"] = site.queue
    return f"/apis/{version}/namespaces/{site.namespace}/podgroups", {
        "apiVersion": version,
        "kind": "PodGroup",
        "metadata": {name: about[name] for name in ("name", "namespace", "labels")},
        "spec": spec,
    }


# --- the order ----------------------------------------------------------------------------------------------------------


class OrderError(Exception):
    """An order that cannot be given to containers; the text says why."""


def order_secret(
    request: LaunchRequest, job: Manifest, site: Site, domain_id: str, agent_mark: str, work_dir: str, master_addr: str
) -> Manifest:
    """The Secret for which the containers of a Job wait: the environment that all ranks share, that of each, and the command.

    It belongs to the Job: Kubernetes removes it with the Job.

    :param job: the Job as the API server has it.
    :raises OrderError: a name of a variable that no shell takes, or more than a Secret holds.
    """
    odd = [name for name in request.env if not _VARIABLE.fullmatch(name)]
    if odd:
        raise OrderError(f"env: {odd[0][:80]!r} cannot be the name of a variable in a container")
    shared = run_environment(request, domain_id, agent_mark, work_dir)
    shared["MASTER_ADDR"] = master_addr
    shared["MERIDIAN_COMMAND"] = shlex.join(request.command)
    if not request.working_dir:
        shared["MERIDIAN_OWN_WORK_DIR"] = "1"
    for number, placement in enumerate(sorted(request.ranks, key=lambda item: item.rank)):
        mine = {
            "MERIDIAN_NODE": placement.node_id,
            # As the container sees them: a device plugin shows it its own, numbered from 0.
            "MERIDIAN_ACCELERATORS": ",".join(map(str, range(len(placement.accelerator_indices)))),
            "RANK": str(placement.rank),
            "LOCAL_RANK": str(placement.local_rank),
            "LOCAL_WORLD_SIZE": str(sum(other.node_id == placement.node_id for other in request.ranks)),
        }
        shared[f"MERIDIAN_RANK_{number}"] = "export " + " ".join(
            f"{key}={shlex.quote(value)}" for key, value in mine.items()
        )
    shared.pop(IMAGE_VARIABLE, None)
    if sum(len(key) + len(value.encode()) for key, value in shared.items()) > MOST_SECRET_BYTES:
        raise OrderError(f"env and command: more than the {MOST_SECRET_BYTES} bytes that a Secret holds")
    about = job["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": about["name"], "uid": about["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(about["name"]),
            "namespace": site.namespace,
            "labels": labels_of(domain_id, UnitName(request.job_id, request.unit_index, request.epoch)),
            "ownerReferences": [owner],
        },
        "stringData": shared,
        "immutable": True,
    }


def why_no_image(image: str, allowed: Sequence[str]) -> str:
    """Why a job's own image is not taken; empty: it is, or the job names none."""
    if not image or any(image.startswith(prefix) for prefix in allowed):
        return ""
    known = ", ".join(allowed) or "none"
    return f"{IMAGE_VARIABLE}: the domain does not take the image {image[:200]!r} (job_images: {known})"
