"""Emulated exporters with a known truth: one HTTP server speaks for many nodes, and writes down what was true in each answer.

    python -m bench.exporter_farm --port 9000 --truth FILE --seed 1

``GET /VENDOR/NODE/metrics`` answers in the format of that vendor's exporter, a fresh random state each time. The truth is kept in
canonical units apart from the text, which is written in the vendor's units; what should come out as unknown is null. A share of
the answers has a trap in it: blank values, zeros that stand for nothing, shares that carry percent, MiB in families of bytes,
series that stand twice, a device that is gone, samples with old timestamps, more memory used than there is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

DEVICES = 2
TRAP_SHARE = 0.1
MIB = 2**20
UTIL, USED, LIMIT, POWER, TEMPERATURE, HEALTH, ENERGY, BANDWIDTH = (
    "hw.gpu.utilization", "hw.gpu.memory.usage", "hw.gpu.memory.limit", "hw.power", "hw.temperature", "cpn.health", "hw.energy",
    "cpn.memory.bandwidth_utilization",
)  # fmt: skip
Truth = dict[str, float | None]


@dataclass(slots=True)
class State:
    """One device at one moment, in whole steps of what exporters tell."""

    util_percent: int
    used_mib: int
    total_mib: int
    deci_watts: int
    celsius: int
    energy_mj: int
    bandwidth_percent: int

    def truth(self, *metrics: str) -> Truth:
        """Canonical values of the metrics."""
        known: Truth = {
            UTIL: self.util_percent / 100,
            USED: float(self.used_mib * MIB),
            LIMIT: float(self.total_mib * MIB),
            POWER: self.deci_watts / 10,
            TEMPERATURE: float(self.celsius),
            HEALTH: 1.0,
            ENERGY: self.energy_mj / 1000,
            BANDWIDTH: self.bandwidth_percent / 100,
        }
        return {metric: known[metric] for metric in metrics}


def fresh(dice: random.Random, energy_mj: int) -> State:
    """Another state of a device."""
    total = dice.choice((32_768, 65_536, 81_920))
    return State(
        util_percent=dice.randint(0, 100),
        used_mib=dice.randint(1, total * 9 // 10),
        total_mib=total,
        deci_watts=dice.randint(400, 7000),
        celsius=dice.randint(25, 85),
        energy_mj=energy_mj,
        bandwidth_percent=dice.randint(0, 100),
    )


@dataclass(slots=True)
class Page:
    """An answer: lines, and the truth by device."""

    lines: list[str] = field(default_factory=list)
    truth: dict[int, Truth] = field(default_factory=dict)

    def put(self, family: str, labels: str, value: object) -> None:
        """Add a sample."""
        self.lines.append(f"{family}{{{labels}}} {value}")

    def unknown(self, index: int, *metrics: str) -> None:
        """What should not become a number."""
        for metric in metrics or tuple(self.truth[index]):
            self.truth[index][metric] = None


Vendor = Callable[[Page, int, State, str, int], None]
"""Writes a device: page, index, state, trap (empty: none), time of the answer in milliseconds."""


def dcgm(page: Page, index: int, state: State, trap: str, _now_ms: int) -> None:
    """NVIDIA dcgm-exporter."""
    page.truth[index] = state.truth(UTIL, USED, LIMIT, POWER, TEMPERATURE, HEALTH, ENERGY, BANDWIDTH)
    labels = f'gpu="{index}",UUID="GPU-{index}",modelName="NVIDIA A100-SXM4-80GB"'
    watts = f"{state.deci_watts / 10:.6f}"
    if trap == "blank":
        watts = "140737488355328"
        page.unknown(index, POWER)
    if trap == "twice":
        page.put("DCGM_FI_DEV_GPU_TEMP", labels, state.celsius + 7)
        page.unknown(index, TEMPERATURE)
    util = "9223372036854775794" if trap == "wrong" else state.util_percent
    if trap == "wrong":
        page.unknown(index, UTIL)
    page.put("DCGM_FI_DEV_GPU_UTIL", labels, util)
    page.put("DCGM_FI_DEV_POWER_USAGE", labels, watts)
    page.put("DCGM_FI_DEV_GPU_TEMP", labels, state.celsius)
    page.put("DCGM_FI_DEV_FB_USED", labels, state.used_mib)
    page.put("DCGM_FI_DEV_FB_FREE", labels, state.total_mib - state.used_mib - 600)
    page.put("DCGM_FI_DEV_FB_RESERVED", labels, 600)
    page.put("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", labels, state.energy_mj)
    page.put("DCGM_FI_PROF_DRAM_ACTIVE", labels, f"{state.bandwidth_percent / 100:.6f}")
    page.put("DCGM_FI_DEV_ROW_REMAP_FAILURE", labels, 0)


def smi(page: Page, index: int, state: State, trap: str, _now_ms: int) -> None:
    """nvidia_gpu_exporter."""
    page.truth[index] = state.truth(UTIL, USED, LIMIT, POWER, TEMPERATURE, HEALTH, BANDWIDTH)
    labels = f'uuid="smi-{index}"'
    total, used = state.total_mib * MIB, state.used_mib * MIB
    if trap == "wrong":  # MiB in families of bytes
        total, used = state.total_mib, state.used_mib
        page.unknown(index, USED, LIMIT)
    if trap == "blank":
        page.unknown(index, POWER)
    if trap == "twice":
        page.put("nvidia_smi_temperature_gpu", labels, state.celsius + 7)
        page.unknown(index, TEMPERATURE)
    page.put("nvidia_smi_index", labels, index)
    page.put("nvidia_smi_utilization_gpu_ratio", labels, state.util_percent / 100)
    page.put("nvidia_smi_utilization_memory_ratio", labels, state.bandwidth_percent / 100)
    page.put("nvidia_smi_memory_used_bytes", labels, f"{used:.9e}")
    page.put("nvidia_smi_memory_total_bytes", labels, f"{total:.9e}")
    page.put("nvidia_smi_power_draw_watts", labels, "NaN" if trap == "blank" else state.deci_watts / 10)
    page.put("nvidia_smi_temperature_gpu", labels, state.celsius)
    page.put("nvidia_smi_remapped_rows_failure", labels, 0)


def npu(page: Page, index: int, state: State, trap: str, now_ms: int) -> None:
    """Ascend npu-exporter, with timestamps."""
    page.truth[index] = state.truth(UTIL, USED, LIMIT, POWER, TEMPERATURE, HEALTH)
    labels = f'id="{index}",model_name="910B3",vdie_id="V{index}"'
    stamp, watts, used = now_ms, str(state.deci_watts / 10), state.used_mib
    if trap == "twice":  # old samples
        stamp = now_ms - 900_000
        page.unknown(index)
    elif trap == "blank":
        watts = "0"
        page.unknown(index, POWER)
    elif trap == "wrong":
        used = state.total_mib + 4096
        page.unknown(index, USED, LIMIT)
    for family, value in (
        ("utilization", state.util_percent), ("hbm_used_memory", used), ("hbm_total_memory", state.total_mib),
        ("power", watts), ("temperature", state.celsius), ("health_status", 1),
    ):  # fmt: skip
        page.put(f"npu_chip_info_{family}", labels, f"{value} {stamp}")


def mlu(page: Page, index: int, state: State, trap: str, _now_ms: int) -> None:
    """Cambricon mlu-exporter."""
    page.truth[index] = state.truth(UTIL, USED, LIMIT, POWER, TEMPERATURE, HEALTH)
    labels = f'mlu="{index}",sn="s{index}",uuid="u{index}",model="MLU590"'
    free = (state.total_mib - state.used_mib) * MIB
    if trap == "wrong":  # used and free do not make the total
        free //= 3
        # A tenth may be the driver's own reserve, which this exporter need not tell.
        if free + state.used_mib * MIB < 0.9 * state.total_mib * MIB:
            page.unknown(index, USED, LIMIT)
    if trap == "blank":
        page.unknown(index, POWER)
    if trap == "twice":
        page.put("mlu_temperature", labels, state.celsius + 7)
        page.unknown(index, TEMPERATURE)
    page.put("mlu_utilization", labels, state.util_percent)
    page.put("mlu_memory_used", labels, state.used_mib * MIB)
    page.put("mlu_memory_free", labels, free)
    page.put("mlu_memory_total", labels, state.total_mib * MIB)
    page.put("mlu_power_usage", labels, 0 if trap == "blank" else state.deci_watts / 10)
    page.put("mlu_temperature", labels, state.celsius)
    page.put("mlu_health", labels, 1)


def amd(page: Page, index: int, state: State, trap: str, _now_ms: int) -> None:
    """AMD device-metrics-exporter with the prefix that many deployments set."""
    page.truth[index] = state.truth(UTIL, USED, LIMIT, POWER, TEMPERATURE, HEALTH, ENERGY, BANDWIDTH)
    labels = f'gpu_id="{index}",gpu_partition_id="0",gpu_compute_partition_type="spx",serial_number="S{index}"'
    util, watts = str(state.util_percent), str(state.deci_watts / 10)
    if trap == "blank":
        util = "65535"
        page.unknown(index, UTIL)
    if trap == "wrong":  # a secondary partition
        labels = labels.replace('partition_id="0"', 'partition_id="1"').replace("spx", "cpx")
        util = watts = "0"
        page.unknown(index, UTIL, POWER)
    if trap == "twice":
        page.put("amd_gpu_junction_temperature", labels, state.celsius + 7)
        page.unknown(index, TEMPERATURE)
    for family, value in (
        ("gfx_activity", util), ("umc_activity", state.bandwidth_percent), ("used_vram", state.used_mib),
        ("total_vram", state.total_mib), ("package_power", watts), ("junction_temperature", state.celsius),
        ("energy_consumed", state.energy_mj * 1000), ("health", 1),
    ):  # fmt: skip
        page.put(f"amd_gpu_{family}", labels, value)


def dcu(page: Page, index: int, state: State, trap: str, _now_ms: int) -> None:
    """Hygon dcu-exporter."""
    page.truth[index] = state.truth(UTIL, USED, LIMIT, POWER, TEMPERATURE, HEALTH)
    labels = f'device_id="T{index}",minor_number="{index}",name="K100"'
    util: float = state.util_percent
    if trap == "wrong":
        util = 100 + state.util_percent + 1
        page.unknown(index, UTIL)
    if trap == "blank":
        page.unknown(index, POWER)
    if trap == "twice":
        page.put("dcu_temp", labels, state.celsius + 7)
        page.unknown(index, TEMPERATURE)
    page.put("dcu_utilizationrate", labels, util)
    page.put("dcu_usedmemory_bytes", labels, f"{state.used_mib * MIB:.10e}")
    page.put("dcu_memorycap_bytes", labels, f"{state.total_mib * MIB:.10e}")
    page.put("dcu_power_usage", labels, "NaN" if trap == "blank" else state.deci_watts / 10)
    page.put("dcu_temp", labels, state.celsius)
    page.put("dcu_ue_count", labels, 0)


def xpum(page: Page, index: int, state: State, trap: str, _now_ms: int) -> None:
    """Intel xpumd."""
    page.truth[index] = state.truth(UTIL, USED, LIMIT, POWER, TEMPERATURE, ENERGY)
    labels = f'pci_bdf="0000:0{index}:00.0"'
    used = state.used_mib * MIB
    if trap == "wrong":  # MiB in a family of bytes
        used = min(state.used_mib, 60_000)
        page.unknown(index, USED)
    if trap == "blank":
        page.unknown(index, POWER)
    if trap == "twice":
        page.put("hw_memory_size_bytes", f'{labels},hw_memory_location="device"', 12345678)
        page.unknown(index, LIMIT)
    page.put("hw_gpu_info", f'{labels},hw_model="Max 1550"', 1)
    page.put("hw_gpu_utilization_ratio", f'{labels},hw_gpu_task="all"', state.util_percent / 100)
    page.put("hw_memory_usage_bytes", f'{labels},hw_memory_location="device"', used)
    page.put("hw_memory_size_bytes", f'{labels},hw_memory_location="device"', state.total_mib * MIB)
    page.put(
        "hw_power_watts", f'{labels},hw_sensor_location="package"', "NaN" if trap == "blank" else state.deci_watts / 10
    )
    page.put("hw_energy_joules_total", f'{labels},hw_sensor_location="package"', state.energy_mj / 1000)
    page.put("hw_temperature_celsius", f'{labels},hw_sensor_location="gpu",statistic="max"', state.celsius)


# Name of the vendor: what writes its pages, and the table that reads them.
VENDORS: dict[str, tuple[Vendor, str]] = {
    "dcgm": (dcgm, "dcgm-exporter"),
    "smi": (smi, "nvidia-gpu-exporter"),
    "npu": (npu, "npu-exporter"),
    "mlu": (mlu, "mlu-exporter"),
    "amd": (amd, "amd-metrics-exporter"),
    "dcu": (dcu, "dcu-exporter"),
    "xpum": (xpum, "xpumd"),
}


class Farm:
    """Answers for all nodes; the truth goes to ``truth`` as lines of JSON: node, time, vendor, trap, truth by device."""

    def __init__(self, seed: int, truth: TextIO) -> None:
        self._seed = seed
        self._truth = truth
        self._energy_mj: dict[tuple[str, int], int] = {}
        self._dice: dict[str, random.Random] = {}

    def page(self, vendor: str, node: str, now_s: float) -> str:
        """The next answer of a node."""
        dice = self._dice.setdefault(node, random.Random(f"{self._seed}/{node}"))
        page, write = Page(), VENDORS[vendor][0]
        traps = []
        for index in range(DEVICES):
            trap = dice.choice(("blank", "wrong", "twice", "gone")) if dice.random() < TRAP_SHARE else ""
            # A gone device moves the numbers of those that are told by their order only.
            if trap == "gone" and (vendor == "xpum" or index != DEVICES - 1):
                trap = "blank"
            self._energy_mj[node, index] = self._energy_mj.get((node, index), 10**9) + dice.randint(1, 10**7)
            state = fresh(dice, self._energy_mj[node, index])
            traps.append(trap)
            if trap == "gone":
                kept = len(page.lines)
                write(page, index, state, "", int(now_s * 1000))
                del page.lines[kept:]
                page.unknown(index)
            else:
                write(page, index, state, trap, int(now_s * 1000))
        entry = {"node": node, "at": now_s, "vendor": vendor, "traps": traps, "truth": page.truth}
        self._truth.write(json.dumps(entry) + "\n")
        self._truth.flush()
        return "\n".join(page.lines) + "\n"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request on one connection."""
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            _, vendor, node, _ = request.split(b" ", 2)[1].decode().split("/")
            body = self.page(vendor, node, time.time()).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        except (ValueError, KeyError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def serve(port: int, truth: Path, seed: int) -> None:
    """Answer until the process ends."""
    with truth.open("w") as log:
        server = await asyncio.start_server(Farm(seed, log).answer, "127.0.0.1", port, backlog=1024)
        async with server:
            await server.serve_forever()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.exporter_farm", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.truth, options.seed))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
