"""Spoiled tables, files and messages of the bus: what is taken has numbers that stand there, the rest is refused by name."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from pydantic import ValidationError

from agent.collectors.base import Reading
from agent.collectors.exposition import parse_exposition
from agent.collectors.metrics import Metric
from agent.collectors.sensing import CLUSTER, sense
from agent.collectors.unknown import UnknownError
from agent.contract_messages import inventory
from agent.settings import read_settings
from meridian.cli.resource_commands import resources_in
from meridian.contracts.resource.v1 import resource_pb2 as pb
from meridian.errors import ConfigurationError, InvalidArgumentError
from meridian.hardware import Catalogue, standard
from meridian.hardware.catalogue import InvalidCatalogueError
from meridian.hardware.chip import QUANTITIES
from meridian.resource_model import resource_from
from services.graph.facts import DomainFacts
from services.telemetry.index.matrix import InvalidMatrixError, read_matrix
from services.telemetry.index_api import ProbeResult
from services.telemetry.metric_catalogue import METRICS
from services.telemetry.reading_check import Limits
from services.telemetry.report_check import check_report
from tests.fuzz.spoiling import FEWER, spoiled, spoiled_bytes

AT = datetime.fromtimestamp(1777636800, UTC)
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
THOUSANDS = re.compile(
    r'(?<![\d.])[1-9]\d{0,2}(?:[ \u00a0\u2009\u202f]\d{3})+(?:\.\d*)?|"\s*[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?'
)
"""A throughput may have its thousands separated: by spaces, or by commas between quotes."""

OPENMETRICS = (
    """# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0"} 310.5 1777636790.5
http_seconds_bucket{le="0.5"} 17 1777636790 # {trace_id="a b"} 0.31 1777636789.1
http_seconds_bucket{le="+Inf"} 18 # {trace_id="}"} 0.9
# EOF
""",
    'a_total 3.0 1520879607.789 # {id="x"} 0.67\n# EOF\n',
    'plain{a="\\"b\\n"} 5 1777636790000\n',
)
KUBE_STATE = (
    """kube_node_status_allocatable{node="n1",resource="nvidia_com_gpu",unit="integer"} 8
kube_node_status_allocatable{node="n2",resource="nvidia_com_gpu",unit="integer"} 4
kube_node_status_condition{node="n1",condition="Ready",status="true"} 1
kube_pod_status_phase{namespace="a",pod="p",uid="1",phase="Running"} 1
kube_pod_status_phase{namespace="a",pod="q",uid="2",phase="Pending"} 1
kube_pod_container_resource_requests{namespace="a",pod="p",uid="1",node="n1",resource="nvidia_com_gpu"} 3
kube_pod_container_resource_requests{namespace="a",pod="q",uid="2",node="n2",resource="nvidia_com_gpu"} 2
""",
)
MATRIX = (
    (
        "chip,task,throughput,precision,n_accel,group\nA100-SXM4-80GB,resnet50,1234.5,fp16,8,lambda\n"
        "H100-SXM5-80GB,resnet50,2345.25,fp16,8,lambda\nV100,bert,17,,1,\n"
    ),
    '"chip","task","throughput"\n"A100","a, b",3e3\n',
    'chip,task,throughput\nA100,resnet50,1 234.5\nV100,resnet50,"2,345"\n',
)
CHIPS = (
    (
        "id,vendor,name,year,form,bf16_tflops,mem_gb,mem_gbps,tdp_w,aliases,evidence_tier,source\n"
        "own-1,me,Own One,2024,pcie,123.5,48,900,350,own one;own-one,estimated,a page\n"
    ),
    "name,fp16_tflops,scaleup_gbps\nMine,55,450\n",
)
RESOURCES = (
    (
        "resources:\n  - name: licences\n    value: 20\n    shareable: true\n    scope: ['domain:beijing']\n"
        "  - name: scratch\n    dynamic: true\n    command: /opt/free.sh --all\n    interval_s: 30\n"
    ),
    "name: fpga\nvalue: 2\nscope: n1\n",
)
AGENT = (
    (
        "domain:\n  domain_id: beijing\n  name: Beijing\n  region: north\n  owner: me\n  nodes:\n"
        "    - node_id: n1\n      cpus: 8\n      memory_bytes: 34359738368\n"
        "      accelerators: [{vendor: nvidia, model: H100, count: 2, memory_bytes: 85899345920}]\n"
        "      exporters: [{url: 'http://127.0.0.1:9400/metrics', table: dcgm-exporter, interval_s: 15}]\n"
        "kafka_bootstrap_servers: 127.0.0.1:9092\nidentity_url: ''\ndata_dir: /srv/meridian\nhttp_port: 4100\n"
    ),
)
PROBE = (
    json.dumps(
        {
            "run_id": "r", "chip": "A100", "measured_at": "2026-11-22T01:42:01Z", "software": "torch 2",
            "results": [{"task": "gemm", "precision": "bf16", "throughput": 3.5, "unit": "FLOP/s", "n_accel": 2}],
        }
    ),
)  # fmt: skip


def _numbers(text: str) -> set[float]:
    found = set()
    for item in NUMBER.findall(text.replace("_", "")):
        with suppress(ValueError, OverflowError):
            found |= {float(item), float(item.lstrip("+-"))}
    return found


def _near(value: float, numbers: Iterable[float]) -> bool:
    return any(math.isclose(value, number, rel_tol=1e-9) for number in numbers)


def _small(folder: Path) -> Catalogue:
    """Three chips: names are looked for in all of them."""
    path = folder / "known.csv"
    path.write_text(
        "id,name,bf16_tflops\na100,A100-SXM4-80GB,312\nh100,H100-SXM5-80GB,989\nv100,V100,112\n", encoding="utf-8"
    )
    return Catalogue({}, {}).with_chips(path)


def test_a_spoiled_page_of_openmetrics_has_the_values_that_stand_behind_the_labels() -> None:
    for text in spoiled(OPENMETRICS):
        try:
            page = parse_exposition(text)
        except UnknownError:
            continue
        columns = set()
        for line in text.split("\n"):
            # An exemplar stands behind the value; what stands before it ends with the labels, whatever is in them.
            for place in (0, *(found.end() for found in re.finditer(r"[} \t]", line))):
                word = line[place:].split(None, 1)[:1]
                with suppress(ValueError):
                    columns |= {float(item) for item in word}
        for sample in page.samples:
            assert math.isnan(sample.value) or sample.value in columns, (text, sample)
            stamps = columns | {column / 1000 for column in columns}
            assert sample.timestamp_s is None or sample.timestamp_s in stamps, (text, sample)


def test_a_spoiled_page_of_kube_state_has_shares_of_what_it_lists() -> None:
    for text in spoiled(KUBE_STATE, FEWER):
        try:
            readings = sense(text, AT).readings
        except InvalidArgumentError:
            continue
        for reading in readings:
            _check_kube(reading, text)


def _check_kube(reading: Reading, text: str) -> None:
    if reading.value is None:
        assert reading.kind is not None
        return
    match reading.metric:
        case Metric.CAPACITY_FREE:
            assert 0 <= reading.value <= 1
        case Metric.HEALTH:
            assert reading.value in {0.0, 0.5, 1.0}
        case Metric.QUEUE_DEPTH:
            assert reading.node_id == CLUSTER
            assert reading.value in range(text.count("Pending") + 1)


def test_a_spoiled_matrix_has_throughputs_that_stand_there(tmp_path: Path) -> None:
    path, catalogue, refusals = tmp_path / "matrix.csv", _small(tmp_path), set()
    for text in spoiled(MATRIX):
        path.write_text(text, encoding="utf-8")
        try:
            matrix = read_matrix(path, catalogue)
        except InvalidMatrixError as error:
            refusals.add(str(error))
            continue
        numbers = _numbers(text) | {float(re.sub(r"[^\d.]", "", item)) for item in THOUSANDS.findall(text)}
        assert all(run.throughput in numbers and run.column.n_accel > 0 for run in matrix.runs), text
    assert refusals
    assert all("matrix.csv" in refusal for refusal in refusals)


def test_a_spoiled_list_of_chips_has_facts_that_stand_there(tmp_path: Path) -> None:
    path, catalogue, refusals = tmp_path / "chips.csv", _small(tmp_path), set()
    own = {chip.id for chip in catalogue}
    factors = {name: factor for name, _, factor in QUANTITIES.values()}
    for text in spoiled(CHIPS):
        path.write_text(text, encoding="utf-8")
        try:
            found = catalogue.with_chips(path)
        except InvalidCatalogueError as error:
            refusals.add(str(error))
            continue
        numbers = _numbers(text)
        for chip in found:
            if chip.id in own:
                continue
            assert chip.year is None or chip.year in numbers, text
            for name, fact in chip.facts.items():
                # A published scale-up figure counts both directions.
                values = [statement.value / factors[name] for statement in fact.statements]
                assert all(_near(value, numbers | {number / 2 for number in numbers}) for value in values), text
    assert refusals
    assert all("chips.csv" in refusal for refusal in refusals)


def test_a_spoiled_file_of_resources_is_sound_or_refused() -> None:
    for text in spoiled(RESOURCES, FEWER):
        file = io.StringIO(text)
        file.name = "resources.yaml"
        try:
            found = [resource_from(item) for item in resources_in(file)]
        except InvalidArgumentError:
            continue
        for item in found:
            assert item.value is None or 0 <= item.value <= 1e15
            assert item.dynamic == bool(item.command)


def test_a_spoiled_file_of_an_agent_is_sound_or_refused(tmp_path: Path) -> None:
    path, refusals = tmp_path / "agent.yaml", set()
    for text in spoiled(AGENT, FEWER):
        path.write_text(text, encoding="utf-8")
        try:
            settings = read_settings(path)
        except ConfigurationError as error:
            refusals.add(str(error))
            continue
        # What was taken can be told to others.
        told = inventory(settings, {}, "").ByteSize()
        assert told > 0
        for node in settings.domain.nodes:
            assert math.isfinite(node.cpus)
            assert node.cpus >= 0 <= node.memory_bytes
            assert all(group.count > 0 <= group.memory_bytes for group in node.accelerators)
    assert refusals
    assert all("agent.yaml" in refusal for refusal in refusals)


def test_a_spoiled_result_of_a_probe_is_sound_or_refused() -> None:
    for text in spoiled(PROBE):
        try:
            found = ProbeResult.model_validate_json(text)
        except ValidationError:
            continue
        numbers = _numbers(text)
        assert all(value.throughput in numbers and value.throughput > 0 for value in found.results), text


def _report() -> bytes:
    report = pb.ResourceReported(domain_id="beijing", agent_id="a", incarnation=3)
    report.reported_at.FromDatetime(AT)
    chips = [pb.Accelerator(index=index, vendor="nvidia", model="H100", memory_bytes=80 << 30) for index in range(2)]
    report.inventory.domain_id = "beijing"
    report.inventory.nodes.add(node_id="n1", cpus=8, memory_bytes=32 << 30, accelerators=chips)
    report.inventory.links.add(from_domain_id="beijing", to_domain_id="shanghai", rtt_s=0.02)
    for metric, value, unit in (("hw.gpu.utilization", 0.5, "1"), ("hw.power", 310.5, "W"), ("cpn.health", 1.0, "1")):
        item = report.readings.add(node_id="n1", accelerator_index=0, metric=metric, value=value, unit=unit)
        item.observed_at.FromDatetime(AT)
    part = report.readings.add(node_id="n1", accelerator_index=1, metric="hw.gpu.memory.usage", value=5, unit="GiBy")
    part.part.id, part.part.profile = "7", "1g.10gb"
    part.observed_at.FromDatetime(AT)
    unknown = report.readings.add(node_id="n1", accelerator_index=1, metric="hw.power", unit="W", reason="x")
    unknown.observed_at.FromDatetime(AT)
    return report.SerializeToString()


def test_a_spoiled_report_gives_readings_in_range_of_devices_that_are_listed() -> None:
    limits = Limits(5.0, 3, 86400.0)
    now_s = AT.timestamp()
    for body in spoiled_bytes([_report()]):
        try:
            report = pb.ResourceReported.FromString(body)
        except DecodeError:
            continue
        verdict = check_report(report, {}, {}, None, now_s, limits, 60.0)
        if verdict.observation is None:
            continue
        nodes = {
            node.node_id: {item.index for item in node.accelerators} for node in verdict.observation.inventory.nodes
        }
        for reading in verdict.observation.readings:
            spec = METRICS[reading.metric]
            assert not reading.node_id or reading.node_id in nodes
            assert not reading.HasField("accelerator_index") or reading.accelerator_index in nodes[reading.node_id]
            assert not reading.HasField("value") or spec.minimum <= reading.value <= spec.maximum
        facts = DomainFacts(report.domain_id)
        facts.observe(verdict.observation, now_s)
        for node in verdict.observation.inventory.nodes:
            signals = facts.signals(node, now_s)
            assert signals.accelerator_utilization is None or 0 <= signals.accelerator_utilization <= 1


@pytest.mark.parametrize("text", ["[" * 20_000, "a: " + "[" * 20_000, "\x00", "!!python/object:os.system x", "? [a]\n: b", "a: 2026-13-45", "a: !!int x"])  # fmt: skip
def test_yaml_that_cannot_be_read_is_refused_by_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"agent\.yaml"):
        read_settings(path)
    file = io.StringIO(text)
    file.name = "resources.yaml"
    with pytest.raises(InvalidArgumentError, match=r"resources\.yaml"):
        resources_in(file)


@pytest.mark.parametrize("body", [b"\xff\xfe\xff", b"chip,task,throughput\nname\n" + b"x" * 200_000])
def test_files_that_are_no_text_of_theirs_are_refused_by_name(body: bytes, tmp_path: Path) -> None:
    for name in ("agent.yaml", "chips.csv", "matrix.csv"):
        (tmp_path / name).write_bytes(body)
    with pytest.raises(ConfigurationError, match=r"agent\.yaml"):
        read_settings(tmp_path / "agent.yaml")
    with pytest.raises(InvalidCatalogueError, match=r"chips\.csv"):
        standard().with_chips(tmp_path / "chips.csv")
    with pytest.raises(InvalidMatrixError, match=r"matrix\.csv"):
        read_matrix(tmp_path / "matrix.csv", standard())


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("      cpus: .inf\n", "domain.nodes.0.cpus"),
        ("      cpus: .nan\n", "domain.nodes.0.cpus"),
        ("      memory_bytes: 9999999999999999999\n", "domain.nodes.0.memory_bytes"),
        ("      exporters: [{url: x, table: t, interval_s: .inf}]\n", "domain.nodes.0.exporters.0.interval_s"),
    ],
)
def test_an_amount_that_cannot_be_told_is_refused_with_its_field(line: str, field: str, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(
        "domain:\n  domain_id: d\n  nodes:\n    - node_id: n1\n" + line + "kafka_bootstrap_servers: x\ndata_dir: .\n"
    )
    with pytest.raises(ConfigurationError, match=field):
        read_settings(path)


@pytest.mark.parametrize("field", ["join_token_path", "data_dir", "shared_dir", "checkpoint_dir"])
@pytest.mark.parametrize("folder", ['"a\\0b"', '"a\\uD800b"', "loop/x"])
def test_a_path_that_cannot_be_is_refused_with_its_field(field: str, folder: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    paths = {"data_dir": "."} | {field: folder.replace("loop", str(tmp_path / "loop"))}
    path = tmp_path / "agent.yaml"
    path.write_text(
        "domain: {domain_id: d, nodes: [{node_id: n1}]}\nkafka_bootstrap_servers: x\n"
        + "".join(f"{name}: {value}\n" for name, value in paths.items())
    )
    with pytest.raises(ConfigurationError, match=rf"agent\.yaml: {field}: .*is no path"):
        read_settings(path)


@pytest.mark.parametrize("cells", ["2024,1e300", "2024,nan", "2024,-3", "202e94,123", "2024.7,123", "20,123"])
def test_a_figure_that_cannot_be_is_refused_with_its_column(cells: str, tmp_path: Path) -> None:
    path = tmp_path / "chips.csv"
    path.write_text(f"id,year,bf16_tflops\nown,{cells}\n", encoding="utf-8")
    with pytest.raises(InvalidCatalogueError, match=r"chips\.csv, line 2, (year|bf16_tflops)"):
        standard().with_chips(path)
