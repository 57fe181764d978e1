"""Bodies of requests are read whole, up to a limit, before the application sees them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from sqlalchemy.exc import DBAPIError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meridian.database import is_passing
from meridian.errors import MeridianError, UnavailableError
from meridian.http import PROBLEM, problem_response

# A body that is too large is thrown away up to this many times the limit; then the connection is closed on the sender.
_DRAINED = 8


class BodyTooLargeError(MeridianError):
    """The body is larger than this route takes."""

    code = "PAYLOAD_TOO_LARGE"
    status = 413
    title = "Payload too large"


def too_large(scope: Scope, limit: int) -> JSONResponse:
    """The answer to a body of more than ``limit`` bytes."""
    error = BodyTooLargeError(f"the body is larger than {limit} bytes")
    problem = error.problem(instance=scope["path"])
    return JSONResponse(problem, error.status, media_type=PROBLEM, headers={"Connection": "close"})


class BodyLimit:
    """ASGI middleware: 413 for a body above ``max_body_bytes``, or above what ``own`` says of its path."""

    def __init__(self, app: ASGIApp, max_body_bytes: int, own: Mapping[str, int]) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._own.get(scope["path"], self._max_body_bytes)
        try:
            body = await read_body(scope, receive, limit)
        except ClientDisconnect:
            return
        if body is None:
            await too_large(scope, limit)(scope, receive, send)
            return
        await self._app(scope, replayed(body, receive), send)


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes | None:
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


def replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives the body, and then what comes after it."""
    given = False

    async def given_once() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return given_once


async def refused_unread(
    scope: Scope, receive: Receive, send: Send, check: Callable[[str | None], Awaitable[object]], small_bytes: int
) -> bool:
    """Whether the request is done with before its body is kept: it is larger than ``small_bytes``, or does not say how large, and
    ``check`` raises for its Authorization header (None: there is none). That error is the answer."""
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    if declared.isdigit() and int(declared) <= small_bytes:
        return False
    request = Request(scope)
    try:
        await check(request.headers.get("authorization"))
    except MeridianError as found:
        error = found
    except (DBAPIError, OSError) as found:
        if not is_passing(found):
            raise
        error = UnavailableError("a part that is needed does not answer at present")
    else:
        return False
    try:
        # On to its end, within reason, so that the client comes to read the answer.
        await read_body(scope, receive, small_bytes)
    except ClientDisconnect:
        return True
    response = problem_response(error, request)
    response.headers["Connection"] = "close"
    await response(scope, receive, send)
    return True
