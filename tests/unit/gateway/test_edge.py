"""The outermost layer: what the application sees of a body, and what it never sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from services.gateway.auth import BearerError
from services.gateway.edge import Edge

PUT: Scope = {"type": "http", "method": "PUT", "path": "/v1/policy", "headers": [(b"content-length", b"40")]}


BATCH: Scope = {
    "type": "http",
    "method": "POST",
    "path": "/v1/jobs:batch",
    "query_string": b"",
    "server": ("gateway", 80),
}
LARGER = {"/v1/jobs:batch": 1 << 20}


async def check(authorization: str | None) -> None:
    if authorization != "Bearer good":
        raise BearerError("the token is not good")


async def served(messages: Iterable[Message], scope: Scope = PUT) -> tuple[list[bytes], list[Message]]:
    """The bodies that the application got, and what was sent."""
    bodies: list[bytes] = []
    sent: list[Message] = []
    given = iter(messages)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        bodies.append((await receive())["body"])

    async def receive() -> Message:
        return next(given)

    async def send(message: Any) -> None:
        sent.append(message)

    await Edge(application, 1024, LARGER, lambda _: set(), check)(
        {**scope, "headers": [*scope["headers"]]}, receive, send
    )
    return bodies, sent


async def test_a_body_comes_whole() -> None:
    parts: list[Message] = [
        {"type": "http.request", "body": b"policy: a\n", "more_body": True},
        {"type": "http.request", "body": b"quota: 3\n", "more_body": False},
    ]
    assert await served(parts) == ([b"policy: a\nquota: 3\n"], [])


async def test_the_beginning_of_a_body_is_not_taken_for_the_body() -> None:
    """YAML that is cut off at the end of a line is YAML: a connection that breaks must not set half a policy."""
    parts: list[Message] = [
        {"type": "http.request", "body": b"policy: a\n", "more_body": True},
        {"type": "http.disconnect"},
    ]
    assert await served(parts) == ([], [])


@pytest.mark.parametrize("length", [[], [(b"content-length", b"500000")]])
async def test_a_large_body_without_a_good_token_is_not_read_to_its_end(length: list[tuple[bytes, bytes]]) -> None:
    read = 0

    def parts() -> Iterator[Message]:
        nonlocal read
        for _ in range(500):
            read += 1
            yield {"type": "http.request", "body": b" " * 1000, "more_body": True}
        yield {"type": "http.request", "body": b"", "more_body": False}

    bodies, sent = await served(parts(), BATCH | {"headers": [(b"authorization", b"Bearer bad"), *length]})
    assert (bodies, sent[0]["status"], read < 20) == ([], 401, True)
    headers = dict(sent[0]["headers"])
    assert headers[b"www-authenticate"].startswith(b"Bearer")
    assert headers[b"x-content-type-options"] == b"nosniff"
    bodies, _ = await served(parts(), BATCH | {"headers": [(b"authorization", b"Bearer good"), *length]})
    assert [len(body) for body in bodies] == [500_000]


async def test_a_small_body_is_the_application_s_to_refuse() -> None:
    parts: list[Message] = [{"type": "http.request", "body": b"{}", "more_body": False}]
    bodies, sent = await served(parts, BATCH | {"headers": [(b"content-length", b"2")]})
    assert (bodies, sent) == ([b"{}"], [])
