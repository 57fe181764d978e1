"""The outermost layer of HTTP: bodies have a limit, and every answer carries the headers that the request earned."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meridian.errors import MeridianError
from meridian.http import PROBLEM

# A body that is too large is thrown away up to this many times the limit; then the connection is closed on the sender.
_DRAINED = 8


class BodyTooLargeError(MeridianError):
    """The body is larger than this route takes."""

    code = "PAYLOAD_TOO_LARGE"
    status = 413
    title = "Payload too large"


class Edge:
    """ASGI middleware: reads the body up to the route's limit before the application sees the request."""

    def __init__(
        self, app: ASGIApp, max_body_bytes: int, larger: dict[str, int], allowed: Callable[[str], set[str]]
    ) -> None:
        self._app = app
        self._allowed = allowed
        self._max_body_bytes = max_body_bytes
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        scope.setdefault("state", {})["headers"] = headers
        state = scope["state"]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in (state.get("headers") or {}).items():
                    found[name] = value
                found["X-Content-Type-Options"] = "nosniff"
                if message["status"] == 405:
                    found["Allow"] = ", ".join(sorted(self._allowed(scope["path"])))
            await send(message)

        if scope["method"] in {"POST", "PUT", "PATCH", "DELETE"}:
            limit = self._larger.get(scope["path"], self._max_body_bytes)
            try:
                body = await _read(scope, receive, limit)
            except ClientDisconnect:
                # What came may be the beginning of something else: nothing is done with it, and nobody waits for an answer.
                return
            if body is None:
                error = BodyTooLargeError(f"the body is larger than {limit} bytes")
                answer = JSONResponse(
                    error.problem(instance=scope["path"]),
                    status_code=error.status,
                    media_type=PROBLEM,
                    headers={"Connection": "close"},
                )
                await answer(scope, receive, send_with_headers)
                return
            receive = _replay(body, receive)
        await self._app(scope, receive, send_with_headers)


async def _read(scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """The body, or None when it is larger than ``limit``; then it is read to its end, within reason, so that the client
    comes to read the answer. ClientDisconnect when the connection ended before the body."""
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if not declared.isdigit() or int(declared) > _DRAINED * limit:
        return None
    parts: list[bytes] = []
    size = 0
    while size <= _DRAINED * limit:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size <= limit:
            parts.append(part)
        if not message.get("more_body", False):
            break
    return b"".join(parts) if size <= limit else None


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
