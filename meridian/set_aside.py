"""What a record becomes when somebody cannot take it: a letter on ``<topic>.dlq``, with notes of who, where and why."""

from __future__ import annotations

from collections.abc import Iterable

from meridian.catalogue import catalogue
from meridian.codec import HeaderList, Record

PREFIX = "x-dlq-"
TRUNCATED = "x-dlq-truncated"
"""Header of a letter whose record was larger than its topic takes: how many bytes its value had."""
DEFAULT_ROOM_BYTES = 1024 * 1024
"""What a topic takes that says nothing else (Apache Kafka's ``message.max.bytes``)."""

# What a batch and a record of it add to key, value and headers, with room to spare.
_FRAMING_BYTES = 1024
_MAX_KEPT_HEADERS = 32
_MAX_KEPT_BYTES = 1024
_MAX_REASON_CHARACTERS = 2000


def letter(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | str | None]],
    *,
    consumer: str,
    reason: str,
    position: tuple[int, int] | None = None,
    fits: bool = True,
) -> Record:
    """The letter of a record of ``topic``, whose headers are text that a table takes.

    It is cut where it would be larger than the topic takes (what came compressed may be), so that it never stops what else
    is to be sent; ``fits`` False says that the record is known to be. ``position``: its partition and offset.
    """
    given = [
        (name, text if isinstance(text, bytes) else (text or "").encode())
        for name, text in headers
        if not name.startswith(PREFIX)
    ]
    noted = [
        (f"{PREFIX}reason", reason[:_MAX_REASON_CHARACTERS].encode("utf-8", "replace")),
        (f"{PREFIX}consumer", consumer.encode()),
        (f"{PREFIX}topic", topic.encode()),
    ]
    if position is not None:
        noted += [
            (f"{PREFIX}{name}", str(number).encode())
            for name, number in zip(("partition", "offset"), position, strict=True)
        ]
    key, value = key or b"", value or b""
    spec = catalogue().topics.get(topic)
    room = (spec.max_message_bytes if spec else 0) or DEFAULT_ROOM_BYTES
    if not fits or _FRAMING_BYTES + len(key) + len(value) + _bytes_of(_storable([*given, *noted])) > room:
        given = [(name[:_MAX_KEPT_BYTES], text[:_MAX_KEPT_BYTES]) for name, text in given[:_MAX_KEPT_HEADERS]]
        noted.append((TRUNCATED, str(len(value)).encode()))
        key, value = key[:_MAX_KEPT_BYTES], value[: room // 2]
    return Record(topic=f"{topic}.dlq", key=key, value=value, headers=_storable([*given, *noted]))


def _storable(headers: HeaderList) -> HeaderList:
    # The outbox keeps headers as JSON text, in which PostgreSQL takes no NUL.
    return [
        (name.replace("\x00", "\ufffd"), text.decode("utf-8", "replace").replace("\x00", "\ufffd").encode())
        for name, text in headers
    ]


def _bytes_of(headers: HeaderList) -> int:
    return sum(len(name.encode()) + len(text) + 10 for name, text in headers)
