"""From a checked job file to a stored job: one transaction holds the jobs, their events and the idempotency key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meridian.contracts.job.v1 import job_pb2
from meridian.errors import ConflictError, FieldError, InvalidArgumentError, ResourceExhaustedError
from meridian.outbox import Transaction
from services.gateway.auth import Caller
from services.gateway.capacity import DomainCapacity, impossibilities
from services.gateway.context import Gateway
from services.gateway.job_checks import inconsistencies
from services.gateway.job_spec import to_spec
from services.gateway.jobfile import JobFile
from services.gateway.store import submissions
from services.gateway.store.submissions import NewJob, StoredAnswer

MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as JSON text; ``replayed`` when it was given to an earlier request with the same key."""

    status: int
    text: str
    replayed: bool = False


def check(jobs: Sequence[tuple[str, JobFile]], domains: dict[str, DomainCapacity]) -> None:
    """InvalidArgumentError with a pointer for everything that is wrong; each job comes with the pointer of its place."""
    found: list[FieldError] = []
    for place, job in jobs:
        errors = inconsistencies(job) or impossibilities(job, domains)
        found += [FieldError(place + error.pointer, error.detail) for error in errors]
        if len(found) > MAX_ERRORS:
            break
    if found:
        detail = "; ".join(f"{error.pointer or 'body'}: {error.detail}" for error in found[:5])
        raise InvalidArgumentError(detail, errors=tuple(found[:MAX_ERRORS]))


def request_hash(operation: str, body: Any) -> str:
    """What makes two requests the same: the operation and the meaning of the body."""
    text = json.dumps([operation, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


async def once(
    parts: Gateway,
    caller: Caller,
    key: str | None,
    hashed: str,
    work: Callable[[Transaction], Awaitable[Answer]],
) -> Answer:
    """Do the work in a transaction; with an idempotency key only the first time (draft-ietf-httpapi-idempotency-key-header)."""
    async with parts.kernel.outbox.transaction() as transaction:
        if key is None:
            return await work(transaction)
        connection = transaction.connection
        if not await submissions.take_key(connection, caller.tenant_id, key):
            raise ConflictError("a request with this Idempotency-Key is in progress")
        earlier = await submissions.stored_answer(connection, caller.tenant_id, key)
        if earlier is not None:
            if earlier.request_hash != hashed:
                detail = "this Idempotency-Key was used for another request"
                raise InvalidArgumentError(detail, errors=(FieldError("header:Idempotency-Key", detail),))
            return Answer(earlier.status, earlier.answer, replayed=True)
        answer = await work(transaction)
        stored = StoredAnswer(hashed, answer.status, answer.text)
        await submissions.store_answer(connection, caller.tenant_id, key, stored)
        return answer


async def submit(parts: Gateway, caller: Caller, transaction: Transaction, jobs: Sequence[JobFile]) -> list[NewJob]:
    """Store jobs and publish their events; ResourceExhaustedError when the tenant then has too many unfinished.

    The quota is looked at last: submissions of one tenant wait for each other only from there to the commit.
    """
    now = parts.kernel.clock.now()
    stored = []
    for job in jobs:
        job_id = parts.kernel.new_id("job")
        body = job.model_dump(mode="json")
        stored.append(NewJob(job_id, caller.tenant_id, job.name, job.kind, job.priority, job.units, now, body))
        event = job_pb2.JobSubmitted(job_id=job_id, tenant_id=caller.tenant_id, spec=to_spec(job))
        event.submitted_at.FromDatetime(now)
        transaction.publish(event)
    await submissions.insert(transaction.connection, stored)
    await transaction.flush()
    limit = parts.settings.max_unfinished_jobs
    unfinished = await submissions.count_unfinished(transaction.connection, caller.tenant_id)
    if unfinished > limit:
        before = unfinished - len(jobs)
        raise ResourceExhaustedError(
            f"{before} of at most {limit} jobs are unfinished, {len(jobs)} more would be too many"
        )
    return stored
