"""Constraints as an Indexed Job, orders as a Secret: what Kubernetes is asked for, and what is refused before it is asked."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from agent.engines.base import LaunchRequest, RankPlacement
from agent.engines.kubernetes.manifests import (
    HOSTNAME,
    SCRIPT,
    Manifest,
    OrderError,
    job_manifests,
    order_secret,
    pod_group,
    why_no_image,
)
from agent.engines.kubernetes.site import Site, Volume, job_name, label_value, unit_annotation, unit_of
from agent.engines.own_scheduler import Constraints, DeviceKind, Refusal, UnitName

GIB = 2**30
H100, A100, ASCEND = DeviceKind("NVIDIA", "H100"), DeviceKind("NVIDIA", "A100-80G"), DeviceKind("Huawei", "Ascend 910B")
DEVICES = {"n1": (H100,) * 4, "n2": (A100,) * 8, "n3": (ASCEND,) * 8, "n4": ()}
NAME = UnitName("train.7B", 2, 3)
SITE = Site(image="registry.example/base:1", namespace="meridian")


def manifests(constraints: Constraints, site: Site = SITE) -> tuple[Manifest, ...]:
    found = job_manifests("north", NAME, constraints, site, DEVICES, hold_s=120, grace_s=1)
    assert not isinstance(found, Refusal), found
    return found


def refusal(constraints: Constraints, site: Site = SITE) -> str:
    found = job_manifests("north", NAME, constraints, site, DEVICES, hold_s=120, grace_s=1)
    assert isinstance(found, Refusal)
    return found.reason


def pod(manifest: Manifest) -> Manifest:
    found: Manifest = manifest["spec"]["template"]["spec"]
    return found


def hosts(manifest: Manifest) -> list[list[str]]:
    terms = pod(manifest)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [term["matchExpressions"][0]["values"] for term in terms["nodeSelectorTerms"]]


def test_a_gang_is_one_indexed_job() -> None:
    (job,) = manifests(
        Constraints(3, cpus=7.5, memory_bytes=10 * GIB, accelerators=2, accelerator_types=("h100",), service_port=8080)
    )
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        3,
        3,
        0,
    )
    assert spec["activeDeadlineSeconds"] == 120
    assert "suspend" not in spec
    (container,) = pod(job)["containers"]
    fixed = {"memory": str(10 * GIB), "nvidia.com/gpu": "2"}
    assert container["resources"] == {"requests": {"cpu": "7500m", **fixed}, "limits": fixed}
    assert container["ports"] == [{"containerPort": 8080, "hostPort": 8080}]
    assert hosts(job) == [["n1"]]
    assert pod(job)["restartPolicy"] == "Never"
    assert pod(job)["automountServiceAccountToken"] is False
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert job["metadata"]["labels"]["meridian/domain"] == "north"
    assert unit_of(job["metadata"]["annotations"]["meridian/unit"], "north") == NAME


def test_each_kind_by_its_own_resource() -> None:
    either = manifests(Constraints(1, accelerators=1, accelerator_types=("ascend 910b", "a100-80g", "h100")))
    asked = [sorted(pod(job)["containers"][0]["resources"]["limits"]) for job in either]
    assert asked == [["huawei.com/Ascend910"], ["nvidia.com/gpu"]], "one way per resource, the first named first"
    assert [hosts(job) for job in either] == [[["n3"]], [["n2"], ["n1"]]]
    site = replace(
        SITE, resources={"Ascend 910B": "huawei.com/Ascend910B"}, model_labels={"H100": {"nvidia.com/gpu.product": "X"}}
    )
    (job,) = manifests(Constraints(1, accelerators=1, accelerator_types=("910b",)), site)
    assert pod(job)["containers"][0]["resources"]["limits"] == {"huawei.com/Ascend910B": "1"}
    (job,) = manifests(Constraints(1, accelerators=1, accelerator_types=("h100",)), site)
    (term,) = pod(job)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [
        {"key": HOSTNAME, "operator": "In", "values": ["n1"]},
        {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["X"]},
    ]
    (job,) = manifests(Constraints(1, cpus=1, excluded_nodes=frozenset({"n1", "n2"})))
    assert hosts(job) == [["n3", "n4"]]


def test_what_units_may_not_share() -> None:
    (job,) = manifests(Constraints(1, labels=frozenset({"service=web"}), avoid=frozenset({"service=web"})))
    (term,) = pod(job)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = term["labelSelector"]["matchExpressions"]
    assert expression["key"] in job["spec"]["template"]["metadata"]["labels"]
    assert term["topologyKey"] == HOSTNAME


def test_topology() -> None:
    site = replace(SITE, topology_keys={"rack": "topology.kubernetes.io/rack"})
    (job,) = manifests(Constraints(2, topology="rack", topology_required=True), site)
    (term,) = pod(job)["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "topology.kubernetes.io/rack"
    assert term["labelSelector"]["matchLabels"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    (job,) = manifests(Constraints(2, topology="rack"), site)
    assert "preferredDuringSchedulingIgnoredDuringExecution" in pod(job)["affinity"]["podAffinity"]
    (job,) = manifests(Constraints(2, topology="island"), site)
    assert "podAffinity" not in pod(job)["affinity"], "a wish that has no label is none"
    assert refusal(Constraints(2, topology="island", topology_required=True), site).endswith("here (topology_keys)")


@pytest.mark.parametrize(
    ("constraints", "reason"),
    [
        (Constraints(1, accelerators=1, accelerator_milli=500), "parts of an accelerator are not given out here"),
        (Constraints(1, resources=(("fpga", 1.0),)), "Kubernetes does not count fpga here"),
        (Constraints(1, accelerators=1, accelerator_types=("mi300",)), "the domain declares no accelerators of mi300"),
        (Constraints(1, excluded_nodes=frozenset(DEVICES)), "all nodes of the domain are excluded"),
    ],
)
def test_what_cannot_be_asked_for(constraints: Constraints, reason: str) -> None:
    assert refusal(constraints).startswith(reason)


def test_counted_resources() -> None:
    site = replace(SITE, counted={"fpga": "xilinx.com/fpga"})
    (job,) = manifests(Constraints(1, resources=(("fpga", 2.0),)), site)
    assert pod(job)["containers"][0]["resources"]["limits"] == {"xilinx.com/fpga": "2"}
    assert (
        refusal(Constraints(1, resources=(("fpga", 0.5),)), site) == "Kubernetes counts fpga in whole numbers, not 0.5"
    )


def test_an_accelerator_without_a_resource_is_refused() -> None:
    odd = {"n1": (DeviceKind("Nobody", "X1"),)}
    found = job_manifests("north", NAME, Constraints(1, accelerators=1), SITE, odd, hold_s=9, grace_s=1)
    assert found == Refusal("no extended resource of Kubernetes is known for Nobody X1 (resources)")


def test_queues_and_gangs() -> None:
    (job,) = manifests(Constraints(2), replace(SITE, queue="research"))
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert pod_group(job, SITE) is None
    volcano = replace(SITE, gang="volcano", queue="")
    (job,) = manifests(Constraints(2), volcano)
    assert pod(job)["schedulerName"] == "volcano"
    found = pod_group(job, volcano)
    assert found is not None
    path, group = found
    assert path == "/apis/scheduling.volcano.sh/v1beta1/namespaces/meridian/podgroups"
    assert group["spec"] == {"minMember": 2}
    assert (
        job["spec"]["template"]["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
    )


def test_a_volcano_queue_is_no_queue_of_kueue() -> None:
    volcano = replace(SITE, gang="volcano", queue="research")
    (job,) = manifests(Constraints(2), volcano)
    assert "suspend" not in job["spec"]
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"]
    found = pod_group(job, volcano)
    assert found is not None
    assert found[1]["spec"] == {"minMember": 2, "queue": "research"}


def test_names() -> None:
    assert job_name("north", NAME) == job_name("north", UnitName("train.7B", 2, 3)), "a second start is the same object"
    others = {
        job_name("south", NAME),
        job_name("north", NAME._replace(unit_index=1)),
        job_name("north", NAME._replace(epoch=4)),
    }
    assert job_name("north", NAME) not in others
    longest = job_name("d" * 200, UnitName("J.ob_" * 40, 10**6, 10**6))
    assert len(longest) <= 55, "an index and a mark stand behind it"
    assert longest.replace("-", "").isalnum()
    assert longest == longest.lower()
    for text in ("plain", "x" * 63, "x" * 200, "Ümlaut", "ends-", "-", "a b"):
        assert len(label_value(text)) <= 63
        assert label_value(text)[0].isalnum()
        assert label_value(text)[-1].isalnum()
    assert unit_of(unit_annotation("north", NAME), "south") is None
    for odd in (None, "", "[]", "{}", '["north",1,2,3]', '["north","j",true,1]'):
        assert unit_of(odd, "north") is None


def order(**more: object) -> LaunchRequest:
    ranks = (RankPlacement(4, "north-a", 0, (6, 7)), RankPlacement(5, "north-b", 0, (0, 1)))
    fields = {
        "run_id": "j.0.1",
        "job_id": "j",
        "unit_index": 0,
        "epoch": 1,
        "tenant": "t",
        "ranks": ranks,
        "world_size": 6,
    }
    return LaunchRequest(**{**fields, "command": ("echo", "it's", "$HOME", "a b"), **more})  # type: ignore[arg-type]


def secret(request: LaunchRequest) -> Manifest:
    job = {"metadata": {"name": "m-j-1", "uid": "u-1"}}
    return order_secret(request, job, SITE, "north", "mark", "/tmp", "10.0.0.1")


def test_the_order_is_what_a_shell_makes_of_it() -> None:
    request = order(env={"GREETING": 'it\'s "$X" `id` $(id)\n2', "MERIDIAN_IMAGE": "python"}, working_dir="/tmp")
    found = secret(request)
    assert found["metadata"]["ownerReferences"][0]["uid"] == "u-1", "it goes with its Job"
    env = found["stringData"]
    assert env["MASTER_ADDR"] == "10.0.0.1"
    assert "MERIDIAN_IMAGE" not in env
    shown = {**env, "PATH": "/usr/bin:/bin", "JOB_COMPLETION_INDEX": "1"}
    done = subprocess.run(["/bin/sh", "-c", SCRIPT], env=shown, capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout == "it's $HOME a b\n"
    shown["MERIDIAN_COMMAND"] = "env"
    done = subprocess.run(["/bin/sh", "-c", SCRIPT], env=shown, capture_output=True, text=True, check=True, timeout=20)
    assert "RANK=5\n" in done.stdout
    assert "MERIDIAN_NODE=north-b\n" in done.stdout
    assert "MERIDIAN_ACCELERATORS=0,1\n" in done.stdout, "as the container sees them"
    assert 'GREETING=it\'s "$X" `id` $(id)\n2\n' in done.stdout


def test_orders_that_cannot_be_given() -> None:
    with pytest.raises(OrderError, match="'a-b' cannot be the name of a variable"):
        secret(order(env={"a-b": "1"}))
    with pytest.raises(OrderError, match="more than the 1048576 bytes"):
        secret(order(env={"A": "x" * 2**20}))


def test_images_of_jobs() -> None:
    assert why_no_image("", ()) == ""
    assert why_no_image("registry.example/a:1", ("registry.example/",)) == ""
    assert why_no_image("other/a", ()).endswith("'other/a' (job_images: none)")


def test_what_only_the_site_knows_is_passed_on() -> None:
    site = replace(
        SITE, run_as_user=1000, host_network=True, priority_class="low", runtime_class="nvidia", service_account="jobs",
        pull_secrets=("pull",), node_selector={"pool": "gpu"}, tolerations=({"key": "gpu", "operator": "Exists"},),
        volume=Volume("/shared", claim="data"), scheduler_name="bin-packing",
    )  # fmt: skip
    (job,) = manifests(Constraints(1), site)
    found = pod(job)
    assert found["containers"][0]["securityContext"]["runAsNonRoot"] is True
    assert found["hostNetwork"] is True
    assert (found["priorityClassName"], found["runtimeClassName"], found["serviceAccountName"]) == (
        "low",
        "nvidia",
        "jobs",
    )
    assert found["nodeSelector"] == {"pool": "gpu"}
    assert found["tolerations"][0] == {"key": "gpu", "operator": "Exists"}
    assert found["schedulerName"] == "bin-packing"
    assert found["volumes"] == [{"name": "shared", "persistentVolumeClaim": {"claimName": "data"}}]
    assert found["containers"][0]["volumeMounts"] == [{"name": "shared", "mountPath": "/shared"}]
