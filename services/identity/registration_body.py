"""The body of a registration may be large: whose token does not stand gets a little of it read, and no more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqlalchemy.exc import DBAPIError
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from meridian.database import is_passing
from meridian.errors import MeridianError, UnavailableError
from meridian.http import problem_response
from meridian.request_body import read_body
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
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] == PATH and not _is_small(scope):
            error = await self._refusal(scope)
            if error is not None:
                try:
                    # Read on, within reason, so that the client comes to read the answer; nothing is kept.
                    await read_body(scope, receive, SMALL_BYTES)
                except ClientDisconnect:
                    return
                response = problem_response(error, Request(scope))
                response.headers["Connection"] = "close"
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _refusal(self, scope: Scope) -> MeridianError | None:
        try:
            await self._check(bearer(Request(scope).headers.get("authorization")))
        except MeridianError as error:
            return error
        except (DBAPIError, OSError) as error:
            if not is_passing(error):
                raise
            return UnavailableError("a part that is needed does not answer at present")
        return None


def _is_small(scope: Scope) -> bool:
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return bool(declared.isdigit()) and int(declared) <= SMALL_BYTES
