"""One request as the handlers get it, and what a handler is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from meridian.embedded.broker.wire import Message

Answer = Message | Awaitable[Message | None] | None
"""The response, a promise of it, or None where the client wants none (Produce with acks=0)."""


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request and who sent it."""

    body: Message
    version: int
    client_id: str
    client_host: str


Handler = Callable[[Request], Answer]
