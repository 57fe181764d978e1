"""The outermost layer: what the application sees of a body, and what it never sees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from services.gateway.edge import Edge

PUT: Scope = {"type": "http", "method": "PUT", "path": "/v1/policy", "headers": [(b"content-length", b"40")]}


async def served(messages: Iterable[Message]) -> tuple[list[bytes], list[Message]]:
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

    await Edge(application, 1024, {}, lambda _: set())({**PUT}, receive, send)
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
