"""JSON lines between the agent and a node process: one object per line, UTF-8, at most ``MAX_MESSAGE_BYTES``.

agent -> node: ``launch`` ``stop`` ``ping`` (the agent is alive) ``shutdown``; the kind stands in ``op``.
node -> agent: ``hello`` ``beat`` ``started`` ``start_failed`` ``progress`` ``checkpoint`` ``exited``; the kind stands in ``ev``.
"""

from __future__ import annotations

import json
from typing import Any

MAX_MESSAGE_BYTES = 8 * 1024 * 1024

Message = dict[str, Any]


class WireError(Exception):
    """The other side sent something that is not a JSON object on one line; the connection is of no more use."""


def encode(message: Message) -> bytes:
    """One message as a line."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


class LineDecoder:
    """Collects bytes as they arrive and gives back whole messages.

    :raises WireError: from ``feed``, for a line that is too long or no JSON object.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """All messages completed by ``data``, in order."""
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > MAX_MESSAGE_BYTES:
            raise WireError(f"a line exceeds {MAX_MESSAGE_BYTES} bytes")
        self._rest = rest
        messages: list[Message] = []
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise WireError(f"not JSON: {error}") from error
            if not isinstance(message, dict):
                raise WireError("not a JSON object")
            messages.append(message)
        return messages
