"""A headless Chromium driven over its debugging pipe (Chrome DevTools Protocol), enough to look at a page."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    """One page."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = os.fdopen(read, "rb", 0), os.fdopen(write, "wb", 0)
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.problems: list[str] = []

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = self._read.read(65536)
            if not data:
                raise RuntimeError("the browser is gone")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("method") in {"Runtime.exceptionThrown", "Log.entryAdded"}:
                self.problems.append(json.dumps(answer["params"]))
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self._call, method, params)

    async def open(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        found = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            await self.call(f"{domain}.enable")

    async def go(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def evaluate(self, expression: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return found["result"].get("value")

    async def size(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def picture(self, path: Path) -> None:
        found = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def tab(profile: Path) -> AsyncIterator[Tab]:
    """A tab of a fresh browser."""
    assert CHROMIUM is not None
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()

    def connect() -> None:
        # Away from 3 and 4 first: the pipes may have these numbers already.
        commands, answers = os.dup(command_read), os.dup(answer_write)
        os.dup2(commands, 3)
        os.dup2(answers, 4)

    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
        f"--user-data-dir={profile}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        preexec_fn=connect,
        close_fds=False,
    )
    os.close(command_read)
    os.close(answer_write)
    found = Tab(answer_read, command_write)
    try:
        await found.open()
        yield found
    finally:
        process.terminate()
        await process.wait()
