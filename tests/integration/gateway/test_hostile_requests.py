"""Requests that no honest program sends get the answer of bad input; revocations are heard in whatever order they are stored."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from services.gateway.auth import Caller, RevocationList
from services.gateway.store import revocations
from services.gateway.store.revocations import Revocation
from tests.harness import PATIENCE_S
from tests.integration.gateway.conftest import Stack, task_file

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WAITING = sa.text(
    "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"
)


@pytest.mark.parametrize(("word", "place"), [(b"NaN", "/change/prices/a"), (b'"\\ud800"', "/change/prices/a")])
async def test_what_json_cannot_say_is_refused_with_its_place(stack: Stack, word: bytes, place: str) -> None:
    body = json.dumps(task_file(change={"prices": {"a": "HERE"}})).encode().replace(b'"HERE"', word)
    headers = stack.issuer.headers() | {"content-type": "application/json"}
    answer = await stack.http.post("/v1/what-if", content=body, headers=headers)
    problem = answer.json()
    assert answer.status_code == 422, problem
    # The scheduler is given the change under its own name.
    assert [item["pointer"] for item in problem["errors"]] == [place]


async def test_a_revocation_that_is_stored_late_is_heard(stack: Stack) -> None:
    """Of two replicas the one that wrote first commits last: the list must not have passed over what it wrote."""
    database = stack.service.kernel.database
    heard = RevocationList(database, stack.service.kernel.clock, 1.0)

    async def write_second() -> None:
        async with database.transaction() as connection:
            await revocations.add(connection, [Revocation("client-2", "token-2", NOW)])

    async with database.transaction() as first:
        await revocations.add(first, [Revocation("client-1", "token-1", NOW)])
        second = asyncio.create_task(write_second())
        async with asyncio.timeout(PATIENCE_S):
            while not second.done():
                async with (
                    database.reading() as looking
                ):  # One transaction sees the backends as they were at its first look.
                    if await looking.scalar(WAITING):
                        break
                await asyncio.sleep(0.01)
        await heard.load()
    await second
    await heard.load()
    for number in (1, 2):
        caller = Caller("t", f"client-{number}", f"token-{number}", frozenset(), NOW, NOW + timedelta(hours=1))
        assert heard.refuses(caller), number
