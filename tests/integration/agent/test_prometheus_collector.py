"""Scrapes over real sockets from exporters that answer well, slowly, endlessly or not at all; and real exporters' files."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest

from agent.collectors.device import Device
from agent.collectors.metrics import Metric
from agent.collectors.prometheus import PrometheusCollector
from agent.collectors.table_file import load_table
from meridian.errors import ConfigurationError
from tests.public_data import public_data

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@contextmanager
def _exporter(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                with suppress(OSError):
                    answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
    finally:
        stopping.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


def _page(body: bytes, status: str = "200 OK") -> Callable[[socket.socket], None]:
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda connection: connection.sendall(head + body)


def _drip(connection: socket.socket) -> None:
    """Until the other side has gone."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
    while True:
        connection.sendall(b"#")
        time.sleep(0.05)


def _hang(connection: socket.socket) -> None:
    """Until the other side has gone."""
    while connection.recv(4096):
        pass


def _flood(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        connection.sendall(b"# nothing\n" * 10_000)


def _collector(url: str, deadline_s: float = 60.0) -> PrometheusCollector:
    return PrometheusCollector(
        url, load_table("dcgm-exporter"), "n1", [Device(0)], deadline_s=deadline_s, max_bytes=200_000
    )


def test_a_good_answer_is_read() -> None:
    with _exporter(_page(b'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1"} 50\n')) as url:
        readings = {reading.metric: reading for reading in _collector(url).collect(NOW)}
    assert readings[Metric.GPU_UTILIZATION].value == 0.5


@pytest.mark.parametrize(
    ("answer", "deadline_s", "words"),
    [
        (_page(b"down", "503 Service Unavailable"), 60.0, "status 503"),
        (_drip, 0.4, "no complete answer within 0.4 s"),
        (_hang, 0.4, "no complete answer within 0.4 s"),
        (_flood, 60.0, "exceeds 200000 bytes"),
        (lambda connection: connection.sendall(b"not http\r\n\r\n"), 60.0, ""),
        (_page(b"\xff\xfe\xfa"), 60.0, "not UTF-8"),
    ],
)
def test_an_exporter_that_misbehaves_gives_unknown_by_the_deadline(
    answer: Callable[[socket.socket], None], deadline_s: float, words: str
) -> None:
    with _exporter(answer) as url:
        # Those that are too slow would never come to an end.
        readings = _collector(url, deadline_s).collect(NOW)
    assert readings
    assert all(reading.value is None and words in reading.reason for reading in readings)


def test_an_exporter_that_is_not_there_gives_unknown() -> None:
    with _exporter(_page(b"")) as url:
        pass
    assert all("refused" in reading.reason for reading in _collector(url).collect(NOW))


def test_only_http_is_scraped() -> None:
    with pytest.raises(ConfigurationError, match="not http"):
        _collector("file:///etc/passwd").collect(NOW)


def _scrape_file(name: str, exporter: str, now: datetime) -> dict[tuple[Metric, int | None], tuple[float | None, str]]:
    body = public_data("exposition", name).read_bytes()
    with _exporter(_page(body)) as url:
        readings = PrometheusCollector(url, load_table(exporter), "n1", deadline_s=60.0).collect(now)
    return {(reading.metric, reading.accelerator_index): (reading.value, reading.reason) for reading in readings}


@pytest.mark.external
def test_a_real_dcgm_exporter() -> None:
    found = _scrape_file("dcgm_exporter__l40s_idle_excerpt.prom", "dcgm-exporter", NOW)
    assert found[Metric.POWER, 0] == (35.686, "")
    assert found[Metric.ENERGY, 0] == (pytest.approx(5551899.58), "")
    assert found[Metric.TEMPERATURE, 0] == (32, "")
    assert found[Metric.GPU_UTILIZATION, 0] == (0, "")
    usage, limit = found[Metric.GPU_MEMORY_USAGE, 0][0], found[Metric.GPU_MEMORY_LIMIT, 0][0]
    assert usage is not None
    assert limit is not None
    assert usage < limit
    assert limit == pytest.approx(48e9, rel=0.08), "an L40S has 48 GB"


@pytest.mark.external
def test_dcgms_blank_value_in_its_own_readme_is_not_a_number_to_believe() -> None:
    body = public_data("exposition", "dcgm_exporter__blank_sentinel_from_README.prom").read_text()
    body = body.replace("DCGM_FI_DEV_MEMORY_TEMP{", "DCGM_FI_DEV_GPU_TEMP{")
    with _exporter(_page(body.encode())) as url:
        readings = PrometheusCollector(url, load_table("dcgm-exporter"), "n1", deadline_s=60.0).collect(NOW)
    (temperature,) = [reading for reading in readings if reading.metric is Metric.TEMPERATURE]
    assert (temperature.value, temperature.reason) == (None, "DCGM has no value (blank)")


@pytest.mark.external
def test_a_real_npu_exporter() -> None:
    name = "ascend_npu_exporter__prometheus_metrics.prom"
    stale = _scrape_file(name, "npu-exporter", NOW)
    assert "stale" in stale[Metric.HEALTH, 0][1], "its timestamps are old"
    then = datetime.fromtimestamp(1606402, UTC) + timedelta(seconds=5)
    found = _scrape_file(name, "npu-exporter", then)
    assert {index for _, index in found} == set(range(8))
    assert found[Metric.HEALTH, 7] == (1, "")
    placeholder = "zero, as all that the exporter says of the device: it does not answer"
    assert found[Metric.GPU_UTILIZATION, 0] == (None, placeholder), "without memory, power or temperature"
    assert found[Metric.GPU_MEMORY_LIMIT, 0][0] is None, "a total of zero is a placeholder"
    assert found[Metric.POWER, 0][0] is None


@pytest.mark.external
def test_a_real_node_exporter() -> None:
    body = public_data("exposition", "node_exporter__e2e-output.prom").read_bytes()
    later = body.replace(b'{cpu="0",mode="idle"} 10870.69', b'{cpu="0",mode="idle"} 10880.69')
    pages = [_page(body), _page(later)]

    def next_page(connection: socket.socket) -> None:
        pages.pop(0)(connection)

    with _exporter(next_page) as url:
        collector = PrometheusCollector(url, load_table("node-exporter"), "n1", deadline_s=60.0)
        collector.collect(NOW)
        found = {reading.metric: reading for reading in collector.collect(NOW + timedelta(seconds=10))}
    assert found[Metric.BOOT_TIME].value == 1418183276
    assert found[Metric.MEMORY_LIMIT].value is not None
    assert 0 < (found[Metric.MEMORY_USAGE].value or 0) < found[Metric.MEMORY_LIMIT].value
    assert found[Metric.STORAGE_IO].value == 0, "no disk has moved"
    assert found[Metric.CPU_UTILIZATION].value == 0
    assert found[Metric.STORAGE_FREE].reason == "not exported", "this page has no file systems"


@pytest.mark.external
@pytest.mark.parametrize(
    ("name", "watts", "used_share"),
    [
        ("nvidia_gpu_exporter__linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01__load.prom", 625.68, 0.243),
        ("nvidia_gpu_exporter__linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01__idle.prom", None, None),
        ("nvidia_gpu_exporter__linux-x86_64__nvidia-geforce-rtx-4080-super__595.71.05__load.prom", None, None),
    ],
)
def test_a_real_nvidia_gpu_exporter(name: str, watts: float | None, used_share: float | None) -> None:
    found = _scrape_file(name, "nvidia-gpu-exporter", NOW)
    usage, limit = found[Metric.GPU_MEMORY_USAGE, 0][0], found[Metric.GPU_MEMORY_LIMIT, 0][0]
    assert usage is not None
    assert limit is not None
    assert 0 <= usage < limit
    assert found[Metric.POWER, 0][0] == watts or (watts is None and (found[Metric.POWER, 0][0] or 0) > 0)
    assert used_share is None or usage / limit == pytest.approx(used_share, abs=0.001)
    assert 0 <= (found[Metric.GPU_UTILIZATION, 0][0] or 0) <= 1


@pytest.mark.external
def test_a_real_dcu_exporter() -> None:
    found = _scrape_file("hygon_dcu_exporter__README_sample.prom", "dcu-exporter", NOW)
    assert found[Metric.GPU_MEMORY_LIMIT, 1] == (34342961152, "")
    assert found[Metric.TEMPERATURE, 0] == (46, "")
    assert found[Metric.GPU_UTILIZATION, 0] == (None, "not exported")
