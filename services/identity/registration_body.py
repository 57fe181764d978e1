"""The body of a registration may be large: whose token does not stand gets a little of it read, and no more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from meridian.request_body import refused_unread
from services.identity.api_registration import bearer

PATH = "/v1/registrations"
SMALL_BYTES = 256 * 1024
"""Of a domain of some tens of nodes."""


class TokenFirst:
    """ASGI middleware: before it reads a body of more than `SMALL_BYTES`, or of a length that is not said, ``check`` is asked about
    the bearer token, and the error it raises is the answer."""

    def __init__(self, app: ASGIApp, check: Callable[[str], Awaitable[None]]) -> None:
        self._app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] == PATH
        if asked and await refused_unread(scope, receive, send, self._check_header, SMALL_BYTES):
            return
        await self._app(scope, receive, send)

    async def _check_header(self, authorization: str | None) -> None:
        await self._check(bearer(authorization))
