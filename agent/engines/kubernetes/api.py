"""Calls of a cluster's API server: get, list, watch, create, patch, delete, and the log of a container. HTTP and JSON only.

Sources: "Kubernetes API Concepts" (lists in pieces, watches from a resource version, 410 Gone) and the API reference of
Kubernetes.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from agent.engines.kubernetes.access import Access
from meridian.errors import ConfigurationError, UnavailableError

_log = logging.getLogger(__name__)

Object = Mapping[str, Any]

CALL_LIMIT_S = 15.0
PIECE = 500
WATCH_S = 120
"""A watch is ended by the server after this; one that says nothing for longer is dead."""
MOST_LINE_BYTES = 16 * 1024 * 1024
CONFLICT, GONE, NOT_FOUND = 409, 410, 404


class KubernetesSilentError(UnavailableError):
    """The API server does not answer, or with an error of its own."""

    code = "KUBERNETES_SILENT"
    title = "Kubernetes does not answer"


class KubernetesRefusedError(Exception):
    """The API server does not do it; the text is its own reason, ``status`` that of HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class KubernetesApi:
    """See the module. ``clock_ahead_s`` is by how much the server's clock is ahead of ours, to about a second."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._http = httpx.AsyncClient(
            base_url=access.server,
            verify=access.tls() if access.server.startswith("https") else True,
            timeout=CALL_LIMIT_S,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            trust_env=False,
        )
        self.clock_ahead_s = 0.0

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def now(self) -> datetime:
        """The time by the server's clock."""
        return datetime.fromtimestamp(time.time() + self.clock_ahead_s, UTC)

    # --- objects ---------------------------------------------------------------------------------------------------

    async def get(self, path: str, **query: str) -> Object:
        """An object.

        :raises KubernetesSilentError, KubernetesRefusedError: see there.
        """
        return await self._call("GET", path, query)

    async def list_all(self, path: str, **query: str) -> tuple[list[Object], str]:
        """All objects of a collection, asked for in pieces, and the resource version from which to watch it on.

        :raises KubernetesSilentError, KubernetesRefusedError: see there.
        """
        found: list[Object] = []
        further = {"limit": str(PIECE)}
        while True:
            answer = await self._call("GET", path, {**query, **further})
            found += answer.get("items") or []
            about = answer.get("metadata") or {}
            if not about.get("continue"):
                return found, str(about.get("resourceVersion", ""))
            further["continue"] = about["continue"]

    async def create(self, path: str, body: Object) -> Object:
        """Make an object; one that is there already is refused with `CONFLICT`.

        :raises KubernetesSilentError, KubernetesRefusedError: see there.
        """
        return await self._call("POST", path, {}, body=body)

    async def patch(self, path: str, body: Object) -> Object:
        """Change fields of an object (JSON merge patch, RFC 7386).

        :raises KubernetesSilentError, KubernetesRefusedError: see there.
        """
        return await self._call("PATCH", path, {}, body=body, kind="application/merge-patch+json")

    async def delete(self, path: str, options: Object | None = None, **query: str) -> None:
        """Delete an object, or those of a collection that ``query`` selects. One that is gone changes nothing.

        :raises KubernetesSilentError, KubernetesRefusedError: see there.
        """
        try:
            await self._call(
                "DELETE", path, query, body={"kind": "DeleteOptions", "apiVersion": "v1", **(options or {})}
            )
        except KubernetesRefusedError as error:
            if error.status != NOT_FOUND:
                raise

    # --- streams ---------------------------------------------------------------------------------------------------

    async def watch(self, path: str, since: str, **query: str) -> AsyncIterator[tuple[str, Object]]:
        """Kind (ADDED, MODIFIED, DELETED, BOOKMARK) and object of each change after ``since``, until the server ends it.

        :raises KubernetesRefusedError: `GONE`: the version is too old, the collection is to be listed anew.
        :raises KubernetesSilentError: the connection broke.
        """
        asked = {
            "watch": "true",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        timeout = httpx.Timeout(CALL_LIMIT_S, read=WATCH_S + CALL_LIMIT_S)
        try:
            async with self._http.stream(
                "GET", path, params={**query, **asked}, headers=self._headers(), timeout=timeout
            ) as answer:
                await self._check(answer)
                async for line in _lines(answer):
                    change = json.loads(line)
                    content = change["object"]
                    if change["type"] == "ERROR":
                        raise KubernetesRefusedError(int(content.get("code") or 0), str(content.get("message", "")))
                    yield change["type"], content
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise _silent(path, error) from None

    async def log(self, path: str, **query: str) -> AsyncIterator[bytes]:
        """A container's log as it is written, until it has ended. ``path`` is that of the pod.

        :raises KubernetesSilentError, KubernetesRefusedError: see there.
        """
        timeout = httpx.Timeout(CALL_LIMIT_S, read=None)
        asked = {**query, "follow": "true"}
        try:
            async with self._http.stream(
                "GET", f"{path}/log", params=asked, headers=self._headers(), timeout=timeout
            ) as answer:
                await self._check(answer)
                async for piece in answer.aiter_bytes():
                    yield piece
        except httpx.HTTPError as error:
            raise _silent(path, error) from None

    # --- steps -----------------------------------------------------------------------------------------------------

    def _headers(self) -> dict[str, str]:
        try:
            token = self._access.bearer()
        except ConfigurationError as error:
            raise KubernetesSilentError(error.detail) from None
        return {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Object | None = None,
        kind: str = "application/json",
    ) -> Object:
        headers = self._headers() | ({"Content-Type": kind} if body is not None else {})
        content = None if body is None else json.dumps(body).encode()
        try:
            answer = await self._http.request(method, path, params=query, content=content, headers=headers)
            await self._check(answer)
            found = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise _silent(path, error) from None
        if not isinstance(found, dict):
            raise KubernetesSilentError(f"{path}: the answer is no object")
        return found

    async def _check(self, answer: httpx.Response) -> None:
        """Errors of the server itself say nothing about what was asked; those of the request do."""
        told = answer.headers.get("Date")
        if told:
            try:
                self.clock_ahead_s = parsedate_to_datetime(told).timestamp() + 0.5 - time.time()
            except ValueError:
                _log.warning("the API server's date %r cannot be read", told[:80])
        if answer.is_success:
            return
        await answer.aread()
        try:
            reason = str(answer.json()["message"])
        except (ValueError, KeyError, TypeError):
            reason = answer.text[:500]
        reason = reason or f"status {answer.status_code}"
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR or answer.status_code in {
            httpx.codes.TOO_MANY_REQUESTS,
            httpx.codes.UNAUTHORIZED,
        }:
            raise KubernetesSilentError(f"{answer.url.path}: {reason}")
        raise KubernetesRefusedError(answer.status_code, reason)


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in answer.aiter_bytes():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            if line:
                yield line
        if len(rest) > MOST_LINE_BYTES:
            raise ValueError(f"a change is larger than {MOST_LINE_BYTES} bytes")


def _silent(path: str, error: Exception) -> KubernetesSilentError:
    return KubernetesSilentError(f"{path}: {error or type(error).__name__}")
