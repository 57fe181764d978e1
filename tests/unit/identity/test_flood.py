"""What anybody may ask for without a token costs no more than a little at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from meridian.clock import VirtualClock
from meridian.errors import InvalidArgumentError
from meridian.outbox import Outbox
from services.identity.authority import CertificateAuthority
from services.identity.compute_ids import mint_compute_id
from services.identity.enrolment import Enrolment


class Counting(ThreadPoolExecutor):
    """Counts what it was given to do."""

    given = 0

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self.given += 1
        return super().submit(work, *arguments, **named)


async def test_a_flood_of_registrations_waits_to_have_its_tokens_hashed(tmp_path: Path) -> None:
    executor = Counting(max_workers=16)
    asyncio.get_running_loop().set_default_executor(executor)
    authority = CertificateAuthority(tmp_path, "meridian.local", root_ttl_s=86400.0, issuing_ttl_s=3600.0)
    # A request that is none is refused before anything is looked up.
    nowhere = cast("Outbox", None)
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    enrolment = Enrolment(nowhere, clock, authority, mint_compute_id, asyncio.Semaphore(2), ttl_s=60, backdate_s=1)
    enrolment.join_token_salt = b"salt"
    flood = [asyncio.create_task(enrolment.register(f"guess-{n}", "beijing", "no csr", [])) for n in range(12)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert executor.given <= 2 + sum(task.done() for task in flood)
    answers = await asyncio.gather(*flood, return_exceptions=True)
    assert all(isinstance(answer, InvalidArgumentError) for answer in answers)
    assert executor.given == 12
