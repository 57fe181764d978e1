"""The built-in page in a real browser: it signs in, shows the network and the jobs, and follows the events."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.run.v1 import run_pb2
from tests.integration.gateway.browser import CHROMIUM, tab
from tests.integration.gateway.conftest import Stack, image
from tests.integration.gateway.test_jobs import eventually, placed, run_event, submit

FLEET = [
    ("beijing", 8, 8, "Ascend 910B"),
    ("shanghai", 6, 8, "H100"),
    ("guangzhou", 4, 4, "MLU370"),
    ("chengdu", 3, 0, ""),
]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
async def test_the_page_shows_what_happens(stack: Stack, tmp_path: Path) -> None:
    await stack.bus.publish(*(image(name, nodes=n, accelerators=a, model=model) for name, n, a, model in FLEET))
    jobs = [await submit(stack, name=f"train-{number}") for number in range(3)]
    await stack.bus.publish(placed(jobs[0]))
    await stack.bus.publish(run_event(run_pb2.RunProgress, jobs[0], step=40, total_steps=100))
    stack.issuer.answers["POST", "/v1/tokens"] = (
        200, {"access_token": stack.issuer.token(), "token_type": "Bearer", "expires_in": 600},
    )  # fmt: skip
    async with tab(tmp_path / "profile") as page:

        async def text(selector: str) -> str:
            return str(await page.evaluate(f"document.querySelector('{selector}').innerText"))

        await page.size(1400, 1250)
        await page.go(stack.service.base_url)
        await eventually(lambda: page.evaluate("document.readyState"), lambda state: state == "complete")
        assert await page.evaluate("document.getElementById('page').hidden") is True
        await page.evaluate(
            "document.getElementById('client').value = 'app'; document.getElementById('secret').value = 's';"
            "document.getElementById('enter').requestSubmit()"
        )
        await eventually(lambda: text("#link"), lambda found: found == "live")
        await eventually(lambda: text("#domains"), lambda found: "Chengdu" in found)
        await eventually(lambda: text("#jobs"), lambda found: "train-2" in found and "40 %" in found)
        await eventually(lambda: text("#incidents"), lambda found: "Nothing has failed." in found)

        failed = failover_pb2.NodeFailed(domain_id="beijing", node_id="beijing-3", incident_id="i", reason="silent")
        failed.at.GetCurrentTime()
        state = graph_pb2.NodeStateChanged(
            domain_id="beijing", node_id="beijing-3", state=graph_pb2.NODE_STATE_FAILED, reason="declared dead"
        )
        state.changed_at.GetCurrentTime()
        await stack.bus.publish(failed, state)
        await eventually(lambda: text("#events"), lambda found: "NodeFailed" in found)
        await eventually(lambda: text("#incidents"), lambda found: "beijing-3" in found)
        await eventually(lambda: text("#nodes"), lambda found: "declared dead" in found)
        pictures = Path(os.environ.get("MERIDIAN_PICTURES", tmp_path))
        await page.picture(pictures / "status-wide.png")
        await page.size(390, 1900)
        assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth") is True
        await page.picture(pictures / "status-phone.png")
        await page.evaluate("document.getElementById('leave').click()")
        assert await page.evaluate("sessionStorage.length") == 0
        assert page.problems == []
