"""Server-sent events: complete, in order, resumable, and only what the caller may see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import sqlalchemy as sa

from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1 import run_pb2
from services.gateway.store.stream import newest
from services.gateway.tables import event
from tests.harness import PATIENCE_S
from tests.integration.gateway.conftest import Stack, task_file
from tests.integration.gateway.test_jobs import eventually, finished, read, run_event, submit


async def messages(answer: httpx.Response) -> AsyncIterator[dict[str, str]]:
    """The events of a stream as the standard parses them (comments and events without data are passed over)."""
    async for found in _parsed(answer.aiter_lines()):
        yield found


async def listening(answer: httpx.Response) -> AsyncIterator[dict[str, str]]:
    """The same, once the server has said that it listens: what happens before may be missed."""
    lines = answer.aiter_lines()
    async with asyncio.timeout(PATIENCE_S):
        assert (await anext(lines)).startswith(":")
    return _parsed(lines)


async def _parsed(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, str]]:
    fields: dict[str, str] = {}
    async for line in lines:
        if not line:
            if "data" in fields:
                yield fields
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


async def take(
    stream: AsyncIterator[dict[str, str]], count: int, timeout_s: float = PATIENCE_S
) -> list[dict[str, str]]:
    found = []
    async with asyncio.timeout(timeout_s):
        while len(found) < count:
            found.append(await anext(stream))
    return found


def changed(reason: str) -> graph_pb2.NodeStateChanged:
    event = graph_pb2.NodeStateChanged(domain_id="beijing", node_id="beijing-1", reason=reason)
    event.changed_at.GetCurrentTime()
    return event


def queued(job_id: str, tenant_id: str = "tenant-a") -> job_pb2.JobQueued:
    event = job_pb2.JobQueued(job_id=job_id, tenant_id=tenant_id, units=1)
    event.queued_at.GetCurrentTime()
    return event


async def test_a_stream_shows_own_jobs_and_the_network(stack: Stack) -> None:
    headers = stack.issuer.headers()
    async with stack.http.stream("GET", "/v1/events", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        stream = await listening(answer)
        theirs = await stack.http.post("/v1/jobs", json=task_file(), headers=stack.issuer.headers(tenant="tenant-b"))
        await stack.bus.expect(job_pb2.JobSubmitted)
        mine = await submit(stack)
        [first] = await take(stream, 1)
        assert first["event"] == "JobSubmitted"
        body = json.loads(first["data"])
        assert body["job_id"] == mine != theirs.json()["job_id"]
        assert str(body["id"]) == first["id"]
        assert body["data"]["spec"]["command"] == ["echo", "hello"]
        assert len(body["trace_id"]) == 32
        await stack.bus.publish(changed("a reason"))
        [second] = await take(stream, 1)
        assert (second["event"], json.loads(second["data"])["data"]["reason"]) == ("NodeStateChanged", "a reason")
        assert int(second["id"]) > int(first["id"])
    network_only = stack.issuer.headers(scope="resources:read")
    async with stack.http.stream("GET", "/v1/events?after=0", headers=network_only) as answer:
        [only] = await take(messages(answer), 1)
        assert only["event"] == "NodeStateChanged"
    async with stack.http.stream("GET", f"/v1/events?after=0&job={mine}", headers=headers) as answer:
        assert (await take(messages(answer), 1))[0]["event"] == "JobSubmitted"
    async with stack.http.stream("GET", "/v1/events?after=0&type=NodeStateChanged", headers=headers) as answer:
        assert (await take(messages(answer), 1))[0]["event"] == "NodeStateChanged"


async def test_resuming_streams_miss_nothing_and_repeat_nothing(stack: Stack) -> None:
    headers = stack.issuer.headers()
    expected = 1500
    # Far more than the feed keeps in memory in this test, written by several handlers at once.
    stack.service.kernel.http.state.gateway.feed._newest = type(stack.service.kernel.http.state.gateway.feed._newest)(
        maxlen=50
    )

    async def publish() -> None:
        for start in range(0, expected, 100):
            await stack.bus.publish(*(queued(f"job-{number}") for number in range(start, start + 50)))
            await stack.bus.publish(*(changed(str(number)) for number in range(start + 50, start + 100)))

    async def listen(pieces: int) -> list[int]:
        seen: list[int] = []
        last = "0"
        while len(seen) < expected:
            resume = {**headers, "Last-Event-ID": last}
            async with stack.http.stream("GET", "/v1/events", headers=resume) as answer:
                stream = messages(answer)
                for message in await take(stream, min(pieces, expected - len(seen)), 4 * PATIENCE_S):
                    seen.append(int(message["id"]))
                    last = message["id"]
        return seen

    publishing = asyncio.create_task(publish())
    slow, fast, whole = await asyncio.gather(listen(97), listen(400), listen(expected))
    await publishing
    assert slow == fast == whole
    assert len(set(whole)) == expected
    assert whole == sorted(whole)


async def test_progress_is_thinned_in_the_stream_but_not_in_the_view(stack: Stack) -> None:
    job_id = await submit(stack)
    headers = stack.issuer.headers()
    events = []
    for step in range(1, 101):
        event = run_event(run_pb2.RunProgress, job_id, step=step, total_steps=100)
        event.at.FromMilliseconds(1_800_000_000_000 + 20 * step)
        events.append(event)
    await stack.bus.publish(*events)
    await stack.bus.publish(run_event(run_pb2.RunFinished, job_id), finished(job_id))
    await eventually(
        lambda: read(stack, f"/v1/jobs/{job_id}/runs"),
        lambda page: bool(page["items"]) and page["items"][0]["step"] == 100,
    )
    # All that is told of steps stands before it in the stream.
    await stack.bus.publish(queued(job_id))
    async with stack.http.stream("GET", f"/v1/events?after=0&job={job_id}", headers=headers) as answer:
        stream = messages(answer)
        kinds: list[Any] = []
        while not {"RunFinished", "JobFinished", "JobSubmitted", "JobQueued"} <= set(kinds):
            kinds.append((await take(stream, 1))[0]["event"])
    # 2 s of steps at two a second.
    assert 4 <= kinds.count("RunProgress") <= 5


async def test_a_position_from_another_database_does_not_silence_the_stream(stack: Stack) -> None:
    headers = {**stack.issuer.headers(), "Last-Event-ID": "9000000000"}
    async with stack.http.stream("GET", "/v1/events", headers=headers) as answer:
        stream = await listening(answer)
        await stack.bus.publish(changed("here"))
        assert (await take(stream, 1))[0]["event"] == "NodeStateChanged"


async def test_a_position_before_what_is_kept_is_told(stack: Stack) -> None:
    """Whoever counts on every event must know that some are gone; who asks for all that are kept does not count on more."""
    await stack.bus.publish(*(changed(str(number)) for number in range(3)))
    headers = stack.issuer.headers()
    async with stack.http.stream("GET", "/v1/events?after=0", headers=headers) as answer:
        first, second, third = (int(item["id"]) for item in await take(messages(answer), 3))
    database = stack.service.kernel.database
    async with database.transaction() as connection:
        await connection.execute(sa.delete(event).where(event.c.seq < third))

    async def begin(after: int) -> dict[str, str]:
        async with stack.http.stream("GET", f"/v1/events?after={after}", headers=headers) as answer:
            return (await take(messages(answer), 1))[0]

    told = await begin(first)
    assert (told["event"], int(told["id"])) == ("reset", third - 1)
    body = json.loads(told["data"])
    assert (body["type"], body["id"]) == ("reset", third - 1)
    assert body["data"]["reason"] == f"events {first + 1} to {third - 1} are no longer kept"
    for after in (0, second):
        found = await begin(after)
        assert (found["event"], int(found["id"])) == ("NodeStateChanged", third)


async def test_a_position_before_all_that_is_gone_is_told(stack: Stack) -> None:
    """Retention has emptied the table: what came between is gone, and what comes next is not."""
    await stack.bus.publish(*(changed(str(number)) for number in range(3)))
    headers = stack.issuer.headers()
    async with stack.http.stream("GET", "/v1/events?after=0", headers=headers) as answer:
        first, _, third = (int(item["id"]) for item in await take(messages(answer), 3))
    async with stack.service.kernel.database.transaction() as connection:
        await connection.execute(sa.delete(event))
    async with stack.service.kernel.database.reading() as connection:
        assert await newest(connection) == third
    async with stack.http.stream("GET", f"/v1/events?after={first}", headers=headers) as answer:
        stream = messages(answer)
        (told,) = await take(stream, 1)
        assert (told["event"], int(told["id"])) == ("reset", third)
        assert json.loads(told["data"])["data"]["reason"] == f"events {first + 1} to {third} are no longer kept"
        await stack.bus.publish(changed("next"))
        (came,) = await take(stream, 1)
        assert came["event"] == "NodeStateChanged"
        assert int(came["id"]) > third
