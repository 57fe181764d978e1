"""Slurm's and Kubernetes' JSON, and kube-state-metrics: hand-written documents with hand-counted results."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.collectors.metrics import Metric
from agent.collectors.quantities import quantity
from agent.collectors.sensing import sense
from agent.collectors.slurm import gpus_of, gres_counts
from agent.collectors.unknown import UnknownError, UnknownKind
from meridian.errors import InvalidArgumentError

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
Values = dict[tuple[str, int | None, Metric], tuple[float | None, UnknownKind | None]]


def _read(document: Any) -> Values:
    text = document if isinstance(document, str) else json.dumps(document)
    return {
        (item.node_id, item.accelerator_index, item.metric): (item.value, item.kind)
        for item in sense(text, NOW).readings
        if item.kind is not UnknownKind.NOT_EXPORTED
    }


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("gpu:h100:8(S:0-1)", {("gpu", "h100"): 8}),
        ("gpu:8", {("gpu", ""): 8}),
        ("gpu", {("gpu", ""): 1}),
        ("gpu:a100:2,gpu:h100:4(IDX:0,2-4),craynetwork:4", {("gpu", "a100"): 2, ("gpu", "h100"): 4, ("craynetwork", ""): 4}),
        ("bandwidth:lustre:4K", {("bandwidth", "lustre"): 4096}),
        # As in the example of slurm.conf(5), and without a type.
        ("gpu:tesla:2,bandwidth:lustre:no_consume:4G", {("gpu", "tesla"): 2, ("bandwidth", "lustre"): 4 * 2**30}),
        ("gpu:NO_CONSUME:2(S:0)", {("gpu", ""): 2}),
        ("scratch:2T", {("scratch", ""): 2 * 2**40}),
        ("", {}),
        ("N/A", {}),
        (None, {}),
    ],
)  # fmt: skip
def test_gres_strings(text: str | None, counts: dict[tuple[str, str], int]) -> None:
    assert gres_counts(text) == counts


@pytest.mark.parametrize("text", ["gpu:h100:8(S:0-1", "gpu:8;gpu:4", 8, "gpu::", ",,", [], {}])
def test_what_is_no_gres_is_refused(text: object) -> None:
    with pytest.raises(UnknownError):
        gpus_of(text)


def _node(**fields: Any) -> dict[str, Any]:
    node = {"name": "c1", "state": "mixed", "cpus": 64, "alloc_cpus": 16, "real_memory": 1000, "free_memory": 400}
    return {"meta": {}, "errors": [], "nodes": [{**node, **fields}]}


@pytest.mark.parametrize(
    ("fields", "metric", "expected"),
    [
        ({}, Metric.CAPACITY_FREE, (0.75, None)),
        ({"gres": "gpu:h100:8(S:0-1)", "gres_used": "gpu:h100:3(IDX:0-2)"}, Metric.CAPACITY_FREE, (0.625, None)),
        ({"gres": "gpu:8", "gres_used": "gpu:9"}, Metric.CAPACITY_FREE, (None, UnknownKind.INCONSISTENT)),
        ({"alloc_cpus": 65}, Metric.CAPACITY_FREE, (None, UnknownKind.INCONSISTENT)),
        ({}, Metric.MEMORY_LIMIT, (1000 * 2**20, None)),
        ({}, Metric.MEMORY_USAGE, (600 * 2**20, None)),
        ({"free_memory": {"set": True, "infinite": False, "number": 250}}, Metric.MEMORY_USAGE, (750 * 2**20, None)),
        ({"free_memory": 0}, Metric.MEMORY_USAGE, (None, UnknownKind.PLACEHOLDER)),
        ({"free_memory": 4294967294}, Metric.MEMORY_USAGE, (None, UnknownKind.SENTINEL)),
        ({"real_memory": 18446744073709551614}, Metric.MEMORY_LIMIT, (None, UnknownKind.SENTINEL)),
        ({"free_memory": {"set": True, "infinite": True, "number": 0}}, Metric.MEMORY_USAGE, (None, UnknownKind.NOT_A_NUMBER)),
        ({"state": ["IDLE", "DRAIN"]}, Metric.HEALTH, (0.5, None)),
        ({"state": "down*"}, Metric.HEALTH, (0, None)),
        ({"state": ["IDLE"]}, Metric.HEALTH, (1, None)),
        ({"state": "sideways"}, Metric.HEALTH, (None, UnknownKind.UNKNOWN_STATE)),
    ],
)  # fmt: skip
def test_a_node_of_slurm(
    fields: dict[str, Any], metric: Metric, expected: tuple[float | None, UnknownKind | None]
) -> None:
    assert _read(_node(**fields))["c1", None, metric] == expected


def test_the_queue_of_slurm() -> None:
    jobs = [
        {"job_state": "PENDING"},
        {"job_state": ["PENDING"]},
        {"job_state": "RUNNING"},
        {"job_state": ["COMPLETED"]},
    ]
    assert _read({"meta": {}, "jobs": jobs})["cluster", None, Metric.QUEUE_DEPTH] == (2, None)
    stamp = {"set": True, "infinite": False, "number": 1739832148}
    statistics = {"jobs_pending": 17, "req_time": stamp, "bf_active": False}
    (reading,) = [
        item for item in sense(json.dumps({"statistics": statistics}), NOW).readings if item.value is not None
    ]
    assert (reading.value, reading.observed_at.timestamp()) == (17, 1739832148)
    # Where Slurm says when it counted, the figure is as old as that, not as the question.
    counted = {**statistics, "job_states_ts": {**stamp, "number": 1739832121}}
    (reading,) = [item for item in sense(json.dumps({"statistics": counted}), NOW).readings if item.value is not None]
    assert reading.observed_at.timestamp() == 1739832121


@pytest.mark.parametrize(
    ("text", "value"),
    [("80Gi", 80 * 2**30), ("81559Mi", 81559 * 2**20), ("500m", 0.5), ("1e3", 1000.0), ("12.5G", 12.5e9), ("0", 0.0),
     ("80GB", None), ("Gi", None), ("٣Gi", None), (80, 80.0), (True, None), (None, None)],
)  # fmt: skip
def test_quantities(text: object, value: float | None) -> None:
    assert quantity(text) == value


def _slice(generation: int, names: list[str], count: int = 1, **device: Any) -> dict[str, Any]:
    devices = [{"name": name, "capacity": {"memory": {"value": "80Gi"}}, **device} for name in names]
    pool = {"name": "p", "generation": generation, "resourceSliceCount": count}
    return {"kind": "ResourceSlice", "spec": {"driver": "gpu.x", "nodeName": "n1", "pool": pool, "devices": devices}}


def _claim(device: str) -> dict[str, Any]:
    results = [{"driver": "gpu.x", "pool": "p", "device": device}]
    return {"kind": "ResourceClaim", "status": {"allocation": {"devices": {"results": results}}}}


def _mig(name: str, parent: str, profile: str, memory: str) -> dict[str, Any]:
    attributes = {"type": {"string": "mig"}, "uuid": {"string": f"MIG-{name}"}, "parentUUID": {"string": parent}, "profile": {"string": profile}}  # fmt: skip
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}}


def test_mig_devices_of_a_slice_are_parts_of_one_accelerator_and_not_accelerators() -> None:
    whole = {"name": "gpu-1", "attributes": {"uuid": {"string": "GPU-bb"}}, "capacity": {"memory": {"value": "80Gi"}}}
    small, large = (
        _mig("gpu-0-mig-7", "GPU-aa", "1g.10gb", "9728Mi"),
        _mig("gpu-0-mig-2", "GPU-aa", "3g.40gb", "40448Mi"),
    )
    both = _mig("gpu-1-mig-1", "GPU-bb", "1g.10gb", "9728Mi")
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    devices = [small, large, whole, both]
    part = {"kind": "ResourceSlice", "spec": {"driver": "gpu.x", "nodeName": "n1", "pool": pool, "devices": devices}}
    results = [{"driver": "gpu.x", "pool": "n1", "device": name} for name in ("gpu-0-mig-7", "gpu-1-mig-1")]
    claim = {"kind": "ResourceClaim", "status": {"allocation": {"devices": {"results": results}}}}
    found = sense(json.dumps({"kind": "List", "items": [part, claim]}), NOW).readings
    free = {
        (item.accelerator_index, item.partition, item.profile): item.value
        for item in found
        if item.metric is Metric.CAPACITY_FREE and item.accelerator_index is not None
    }
    assert free == {
        (0, "gpu-0-mig-7", "1g.10gb"): 0.0,
        (0, "gpu-0-mig-2", "3g.40gb"): 1.0,
        (1, "", ""): 0.0,
        (1, "gpu-1-mig-1", "1g.10gb"): 0.0,
    }
    memory = {item.partition: item.value for item in found if item.metric is Metric.GPU_MEMORY_LIMIT and item.value}
    assert memory == {
        "gpu-0-mig-7": 9728 * 2**20,
        "gpu-0-mig-2": 40448 * 2**20,
        "": 80 * 2**30,
        "gpu-1-mig-1": 9728 * 2**20,
    }


def test_resource_slices() -> None:
    found = _read({"kind": "List", "items": [_slice(2, ["a", "b"]), _slice(1, ["old"]), _claim("b")]})
    assert found["n1", 0, Metric.GPU_MEMORY_LIMIT] == (80 * 2**30, None)
    assert found["n1", 0, Metric.CAPACITY_FREE] == (1, None)
    assert found["n1", 1, Metric.CAPACITY_FREE] == (0, None)
    assert {index for _, index, _ in found} <= {0, 1, None}, "an older generation of the pool is gone"
    alone = _read(_slice(1, ["a"]))
    assert alone["n1", 0, Metric.CAPACITY_FREE] == (None, UnknownKind.NO_REFERENCE)
    tainted = _read(_slice(1, ["a"], taints=[{"effect": "NoExecute"}]))
    assert tainted["n1", 0, Metric.HEALTH] == (0, None)
    parted = _read(_slice(3, ["a"], count=2))
    assert parted["n1", 0, Metric.GPU_MEMORY_LIMIT] == (None, UnknownKind.INCONSISTENT), "the pool is not complete"


def test_kube_state_metrics_counts_only_pods_that_live() -> None:
    def pod(name: str, phase: str, gpus: int) -> str:
        who = f'namespace="d",pod="{name}",uid="{name}"'
        return (
            f'kube_pod_status_phase{{{who},phase="{phase}"}} 1\nkube_pod_status_phase{{{who},phase="Other"}} 0\n'
            f'kube_pod_container_resource_requests{{{who},node="n1",resource="nvidia_com_gpu",unit="integer"}} {gpus}\n'
            f'kube_pod_container_resource_requests{{{who},node="n1",resource="cpu",unit="core"}} 4\n'
        )

    text = (
        'kube_node_status_allocatable{node="n1",resource="nvidia_com_gpu",unit="integer"} 8\n'
        'kube_node_status_allocatable{node="n1",resource="cpu",unit="core"} 64\n'
        'kube_node_status_condition{node="n1",condition="Ready",status="true"} 1\n'
        'kube_node_status_condition{node="n2",condition="Ready",status="unknown"} 1\n'
        + pod("a", "Running", 2) + pod("b", "Succeeded", 4) + pod("c", "Pending", 1)
    )  # fmt: skip
    found = _read(text)
    assert found["n1", None, Metric.CAPACITY_FREE] == (0.625, None)
    assert found["n1", None, Metric.HEALTH] == (1, None)
    assert found["n2", None, Metric.HEALTH] == (None, UnknownKind.UNKNOWN_STATE)
    assert found["cluster", None, Metric.QUEUE_DEPTH] == (1, None)


@pytest.mark.parametrize(("ready", "cordoned", "health"), [("true", 0, 1), ("true", 1, 0.5), ("false", 1, 0)])
def test_a_cordoned_node_is_as_one_that_slurm_drains(ready: str, cordoned: int, health: float) -> None:
    text = (
        f'kube_node_status_condition{{node="n1",condition="Ready",status="{ready}"}} 1\n'
        f'kube_node_spec_unschedulable{{node="n1"}} {cordoned}\nkube_node_spec_unschedulable{{node="n2"}} 1\n'
    )
    assert _read(text)["n1", None, Metric.HEALTH] == (health, None)


def test_memory_and_cores_of_accelerators_are_not_counted_as_accelerators() -> None:
    """Of a node with eight DCUs (or Ascends), one of them in use, as the plugins that share them name its resources."""

    def amounts(family: str, labels: str, given: dict[str, int]) -> str:
        return "".join(f'{family}{{{labels},node="n1",resource="{name}"}} {count}\n' for name, count in given.items())

    pod = 'namespace="d",pod="a",uid="a"'
    has = {"hygon_com_dcunum": 8, "hygon_com_dcumem": 512, "hygon_com_dcucores": 800}
    asks = {"hygon_com_dcunum": 1, "hygon_com_dcumem": 32, "hygon_com_dcucores": 60}
    ascend_has = {"huawei_com_Ascend910B": 8}
    ascend_asks = {"huawei_com_Ascend910B": 1, "huawei_com_Ascend910B_memory": 4096}
    for there, asked in ((has, asks), (ascend_has, ascend_asks)):
        text = (
            amounts("kube_node_status_allocatable", 'unit="integer"', there)
            + f'kube_pod_status_phase{{{pod},phase="Running"}} 1\n'
            + amounts("kube_pod_container_resource_requests", pod, asked)
        )
        assert _read(text)["n1", None, Metric.CAPACITY_FREE] == (0.875, None)


@pytest.mark.parametrize(
    ("gres", "used", "free"),
    [
        # A type that is not given, as Slurm 21.08 writes it.
        ("gpu:8(S:0-1)", "gpu:(null):2(IDX:0,2)", 0.75),
        ("gpu:8(S:0-1)", "gpu:(null):0(IDX:N/A)", 1),
        # Shares of accelerators: a quarter of them is taken; one of four whole, and an eighth of all in shares.
        ("gpu:a100:8,shard:a100:64(S:0-1)", "gpu:a100:0(IDX:N/A),shard:a100:16(8/8,8/8,0/8,0/8,0/8,0/8,0/8,0/8)", 0.75),
        ("gpu:tesla:4,mps:tesla:400", "gpu:tesla:1(IDX:0),mps:tesla:50(IDX:1)", 0.625),
        ("hpu:gaudi2:8", "hpu:gaudi2:8(IDX:0-7)", 0),
    ],
)
def test_what_slurm_has_given_of_a_nodes_accelerators(gres: str, used: str, free: float) -> None:
    node = {"name": "n1", "state": ["MIXED"], "cpus": 128, "alloc_cpus": 64, "gres": gres, "gres_used": used}
    found = _read(json.dumps({"nodes": [node], "meta": {}, "errors": []}))
    assert found["n1", None, Metric.CAPACITY_FREE] == (free, None)


def test_memory_that_nobody_configured_in_slurm_is_not_known() -> None:
    # slurm.conf(5): RealMemory, "the default value is 1".
    node = {"name": "n1", "state": ["IDLE"], "cpus": 8, "alloc_cpus": 0, "real_memory": 1, "free_memory": 227}
    found = _read(json.dumps({"nodes": [node], "meta": {}, "errors": []}))
    assert found["n1", None, Metric.MEMORY_LIMIT] == (None, UnknownKind.PLACEHOLDER)
    assert found["n1", None, Metric.MEMORY_USAGE] == (None, UnknownKind.PLACEHOLDER)


@pytest.mark.parametrize(
    "resource",
    [
        "google_com_tpu", "habana_ai_gaudi", "amd_com_cpx_nps4", "cambricon_com_mlu370", "nvidia_com_gpu_shared",
        "iluvatar_ai_vgpu", "rebellions_ai_ATOM", "furiosa_ai_rngd", "kunlunxin_com_xpu", "gpu_intel_com_xe",
    ],
)  # fmt: skip
def test_accelerators_by_the_names_of_their_plugins(resource: str) -> None:
    text = (
        f'kube_node_status_allocatable{{node="n1",resource="{resource}"}} 4\n'
        'kube_pod_status_phase{namespace="d",pod="a",uid="a",phase="Running"} 1\n'
        f'kube_pod_container_resource_requests{{namespace="d",pod="a",uid="a",node="n1",resource="{resource}"}} 1\n'
    )
    assert _read(text)["n1", None, Metric.CAPACITY_FREE] == (0.75, None)


def test_a_sample_with_a_time_that_is_no_number_does_not_hide_the_others() -> None:
    def dumped(index: int, stamp: str) -> str:
        labels = f'[{{"name": "id", "value": "{index}"}}]'
        metric = f'{{"label": {labels}, "gauge": {{"value": 300}}, "timestamp_ms": {stamp}}}'
        return f'{{"Desc": "Desc{{fqName: \\"npu_chip_info_power\\"", "Metric": {metric}}}'

    def queried(index: int, stamp: str) -> str:
        metric = f'{{"__name__": "npu_chip_info_power", "id": "{index}"}}'
        return f'{{"metric": {metric}, "value": [{stamp}, "300"]}}'

    at_s = NOW.timestamp()
    answer = f"{queried(0, 'NaN')}, {queried(1, str(at_s))}"
    for text in (
        f"[{dumped(0, 'NaN')}, {dumped(1, str(1000 * at_s))}]",
        f'{{"data": {{"resultType": "vector", "result": [{answer}]}}}}',
    ):
        found = {
            item.accelerator_index: item.value for item in sense(text, NOW).readings if item.metric is Metric.POWER
        }
        assert found == {1: 300}


def test_a_dump_of_metrics_is_read_as_the_page_would_be() -> None:
    def dumped(family: str, value: float) -> dict[str, Any]:
        labels = [{"name": "mlu", "value": "0"}, {"name": "uuid", "value": "u"}]
        return {"Desc": f'Desc{{fqName: "{family}", help: ""}}', "Metric": {"label": labels, "gauge": {"value": value}}}

    found = _read([dumped("power_usage", 233), dumped("utilization", 40), dumped("temperature", 52)])
    assert found["node", 0, Metric.POWER] == (233, None)
    assert found["node", 0, Metric.GPU_UTILIZATION] == (0.4, None)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"nodes": 3}', '{"a": 1, "a": 2}', "what is this\n", "[" * 100_000])
def test_what_is_of_no_known_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        sense(text, NOW)


def test_a_table_that_is_named_and_has_nothing_to_read_is_refused() -> None:
    page = 'npu_chip_info_power{id="0"} 300\n'
    assert sense(page, NOW, vendor="Ascend").sources == (("npu-exporter", "Huawei"),)
    with pytest.raises(InvalidArgumentError, match="dcgm-exporter"):
        sense(page, NOW, vendor="nvidia")


def test_an_exporter_whose_families_say_nothing_of_the_metrics_is_shown_all_the_same() -> None:
    sensed = sense('DCGM_FI_DEV_MEMORY_TEMP{gpu="0",UUID="G"} 9223372036854775794\n', NOW)
    assert {item.kind for item in sensed.readings} == {UnknownKind.NOT_EXPORTED}
    assert [(family, kind) for family, _, kind, _ in sensed.set_aside] == [
        ("DCGM_FI_DEV_MEMORY_TEMP", UnknownKind.SENTINEL)
    ]


def _row(nodes: list[str], used: str = "gpu:l40s:1(IDX:0)", allocated: int = 8, **fields: Any) -> dict[str, Any]:
    """A row of ``sinfo --json`` since Slurm 23.02: sums and bounds over nodes that are alike."""
    free = {bound: {"set": True, "infinite": False, "number": 400} for bound in ("minimum", "maximum")}
    row = {
        "cluster": "c", "partition": {"name": "gpu"}, "node": {"state": ["MIXED"]},
        "nodes": {"allocated": 0, "idle": 0, "other": 0, "total": len(nodes), "nodes": nodes},
        "cpus": {"allocated": allocated, "total": 64 * len(nodes), "minimum": 64, "maximum": 64},
        "memory": {"minimum": 1000, "maximum": 1000, "free": free, "allocated": 0},
        "gres": {"total": "tmpsize:7T,gpu:l40s:4(S:0-1)", "used": used},
    }  # fmt: skip
    return {**row, **fields}


def _rows(*rows: Any) -> Values:
    return _read({"errors": [], "warnings": [], "meta": {}, "sinfo": list(rows)})


def test_sinfo_since_slurm_23_02_tells_of_nodes_by_rows() -> None:
    found = _rows(
        _row(["c1"]), _row(["c1"], partition={"name": "all"}), _row(["c2"], node={"state": ["IDLE", "DRAIN"]})
    )
    assert {node for node, _, _ in found} == {"c1", "c2"}
    assert found["c1", None, Metric.CAPACITY_FREE] == (0.75, None)
    assert found["c1", None, Metric.MEMORY_LIMIT] == (1000 * 2**20, None)
    assert found["c1", None, Metric.MEMORY_USAGE] == (600 * 2**20, None)
    assert found["c1", None, Metric.HEALTH] == (1, None)
    assert found["c2", None, Metric.HEALTH] == (0.5, None)
    without = _rows(_row(["c1"], allocated=16, gres={"total": "", "used": ""}))
    assert without["c1", None, Metric.CAPACITY_FREE] == (0.75, None), "of processors where there are no accelerators"


def test_what_sinfo_tells_of_several_nodes_together_is_not_guessed_for_each() -> None:
    free = {"minimum": {"set": True, "number": 300}, "maximum": {"set": True, "number": 500}}
    together = _rows(_row(["c1", "c2"], memory={"minimum": 1000, "maximum": 1000, "free": free}))
    for node in ("c1", "c2"):
        assert together[node, None, Metric.CAPACITY_FREE] == (None, UnknownKind.NO_REFERENCE)
        assert together[node, None, Metric.MEMORY_LIMIT] == (1000 * 2**20, None), "the same of all"
        assert together[node, None, Metric.MEMORY_USAGE] == (None, UnknownKind.NO_REFERENCE)
        assert together[node, None, Metric.HEALTH] == (1, None)
    idle = _rows(_row(["c1", "c2"], used="gpu:l40s:0(IDX:N/A)", allocated=0))
    assert idle["c2", None, Metric.CAPACITY_FREE] == (1, None), "who has no processor has no accelerator"
    # A row of its own says more of a node than one that it shares, in whatever order they come.
    both = _rows(_row(["c1", "c2"]), _row(["c2"], used="gpu:l40s:3(IDX:0-2)"))
    assert both["c2", None, Metric.CAPACITY_FREE] == (0.25, None)
    assert both["c1", None, Metric.CAPACITY_FREE] == (None, UnknownKind.NO_REFERENCE)


@pytest.mark.parametrize(
    "row", [{}, "c1", None, {"nodes": {"nodes": []}}, {"nodes": {"nodes": [7, ""]}}, {"nodes": {"nodes": ["c[1-2]"]}}]
)
def test_a_row_of_sinfo_without_nodes_is_told_and_costs_only_itself(row: Any) -> None:
    found = _rows(row, _row(["c9"]))
    assert found["c9", None, Metric.HEALTH] == (1, None)
    assert found["sinfo[0]", None, Metric.HEALTH] == (None, UnknownKind.UNKNOWN_DEVICE)
    bare = _rows({"nodes": {"nodes": ["c1"]}})
    assert {value for (node, _, _), (value, _) in bare.items() if node == "c1"} <= {None}


@pytest.mark.parametrize(
    ("state", "health"),
    [
        (["IDLE", "NO_RESPOND"], 0),
        (["IDLE", "NOT_RESPONDING"], 0),
        (["IDLE", "INVALID_REG"], 0.5),
        (["MIXED", "POWERING_DOWN"], 1),
        ("inval", 0.5),
        (["IDLE", "CLOUD", "POWERED_DOWN"], 1),
    ],
)
def test_flags_beside_a_good_state_count(state: object, health: float) -> None:
    assert _read(_node(state=state))["c1", None, Metric.HEALTH] == (health, None)


@pytest.mark.parametrize("used", ["", "N/A", "(null)", None])
def test_a_node_that_does_not_say_what_is_used_has_not_all_of_it_free(used: str | None) -> None:
    found = _read(_node(gres="gpu:h100:8", gres_used=used))
    assert found.get(("c1", None, Metric.CAPACITY_FREE), (None, None))[0] is None
    idle = _read(_node(gres="gpu:h100:8", gres_used=used, alloc_cpus=0))
    assert idle["c1", None, Metric.CAPACITY_FREE] == (1, None), "who has no processor has no accelerator"


def test_a_controller_that_does_not_answer_has_no_empty_queue() -> None:
    error = {"description": "", "error_number": 1001, "error": "Unable to contact slurm controller (connect failure)"}
    found = _read({"meta": {}, "errors": [error], "jobs": []})
    assert found["cluster", None, Metric.QUEUE_DEPTH] == (None, UnknownKind.UNAVAILABLE)
    warned = _read({"meta": {}, "errors": [], "warnings": [{"description": "x"}], "jobs": []})
    assert warned["cluster", None, Metric.QUEUE_DEPTH] == (0, None)
