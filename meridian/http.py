"""HTTP as every service speaks it: RFC 9457 problem details, trace context, correlation ids."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from anyio import BrokenResourceError
from fastapi import FastAPI, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import AfterValidator, AwareDatetime, BeforeValidator
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meridian.database import is_passing
from meridian.errors import (
    FieldError,
    InvalidArgumentError,
    MalformedRequestError,
    MeridianError,
    NotFoundError,
    UnavailableError,
)
from meridian.observability import logged_as, trace_id, traced

log = logging.getLogger(__name__)

PROBLEM = "application/problem+json"
_SHOWN = 100
"""So many characters of a name are shown that a caller made up."""


def _written_out(value: object) -> object:
    if isinstance(value, str) and not re.match(r"\d{4}-\d\d-\d\d[Tt ]", value):
        raise ValueError("a time such as 2026-01-31T12:00:00Z is wanted")
    return value


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("out of range") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_written_out), AfterValidator(_in_utc)]
"""A time of RFC 3339 with its offset, as a parameter, in UTC; pydantic alone would take a number for seconds since 1970."""


class _HttpError(MeridianError):
    """An HTTP error raised by the framework itself."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.http_status = status
        # A 405 must name the methods that are allowed (RFC 9110, section 15.5.6).
        self.headers = headers

    def problem(self, instance: str | None = None, correlation_id: str | None = None) -> dict[str, Any]:
        body = super().problem(instance, correlation_id)
        body.update(status=self.http_status, title=self.detail, code=f"HTTP_{self.http_status}", type="about:blank")
        return body


def _pointer(location: tuple[Any, ...]) -> str:
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in location]
    if parts and parts[0] == "body":
        parts = parts[1:]
    elif parts:
        return ":".join(parts)
    return "/" + "/".join(parts) if parts else ""


def problem_response(error: MeridianError, request: Request) -> JSONResponse:
    """The answer for an error, with its correlation id."""
    status = error.http_status if isinstance(error, _HttpError) else error.status
    body = error.problem(instance=request.url.path, correlation_id=trace_id() or None)
    headers = dict(getattr(error, "headers", None) or {})
    return JSONResponse(body, status_code=status, media_type=PROBLEM, headers=headers)


def install_errors(app: FastAPI) -> None:
    """Render every error as problem details; the body says which field is wrong."""

    @app.exception_handler(MeridianError)
    async def expected(request: Request, error: MeridianError) -> Response:
        return problem_response(error, request)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        problems = error.errors()
        if any(problem["type"] == "json_invalid" for problem in problems):
            return problem_response(MalformedRequestError("the body is not valid JSON"), request)
        if any(isinstance(problem.get("input"), bytes) and problem["loc"] == ("body",) for problem in problems):
            # Bytes that were not read as JSON, which a client need not have meant otherwise.
            told = request.headers.get("content-type") or "nothing"
            detail = f"the body is said to be {told[:100]}; application/json is wanted"
            return problem_response(
                InvalidArgumentError(detail, errors=(FieldError("header:Content-Type", detail),)), request
            )
        fields = tuple(FieldError(_pointer(problem["loc"]), str(problem["msg"])) for problem in problems)
        detail = "; ".join(f"{field.pointer or 'body'}: {field.detail}" for field in fields[:5])
        return problem_response(InvalidArgumentError(detail, errors=fields), request)

    @app.exception_handler(StarletteHTTPException)
    async def framework(request: Request, error: StarletteHTTPException) -> Response:
        if error.status_code == NotFoundError.status:
            return problem_response(NotFoundError(f"there is nothing at {request.url.path}"), request)
        return problem_response(_HttpError(error.status_code, str(error.detail), error.headers), request)

    @app.exception_handler(DBAPIError)
    @app.exception_handler(OSError)
    async def interrupted(request: Request, error: Exception) -> Response:
        if not is_passing(error):
            return await unexpected(request, error)
        log.warning("request interrupted", extra={"path": request.url.path, "error": repr(error)})
        response = problem_response(UnavailableError("a part that is needed does not answer at present"), request)
        response.headers["retry-after"] = "1"
        return response

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        log.error("request failed", exc_info=error, extra={"path": request.url.path})
        return problem_response(MeridianError("the request failed inside the service"), request)


async def known_parameters(request: Request) -> None:
    """Refuse query parameters that the route does not know, by name; for ``FastAPI(dependencies=...)``. Routes that are not in the
    document (a page, health, metrics) take any."""
    given = request.query_params
    route = request.scope.get("route")
    if not given or not isinstance(route, APIRoute) or not route.include_in_schema:
        return
    known = set(_names(route.dependant))
    errors = []
    for name in dict.fromkeys(given):
        if name not in known:
            shown = name if len(name) <= _SHOWN else name[:_SHOWN] + "..."
            meant = ", ".join(sorted(known)) or "none"
            errors.append(FieldError(f"query:{shown}", f"there is no such parameter; known are: {meant}"))
    if errors:
        raise InvalidArgumentError(
            "; ".join(f"{error.pointer}: {error.detail}" for error in errors[:5]), errors=tuple(errors)
        )


def _names(dependant: Dependant) -> Iterator[str]:
    """The query parameters of a route, with those of all that it depends on."""
    for field in dependant.query_params:
        yield field.alias
    for below in dependant.dependencies:
        yield from _names(below)


class TraceMiddleware:
    """Takes the caller's trace context, or starts one, for each request; answers carry it as ``x-correlator``."""

    def __init__(self, app: ASGIApp, service: str) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        parent = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), "")
        with traced(parent), logged_as(self._service):
            correlator = trace_id().encode()
            begun = False

            async def send_with_correlator(message: Message) -> None:
                nonlocal begun
                if message["type"] == "http.response.start":
                    begun = True
                    message["headers"] = [*message.get("headers", []), (b"x-correlator", correlator)]
                await send(message)

            try:
                await self._app(scope, receive, send_with_correlator)
            except* BrokenResourceError:
                # Who listened to a stream hung up while an event was on its way: FastAPI lets that out as an error.
                if not begun:
                    raise


def install_tracing(app: FastAPI, service: str) -> None:
    """Give each request of ``app`` a trace context."""
    app.add_middleware(TraceMiddleware, service=service)
