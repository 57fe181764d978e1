"""The outermost layer of HTTP: bodies have a limit, and every answer carries the headers that the request earned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meridian.request_body import read_body, refused_unread, replayed, too_large


class Edge:
    """ASGI middleware: reads the body up to the route's limit before the application sees the request.

    Of routes with a ``larger`` limit a body above ``max_body_bytes`` is only read when ``check`` does not raise for the Authorization
    header of the request.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_body_bytes: int,
        larger: dict[str, int],
        allowed: Callable[[str], set[str]],
        check: Callable[[str | None], Awaitable[object]],
    ) -> None:
        self._app = app
        self._check = check
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
            small = self._max_body_bytes
            if limit > small and await refused_unread(scope, receive, send_with_headers, self._check, small):
                return
            try:
                body = await read_body(scope, receive, limit)
            except ClientDisconnect:
                # What came may be the beginning of something else: nothing is done with it, and nobody waits for an answer.
                return
            if body is None:
                answer = too_large(scope, limit)
                await answer(scope, receive, send_with_headers)
                return
            receive = replayed(body, receive)
        await self._app(scope, receive, send_with_headers)
