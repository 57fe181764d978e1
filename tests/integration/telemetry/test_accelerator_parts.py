"""MIG instances that an exporter tells: seen beside their accelerator, and in the inventory the devices that take work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from meridian.contracts.telemetry.v1.telemetry_pb2 import ObservationRecorded
from tests.harness import environment
from tests.integration.agent.agent_process import agent_running, configuration, short_directory


def page() -> str:
    """Two instances of accelerator 0, as dcgm-exporter writes them."""
    lines = []
    for part, profile, busy, used_mib, free_mib in (
        (7, "1g.10gb", 0.25, 1024, 8192),
        (3, "3g.40gb", 0.75, 4096, 36864),
    ):
        labels = f'gpu="0",UUID="GPU-1",modelName="NVIDIA H100 80GB HBM3",GPU_I_ID="{part}",GPU_I_PROFILE="{profile}"'
        lines += [
            f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels}}} {busy}",
            f"DCGM_FI_DEV_FB_USED{{{labels}}} {used_mib}",
            f"DCGM_FI_DEV_FB_FREE{{{labels}}} {free_mib}",
            f"DCGM_FI_DEV_FB_TOTAL{{{labels}}} {used_mib + free_mib}",
            f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 250",
        ]
    return "\n".join(lines) + "\n"


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = page().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def exporter() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()
        thread.join(5)


async def test_instances_are_told_beside_their_accelerator(database_url: str) -> None:
    async with environment(database_url) as stack, stack.service("telemetry") as telemetry:
        with exporter() as url, short_directory() as directory:
            settings = configuration(directory, stack.bootstrap_servers, scraping={"interval_s": 0.5})
            settings["domain"]["nodes"][0]["exporters"] = [{"url": url, "table": "dcgm-exporter"}]
            async with agent_running(settings, directory):
                observed = await stack.bus.expect(
                    ObservationRecorded,
                    lambda event: any(item.part.memory_bytes for item in event.readings),
                )
        params = {"node": "north-1", "metric": "hw.gpu.utilization"}
        items = (await telemetry.http.get("/v1/observations", params=params)).json()["items"]
    first, *others = observed.inventory.nodes[0].accelerators
    assert first.partitioned
    assert [(part.id, part.profile, part.index) for part in first.parts] == [("3", "3g.40gb", 35), ("7", "1g.10gb", 39)]
    assert not any(item.partitioned for item in others)
    assert not [issue for issue in observed.issues if "#" in issue.metric]
    of_first = [(item["part"], item["value"]) for item in items if item["accelerator_index"] == 0]
    gib = 1 << 30
    assert ({"id": "7", "profile": "1g.10gb", "memory_bytes": 9 * gib}, 0.25) in of_first
    assert ({"id": "3", "profile": "3g.40gb", "memory_bytes": 40 * gib}, 0.75) in of_first
    assert len([part for part, _ in of_first if part is None]) == 1
