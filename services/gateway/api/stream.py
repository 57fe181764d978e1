"""Events as they happen, by server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from meridian.errors import UnauthenticatedError
from services.gateway.api.answers import problems
from services.gateway.auth import Authority, Caller, Scope
from services.gateway.context import Gateway, Listener, Parts
from services.gateway.store import stream
from services.gateway.store.stream import StoredEvent
from services.gateway.wire import time_text, to_text

router = APIRouter(prefix="/v1", tags=["events"])

# How long a stream goes on at most after its token expired or was revoked.
_CONFIRM_S = 1.0
_LARGEST = (1 << 63) - 1

Filter = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
Position = Annotated[int | None, Query(ge=0, le=_LARGEST, description="like Last-Event-ID")]
LastEventId = Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=_LARGEST)]


@router.get("/events", response_class=EventSourceResponse, responses=problems(401, 403, 429, 503))
async def events(
    parts: Parts,
    caller: Listener,
    job: Filter = None,
    type: Filter = None,  # noqa: A002 - the name of the parameter
    after: Position = None,
    last_event_id: LastEventId = None,
) -> AsyncIterator[ServerSentEvent]:
    """All events that the caller may see; goes on behind ``Last-Event-ID`` without a gap or a duplicate. ``event: reset`` comes
    first, whatever is filtered, when events behind that position are no longer kept (0 asks for all that are kept)."""
    wanted = last_event_id if last_event_id is not None else after
    position = await _begin(parts, wanted)
    # Answers at once, so that the caller knows from where it listens.
    yield ServerSentEvent(comment="listening", id=str(position))
    if wanted and wanted < position:
        yield ServerSentEvent(
            raw_data=_reset(wanted, position, parts.kernel.clock.now()), event="reset", id=str(position)
        )
    while not parts.feed.closed and still_good(parts.authority, caller):
        for event in await parts.feed.after(position, _CONFIRM_S):
            position = event.seq
            if visible(event, caller) and job in {None, event.job_id} and type in {None, event.type}:
                yield ServerSentEvent(raw_data=_text(event), event=event.type, id=str(event.seq))


async def _begin(parts: Gateway, wanted: int | None) -> int:
    if wanted is None:
        return parts.feed.position
    async with parts.kernel.database.reading() as connection:
        # The newest first: what is stored between the two is still to come.
        newest, oldest = await stream.newest(connection), await stream.oldest(connection)
        # A position from a database that is gone must not silence the stream for ever.
        return max(min(wanted, newest), newest if oldest is None else oldest - 1)


def still_good(authority: Authority, caller: Caller) -> bool:
    """Whether a stream may go on: its token has neither expired nor been revoked."""
    try:
        authority.confirm(caller)
    except UnauthenticatedError:
        return False
    return True


def visible(event: StoredEvent, caller: Caller) -> bool:
    """Whether a caller may see an event: jobs are their tenant's, the network is everyone's."""
    if caller.may(Scope.OPERATOR):
        return True
    if event.job_id:
        return event.tenant_id == caller.tenant_id and caller.may(Scope.JOBS_READ)
    return event.tenant_id in {"", caller.tenant_id} and caller.may(Scope.RESOURCES_READ)


def _reset(wanted: int, position: int, now: datetime) -> str:
    """That events are missing, in the form of an event."""
    data = to_text({"reason": f"events {wanted + 1} to {position} are no longer kept"})
    nothing = dict.fromkeys(("topic", "trace_id", "event_id", "job_id", "tenant_id", "domain_id"), "")
    return _text(StoredEvent(type="reset", time=now, source="gateway", data=data, seq=position, **nothing))


def _text(event: StoredEvent) -> str:
    head = to_text(
        {
            "id": event.seq,
            "type": event.type,
            "time": time_text(event.time),
            "source": event.source,
            "topic": event.topic,
            "trace_id": event.trace_id,
            "event_id": event.event_id,
            "job_id": event.job_id,
            "domain_id": event.domain_id,
        }
    )
    # The data are JSON already.
    return f'{head[:-1]},"data":{event.data}}}'
