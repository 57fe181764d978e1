"""Sound inputs that the fuzzers spoil: pages of every kind of exporter and documents of Slurm and Kubernetes, made by hand."""

from __future__ import annotations

import json

PAGES = (
    """# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-aa",modelName="NVIDIA A100-SXM4-80GB"} 55
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-bb",modelName="NVIDIA A100-SXM4-80GB"} 12
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-aa"} 30123
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-aa"} 50377
DCGM_FI_DEV_FB_RESERVED{gpu="0",UUID="GPU-aa"} 1059
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-aa"} 310.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-bb"} 9223372036854775794
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-aa"} 5551899580
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-aa"} 61
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-aa"} 0.131
DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0",UUID="GPU-aa"} 0
""",
    """nvidia_smi_index{uuid="df6e"} 0
nvidia_smi_utilization_gpu_ratio{uuid="df6e"} 0.42
nvidia_smi_memory_used_bytes{uuid="df6e"} 7.06740224e+08
nvidia_smi_memory_free_bytes{uuid="df6e"} 7.8e+09
nvidia_smi_memory_total_bytes{uuid="df6e"} 8.506740224e+09
nvidia_smi_power_draw_watts{uuid="df6e"} 28.07
nvidia_smi_temperature_gpu{uuid="df6e"} 34
""",
    """npu_chip_info_utilization{id="0",model_name="910B3",vdie_id="V0",pcie_bus_info="0000:61:00.0"} 37 1777636790000
npu_chip_info_hbm_used_memory{id="0",model_name="910B3",vdie_id="V0"} 3412 1777636790000
npu_chip_info_hbm_total_memory{id="0",model_name="910B3",vdie_id="V0"} 65536 1777636790000
npu_chip_info_power{id="0",model_name="910B3",vdie_id="V0"} 94.5 1777636790000
npu_chip_info_health_status{id="0",model_name="910B3",vdie_id="V0"} 1 1777636790000
npu_chip_info_temperature{id="0",model_name="910B3",vdie_id="V0"} 41 1777636790000
npu_chip_info_bandwidth_rx{id="0",model_name="910B3",vdie_id="V0"} 12.25 1777636790000
npu_chip_info_bandwidth_tx{id="0",model_name="910B3",vdie_id="V0"} 7.75 1777636790000
""",
    """mlu_utilization{mlu="0",sn="s1",uuid="u1",model="MLU590",vf=""} 40
mlu_memory_used{mlu="0",sn="s1",uuid="u1",model="MLU590"} 20971520000
mlu_memory_total{mlu="0",sn="s1",uuid="u1",model="MLU590"} 51539607552
mlu_power_usage{mlu="0",sn="s1",uuid="u1",model="MLU590",vf=""} 233
mlu_temperature{mlu="0",sn="s1",uuid="u1",model="MLU590"} 52
mlu_health{mlu="0",sn="s1",uuid="u1",model="MLU590"} 1
""",
    """amd_gpu_gfx_activity{gpu_id="0",gpu_partition_id="0",gpu_compute_partition_type="cpx",serial_number="S"} 83
amd_gpu_gfx_activity{gpu_id="1",gpu_partition_id="1",gpu_compute_partition_type="cpx",serial_number="S"} 0
amd_gpu_used_vram{gpu_id="0",gpu_partition_id="0",serial_number="S"} 4096
amd_gpu_total_vram{gpu_id="0",gpu_partition_id="0",serial_number="S"} 196592
amd_gpu_package_power{gpu_id="0",gpu_partition_id="0",serial_number="S"} 640
amd_gpu_energy_consumed{gpu_id="0",gpu_partition_id="0",serial_number="S"} 1234567890123
amd_gpu_junction_temperature{gpu_id="0",gpu_partition_id="0",serial_number="S"} 71
""",
    """dcu_utilizationrate{device_id="T8",minor_number="0",name="K100"} 18.5
dcu_memorycap_bytes{device_id="T8",minor_number="0",name="K100"} 3.4342961152e+10
dcu_usedmemory_bytes{device_id="T8",minor_number="0",name="K100"} 1.2e+10
dcu_power_usage{device_id="T8",minor_number="0",name="K100"} 211
dcu_temp{device_id="T8",minor_number="0",name="K100"} 46
""",
    """hw_gpu_info{pci_bdf="0000:05:00.0",hw_model="Data Center GPU Max 1550"} 1
hw_gpu_utilization_ratio{pci_bdf="0000:05:00.0",hw_gpu_task="all"} 0.625
hw_memory_usage_bytes{pci_bdf="0000:05:00.0",hw_memory_location="device"} 8589934592
hw_memory_size_bytes{pci_bdf="0000:05:00.0",hw_memory_location="device"} 68719476736
hw_power_watts{pci_bdf="0000:05:00.0",hw_sensor_location="package"} 330
hw_energy_joules_total{pci_bdf="0000:05:00.0",hw_sensor_location="package"} 51234.5
hw_temperature_celsius{pci_bdf="0000:05:00.0",hw_sensor_location="gpu",statistic="max"} 48
""",
    """node_load1 0.21
node_memory_MemTotal_bytes 3.831959552e+09
node_memory_MemAvailable_bytes 2.1e+09
node_filesystem_avail_bytes{mountpoint="/",fstype="ext4",device="/dev/sda1"} 5.5e+10
node_boot_time_seconds 1.418183276e+09
node_cpu_seconds_total{cpu="0",mode="idle"} 10870.69
""",
    """enflame_gcu_usage{minor_number="0",uuid="e",name="S60"} 71
enflame_gcu_power_consumption{minor_number="0",uuid="e",name="S60"} 245
enflame_gcu_health{minor_number="0",uuid="e",name="S60"} 2
mtgpu_power_usage_milliwatts{index="0",uuid="m"} 245000
probe_icmp_duration_seconds{phase="rtt"} 0.0123
slurm_jobs_pending_total 17
""",
)

_SLURM_NODE = {
    "name": "cs1", "state": ["IDLE", "DRAIN"], "cpus": 64, "alloc_cpus": 4, "real_memory": 500000, "boot_time": 1671873827,
    "free_memory": {"set": True, "infinite": False, "number": 337330},
    "gres": "gpu:h100:8(S:0-1)", "gres_used": "gpu:h100:3(IDX:0-2)",
}  # fmt: skip
_SLICE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "spec": {
        "driver": "gpu.nvidia.com",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 2, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {"uuid": {"string": "GPU-aa"}, "productName": {"string": "NVIDIA H100"}},
                "capacity": {"memory": {"value": "80Gi"}},
            },
            {"name": "gpu-1", "capacity": {"memory": {"value": "81559Mi"}}, "taints": [{"effect": "NoSchedule"}]},
        ],
    },
}
_SLURM_ROW = {
    "node": {"state": ["MIXED"]},
    "nodes": {"total": 1, "nodes": ["c2"]},
    "cpus": {"allocated": 16, "total": 64, "minimum": 64, "maximum": 64},
    "memory": {
        "minimum": 515000,
        "maximum": 515000,
        "free": {bound: {"set": True, "infinite": False, "number": 337330} for bound in ("minimum", "maximum")},
    },
    "gres": {"total": "gpu:h100:8(S:0-1)", "used": "gpu:h100:3(IDX:0-2)"},
}
_CLAIM = {
    "kind": "ResourceClaim",
    "status": {"allocation": {"devices": {"results": [{"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}]}}},
}
DOCUMENTS = tuple(
    json.dumps(document, indent=1)
    for document in (
        {"meta": {}, "errors": [], "nodes": [_SLURM_NODE]},
        {"meta": {}, "errors": [], "sinfo": [_SLURM_ROW]},
        {"meta": {}, "jobs": [{"job_id": 1, "job_state": ["PENDING"]}, {"job_id": 2, "job_state": "RUNNING"}]},
        {"statistics": {"jobs_pending": 17, "req_time": {"set": True, "infinite": False, "number": 1777636700}}},
        {"kind": "List", "items": [_SLICE, _CLAIM]},
        [
            {
                "Desc": 'Desc{fqName: "power_usage", help: "w", constLabels: {}, variableLabels: [mlu uuid]}',
                "Metric": {"label": [{"name": "mlu", "value": "0"}], "gauge": {"value": 30}},
            },
            {
                "Desc": 'Desc{fqName: "utilization", help: "%", constLabels: {}, variableLabels: [mlu uuid]}',
                "Metric": {"label": [{"name": "mlu", "value": "0"}], "gauge": {"value": 11}},
            },
        ],
        {
            "status": "success",
            "data": {
                "resultType": "vector",
                "result": [
                    {"metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "0"}, "value": [1777636790.5, "310.5"]}
                ],
            },
        },
    )
)
