"""Questions to the other services and to agents, where a person waits for the answer."""

from __future__ import annotations

import math
from typing import Any

import httpx

from meridian.errors import (
    ConflictError,
    FieldError,
    InvalidArgumentError,
    MeridianError,
    NotFoundError,
    PreconditionFailedError,
    UnavailableError,
)
from meridian.observability import current_traceparent

_PASSED_ON: dict[int, type[MeridianError]] = {
    404: NotFoundError,
    409: ConflictError,
    412: PreconditionFailedError,
    422: InvalidArgumentError,
}


class Upstream:
    """One service that is asked over HTTP."""

    def __init__(self, http: httpx.AsyncClient, name: str, base_url: str) -> None:
        self._http = http
        self._name = name
        self._base_url = base_url.rstrip("/")

    async def ask(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """The JSON object it answers. Its 404, 409, 412 and 422 become ours, everything else is UnavailableError."""
        answer = await self.send(method, path, json=json, content=content, params=params, headers=headers)
        return self.body_of(answer)

    def body_of(self, answer: httpx.Response) -> dict[str, Any]:
        """The JSON object of an answer; the errors of `ask`."""
        if answer.is_success:
            body = _object(answer) if answer.content else {}
            if body is None:
                raise UnavailableError(f"the {self._name} gave an answer that cannot be read")
            return body
        raise self._error(answer)

    async def send(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        params: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        """The answer as it is; UnavailableError when there is none."""
        sent = {**(headers or {}), "traceparent": current_traceparent()}
        try:
            return await self._http.request(
                method, f"{self._base_url}{path}", json=json, content=content, params=params, headers=sent
            )
        except (httpx.HTTPError, httpx.InvalidURL):
            raise UnavailableError(f"the {self._name} does not answer") from None
        except ValueError:
            # Python reads NaN and halves of surrogate pairs, which JSON cannot say.
            place = unspeakable(json)
            if place is None:
                raise
            detail = "a number that is none, or text that is no Unicode"
            raise InvalidArgumentError(f"{place or 'body'}: {detail}", errors=(FieldError(place, detail),)) from None

    def _error(self, answer: httpx.Response) -> MeridianError:
        body = _object(answer) or {}
        detail = str(body.get("detail") or body.get("title") or "")
        kind = _PASSED_ON.get(answer.status_code)
        if kind is None:
            return UnavailableError(
                f"the {self._name} answered with status {answer.status_code}: {detail}".rstrip(": ")
            )
        named = body.get("errors")
        errors = tuple(
            FieldError(str(item.get("pointer", "")), str(item.get("detail", "")))
            for item in (named if isinstance(named, list) else [])
            if isinstance(item, dict)
        )
        return kind(detail or f"the {self._name} refused this with status {answer.status_code}", errors=errors)


def unspeakable(body: Any, place: str = "") -> str | None:
    """The JSON pointer of the first thing in ``body`` that JSON cannot say: NaN, infinity, text that is no Unicode."""
    if isinstance(body, float):
        return None if math.isfinite(body) else place
    if isinstance(body, str):
        return None if body.isascii() or body == body.encode("utf-8", "replace").decode() else place
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for name, item in items:
        step = str(name).replace("~", "~0").replace("/", "~1")
        found = unspeakable(str(name), f"{place}/{step}")
        found = unspeakable(item, f"{place}/{step}") if found is None else found
        if found is not None:
            return found
    return None


def _object(answer: httpx.Response) -> dict[str, Any] | None:
    try:
        body = answer.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
