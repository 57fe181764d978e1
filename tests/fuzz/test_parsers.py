"""Spoiled inputs of every parser: none crashes it, and no number comes out that does not stand in the input.

`make test-fuzz` runs 100,000 inputs; the ordinary run takes a few thousand (``MERIDIAN_FUZZ_EXAMPLES``). The oracle is small
and independent of the parsers: it splits lines at blanks and knows by which factors the unit of each metric may differ.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.collectors.base import Reading
from agent.collectors.exposition import ExpositionLimits, parse_exposition
from agent.collectors.metrics import Metric
from agent.collectors.quantities import quantity
from agent.collectors.sensing import sense
from agent.collectors.slurm import gres_counts
from agent.collectors.table_file import read_table
from agent.collectors.unknown import UnknownError
from meridian.errors import ConfigurationError, InvalidArgumentError
from meridian.resource_model import parse_output, resource_from
from tests.fuzz.pages import DOCUMENTS, PAGES

NOW = datetime.fromtimestamp(1777636800, UTC)
EXAMPLES = int(os.environ.get("MERIDIAN_FUZZ_EXAMPLES", "2000"))
PIECES = (
    "{", "}", '"', ",", "=", "\n", "\r", " ", "\t", "\\", "#", "e", "E", "+", "-", ".", "_", "0", "9", "7", "NaN", "+Inf", "-1",
    "1e999", "1e-320", "0x1p3", "1_000", "٣", "\x00", "\u2028", "é", "null", "true", "[", "]", ":", "1777636790000",
    "9223372036854775794", "4294967295", "\ufeff", 'gpu="0"', "# EOF\n", "{}",
)  # fmt: skip
# By what the canonical unit of a metric may differ from an exporter's: percent, MiB, MB, mJ and µJ, mW, MB/s and GB/s.
FACTORS = {
    Metric.GPU_UTILIZATION: (1.0, 0.01),
    Metric.MEMORY_BANDWIDTH_UTILIZATION: (1.0, 0.01),
    Metric.GPU_MEMORY_USAGE: (1.0, 2.0**20, 1e6),
    Metric.GPU_MEMORY_LIMIT: (1.0, 2.0**20, 1e6),
    Metric.POWER: (1.0, 1e-3),
    Metric.ENERGY: (1.0, 1e-3, 1e-6),
    Metric.TEMPERATURE: (1.0,),
    Metric.INTERCONNECT_IO: (1.0, 1e6, 1e9),
    Metric.CPU_LOAD: (1.0,),
    Metric.STORAGE_FREE: (1.0,),
    Metric.MEMORY_USAGE: (1.0, 2.0**20),
    Metric.MEMORY_LIMIT: (1.0, 2.0**20),
    Metric.BOOT_TIME: (1.0,),
    Metric.NET_RTT: (1.0,),
    Metric.QUEUE_DEPTH: (1.0,),
}
# Values of these are no conversion of a number: states, shares of what is allocated, counts of entries.
DERIVED = {Metric.HEALTH: {0.0, 0.5, 1.0}, Metric.CAPACITY_FREE: None}
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:Ki|Mi|Gi|Ti)?")
QUANTITIES = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


@st.composite
def spoiled(draw: st.DrawFn, sound: tuple[str, ...]) -> str:
    """A sound input after one to six changes: pieces put in, cut out, doubled, moved, joined with another input."""
    text = draw(st.sampled_from(sound))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(text), 1)))
        to = min(at + draw(st.integers(0, 40)), len(text))
        match draw(st.integers(0, 7)):
            case 0 | 1:
                text = text[:at] + draw(st.sampled_from(PIECES)) + text[at:]
            case 2:
                text = text[:at] + draw(st.sampled_from(PIECES)) + text[to:]
            case 3:
                text = text[:at] + text[to:]
            case 4:
                text = text[:to] + text[at:to] + text[to:]
            case 5:
                lines = text.split("\n")
                line = lines.pop(at % len(lines))
                lines.insert(to % (len(lines) + 1), line)
                text = "\n".join(lines)
            case 6:
                text += draw(st.sampled_from(sound))
            case _:
                text = text[:at] + draw(st.text(max_size=5)) + text[to:]
    return text


def _fuzz(share: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """This share of all examples."""
    return settings(
        max_examples=max(50, int(EXAMPLES * share)),
        deadline=None,
        database=None,
        derandomize=EXAMPLES <= 2000,
        suppress_health_check=list(HealthCheck),
    )


def _sensed(text: str) -> tuple[Reading, ...]:
    try:
        return sense(text, NOW).readings
    except InvalidArgumentError:
        return ()


def _numbers(text: str) -> set[float]:
    """Every number in a text, with and without what a quantity's suffix makes of it."""
    found = set()
    for item in NUMBER.findall(text):
        suffix = item[-2:] if item[-2:] in QUANTITIES else ""
        try:
            value = float(item.removesuffix(suffix))
        except ValueError:
            continue
        found |= {value, value * QUANTITIES.get(suffix, 1.0)}
    return {value for value in found if math.isfinite(value)}


def _last_columns(text: str, families: Iterable[str]) -> list[float]:
    """The values of lines that name one of the families: the first column behind the labels. A mark of the byte order is none of a name."""
    values = []
    for line in text.removeprefix("\ufeff").split("\n"):
        if not any(line.lstrip(" \t").startswith(family) for family in families):
            continue
        columns = line.rpartition("}")[2].split() if "}" in line else line.split()[1:]
        try:
            values.append(float(columns[0]))
        except (IndexError, ValueError):
            continue
    return values


def _is_made_of(value: float, numbers: Iterable[float], metric: Metric) -> bool:
    held = sorted(set(numbers))[:60]
    combined = {
        sign * a + sign2 * b + c
        for a, b, c in itertools.product([0.0, *held], [0.0, *held], [0.0, *held] if len(held) <= 12 else [0.0])
        for sign, sign2 in ((1, 1), (1, -1), (-1, 1))
    }
    return any(
        math.isclose(value, factor * number, rel_tol=1e-9, abs_tol=1e-12)
        for factor in FACTORS[metric]
        for number in combined
    )


def _check(reading: Reading, numbers: Iterable[float]) -> None:
    if reading.value is None:
        assert reading.reason
        assert reading.kind is not None
        return
    assert math.isfinite(reading.value)
    if reading.metric in DERIVED:
        allowed = DERIVED[reading.metric]
        assert 0 <= reading.value <= 1
        assert allowed is None or reading.value in allowed
        return
    assert _is_made_of(reading.value, numbers, reading.metric), reading


# Of which families the values of a metric may come, whatever the exporter.
FAMILIES = {
    Metric.GPU_UTILIZATION: ("DCGM_FI_DEV_GPU_UTIL", "nvidia_smi_utilization_gpu", "npu_chip_info_utilization", "mlu_utilization", "amd_gpu_gfx", "gpu_gfx", "dcu_utilizationrate", "hw_gpu_utilization", "enflame_gcu_usage"),
    Metric.MEMORY_BANDWIDTH_UTILIZATION: ("DCGM_FI_PROF_DRAM_ACTIVE",),
    Metric.GPU_MEMORY_USAGE: ("DCGM_FI_DEV_FB_USED", "nvidia_smi_memory_used", "npu_chip_info_hbm_used", "mlu_memory_used", "amd_gpu_used_vram", "gpu_used_vram", "dcu_usedmemory", "hw_memory_usage"),
    Metric.GPU_MEMORY_LIMIT: ("DCGM_FI_DEV_FB_", "nvidia_smi_memory_total", "npu_chip_info_hbm_total", "mlu_memory_total", "amd_gpu_total_vram", "gpu_total_vram", "dcu_memorycap", "hw_memory_size"),
    Metric.POWER: ("DCGM_FI_DEV_POWER_USAGE", "nvidia_smi_power_draw", "npu_chip_info_power", "mlu_power_usage", "amd_gpu_package_power", "gpu_package_power", "dcu_power_usage", "hw_power_watts", "enflame_gcu_power_consumption", "mtgpu_power_usage"),
    Metric.ENERGY: ("DCGM_FI_DEV_TOTAL_ENERGY", "amd_gpu_energy", "gpu_energy", "hw_energy_joules"),
    Metric.TEMPERATURE: ("DCGM_FI_DEV_GPU_TEMP", "nvidia_smi_temperature", "npu_chip_info_temperature", "mlu_temperature", "amd_gpu_junction", "gpu_junction", "dcu_temp", "hw_temperature"),
    Metric.INTERCONNECT_IO: ("npu_chip_info_bandwidth_",),
    Metric.CPU_LOAD: ("node_load1",),
    Metric.STORAGE_FREE: ("node_filesystem_avail",),
    Metric.MEMORY_USAGE: ("node_memory_Mem",),
    Metric.MEMORY_LIMIT: ("node_memory_MemTotal",),
    Metric.BOOT_TIME: ("node_boot_time",),
    Metric.NET_RTT: ("probe_icmp",),
    Metric.QUEUE_DEPTH: ("slurm_jobs_pending",),
}  # fmt: skip


@_fuzz(0.55)
@given(text=spoiled(PAGES))
def test_a_spoiled_page_gives_no_number_that_its_families_do_not_have(text: str) -> None:
    for reading in _sensed(text):
        _check(reading, _last_columns(text, FAMILIES.get(reading.metric, ())) if reading.value is not None else ())


@_fuzz(0.2)
@given(text=spoiled(DOCUMENTS))
def test_a_spoiled_document_gives_no_number_that_it_does_not_have(text: str) -> None:
    numbers: set[float] | None = None
    for reading in _sensed(text):
        if reading.value is not None and numbers is None:
            numbers = _numbers(text) | {float(count) for count in range(text.count("PENDING") + 1)}
        _check(reading, numbers or ())


@_fuzz(0.05)
@given(text=spoiled(PAGES), previous=spoiled(PAGES))
def test_two_spoiled_scrapes_in_a_row_give_finite_numbers_in_range(text: str, previous: str) -> None:
    try:
        readings = sense(text, NOW, previous=previous).readings
    except InvalidArgumentError:
        return
    for reading in readings:
        assert reading.value is None or (math.isfinite(reading.value) and reading.value >= -273.15)


@_fuzz(0.05)
@given(text=st.text(max_size=400) | st.binary(max_size=400).map(lambda body: body.decode(errors="replace")))
def test_any_text_is_read_or_refused(text: str) -> None:
    _sensed(text)
    for document in ("{" + text + "}", json.dumps(text), json.dumps({"nodes": [text], "meta": {}})):
        _sensed(document)


@_fuzz(0.03)
@given(text=spoiled(PAGES), lines=st.integers(64, 200), labels=st.integers(1, 4), series=st.integers(1, 12))
def test_limits_hold_whatever_comes(text: str, lines: int, labels: int, series: int) -> None:
    try:
        page = parse_exposition(text, limits=ExpositionLimits(lines, labels, series))
    except UnknownError:
        return
    assert len(page.samples) <= series
    assert all(len(sample.labels) <= labels for sample in page.samples)


TABLE = """exporter: own
vendor: me
detect: ["own_.*"]
prefix: {default: own_, others: [x_own_]}
index_label: [gpu]
identity_labels: [uuid]
sentinels:
  - {from: -1, to: -1, reason: none}
frozen_guard: {counter: own_energy, while_above_zero: hw.gpu.utilization}
memory_sum: {used: own_used, free: own_free, total: own_total}
metrics:
  hw.gpu.utilization:
    - {family: own_util, scale: 0.01, valid: [0, 1]}
  hw.power:
    - {sum_of: [own_power_a, {family: own_power_b, factor: 0.5}], labels: {mode: "a|b"}, kind: gauge, zero: placeholder}
  cpn.health:
    - {family: own_health, enum: {1: 1, 0: 0}}
    - {family: own_errors, steps: [[-1, 1], [0, 0.5]]}
"""


@_fuzz(0.05)
@given(text=spoiled((TABLE,)))
def test_a_spoiled_table_is_read_or_refused_by_name(text: str) -> None:
    refusal = ""
    try:
        assert read_table(text, "own.yaml").metrics
    except ConfigurationError as error:
        refusal = error.detail
    assert not refusal or "own.yaml" in refusal


@_fuzz(0.03)
@given(text=spoiled(("gpu:h100:8(S:0-1),gpu:a100:4,craynetwork:4", "gpu:8", "gpu:tesla:2(IDX:0-1)", "N/A", "")))
def test_a_spoiled_gres_is_counted_or_refused(text: str) -> None:
    try:
        counts = gres_counts(text)
    except UnknownError:
        return
    digits = {int(number) for number in re.findall(r"[0-9]+", text)} | {1}
    for count in counts.values():
        assert count >= 0
        assert any(count % (digit or 1) == 0 for digit in digits)


@_fuzz(0.02)
@given(text=spoiled(("80Gi", "500m", "1e3", "12.5G", "0", "81559Mi")))
def test_a_spoiled_quantity_is_finite_or_none(text: str) -> None:
    found = quantity(text)
    assert found is None or math.isfinite(found)


@_fuzz(0.02)
@given(text=spoiled(("42 unit=seats vendor=acme", "0.5", "3 free words", "1e3\n7\n")))
def test_what_a_command_prints_begins_with_its_amount_or_is_refused(text: str) -> None:
    try:
        value, attributes = parse_output(text)
    except ValueError:
        return
    first = next(line for line in text.splitlines() if line.strip()).split()[0]
    assert value == float(first) >= 0
    assert all(len(item) <= 256 for item in attributes.values())


@_fuzz(0.02)
@given(
    content=st.dictionaries(
        st.sampled_from(["name", "description", "dynamic", "consumable", "shareable", "value", "command", "interval_s", "scope", "x"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.text(max_size=5), max_size=3),
    )
)  # fmt: skip
def test_any_resource_is_sound_or_refused_by_field(content: dict[str, object]) -> None:
    named = True
    try:
        found = resource_from(content)
        assert found.dynamic == bool(found.command)
    except InvalidArgumentError as error:
        named = bool(error.errors)
    assert named


def test_the_oracle_itself_tells_right_from_wrong() -> None:
    reading = next(item for item in _sensed(PAGES[0]) if item.metric is Metric.POWER and item.value is not None)
    _check(reading, [310.5])
    with pytest.raises(AssertionError):
        _check(reading, [310.6])
    with pytest.raises(AssertionError):
        _check(reading, [])
