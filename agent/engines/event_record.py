"""Events as journal records and back."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

from agent.engines.base import (
    Checkpoint,
    FailureKind,
    RankExited,
    RunEvent,
    RunFailed,
    RunFinished,
    RunRefused,
    RunStarted,
)

_KINDS: dict[str, type[RunEvent]] = {
    kind.__name__: kind for kind in (RunStarted, Checkpoint, RankExited, RunFinished, RunFailed, RunRefused)
}


def to_record(event: RunEvent) -> dict[str, Any]:
    """The event as JSON values. ``Progress`` has no record: it may be lost."""
    body = dataclasses.asdict(event)
    body["at"] = event.at.isoformat()
    return {"event": type(event).__name__, **{name: value for name, value in body.items() if value is not None}}


def from_record(record: dict[str, Any]) -> RunEvent:
    """The event of a record. KeyError for an event that does not exist."""
    body = dict(record)
    kind = _KINDS[body.pop("event")]
    body["at"] = datetime.fromisoformat(body["at"])
    for item in dataclasses.fields(kind):
        if item.name not in body and item.default is dataclasses.MISSING:
            body[item.name] = None
    if "node_ids" in body:
        body["node_ids"] = tuple(body["node_ids"])
    if kind in {RankExited, RunFailed} and body.get("kind") is not None:
        body["kind"] = FailureKind(body["kind"])
    return kind(**body)
