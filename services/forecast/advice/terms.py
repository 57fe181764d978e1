"""What is kept of submitted jobs for advice: what bears on their run time and their deadline, and nothing of their commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from google.protobuf import json_format
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.clock import Clock
from meridian.codec import Envelope
from meridian.contracts.job.v1.job_pb2 import JobFinished, JobSpec, JobSubmitted
from meridian.outbox import Transaction
from services.forecast.ledger import SubjectKind, UnitState

TERM_EVENTS = (JobSubmitted, JobFinished)
_KEEP = timedelta(days=30)
_KEPT = (
    "name",
    "kind",
    "resources",
    "ranks",
    "array_size",
    "checkpoint_interval_s",
    "max_run_time_s",
    "model",
    "rates",
    "deadline",
)

_metadata = sa.MetaData()
job_terms = sa.Table(
    "job_terms",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text),
    sa.Column("spec", postgresql.JSONB),
    sa.Column("submitted_at", sa.DateTime(timezone=True)),
)

_WAITING = sa.text(
    """
    SELECT units.job_id, sum(units.accelerators) AS accelerators
    FROM units JOIN jobs USING (job_id)
    WHERE units.state = :waiting AND units.only_domain = :domain AND jobs.submitted AND NOT jobs.finished
      AND NOT EXISTS (SELECT 1 FROM units AS before WHERE before.job_id = units.job_id
                      AND before.unit_index = ANY (units.depends_on) AND before.state <> :done)
    GROUP BY units.job_id ORDER BY units.job_id
    """
)
_HELD = sa.text(
    """
    SELECT coalesce(sum((units.held ->> :domain)::double precision), 0)
    FROM units JOIN jobs USING (job_id)
    WHERE units.state = :held AND NOT jobs.finished AND jsonb_exists(units.held, :domain)
    """
)
_HISTORY = sa.text(
    """
    SELECT floor(extract(epoch FROM window_start) / :width) * :width AS at, avg(accelerators) AS accelerators
    FROM windows WHERE subject_kind = :kind AND subject_id = :domain GROUP BY 1
    """
).bindparams(sa.bindparam("width", type_=sa.Double))
_BEGAN = sa.text("SELECT extract(epoch FROM min(window_start)) FROM windows")


def trimmed(spec: JobSpec) -> JobSpec:
    """The fields that are kept."""
    kept = JobSpec()
    for name in _KEPT:
        field = spec.DESCRIPTOR.fields_by_name[name]
        if field.is_repeated:
            getattr(kept, name).MergeFrom(getattr(spec, name))
        elif field.message_type is not None:
            if spec.HasField(name):
                getattr(kept, name).CopyFrom(getattr(spec, name))
        else:
            setattr(kept, name, getattr(spec, name))
    return kept


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job with units that wait and may run in one domain only; ``spec`` None before its submission was heard."""

    job_id: str
    tenant_id: str
    accelerators: float
    spec: JobSpec | None


class TermsStore:
    """The SQL of advice, seen from one transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def keep(self, messages: Sequence[JobSubmitted], now: datetime) -> None:
        """Keep the terms of submitted jobs."""
        rows = [
            {
                "job_id": message.job_id,
                "tenant_id": message.tenant_id,
                "spec": json_format.MessageToDict(trimmed(message.spec)),
                "submitted_at": now,
            }
            for message in messages
        ]
        if rows:
            await self._connection.execute(insert(job_terms).on_conflict_do_nothing(), rows)

    async def forget(self, job_ids: Iterable[str], before: datetime) -> None:
        """Remove jobs that ended, and those of long ago."""
        ended = job_terms.c.job_id == sa.any_(sa.literal(sorted(set(job_ids)), postgresql.ARRAY(sa.Text)))
        await self._connection.execute(sa.delete(job_terms).where(ended | (job_terms.c.submitted_at < before)))

    async def waiting_in(self, domain_id: str) -> list[Waiting]:
        """Jobs that wait for this domain and no other."""
        bound = {"waiting": UnitState.WAITING.value, "done": UnitState.DONE.value, "domain": domain_id}
        rows = (await self._connection.execute(_WAITING, bound)).all()
        query = sa.select(job_terms).where(
            job_terms.c.job_id == sa.any_(sa.literal([row.job_id for row in rows], postgresql.ARRAY(sa.Text)))
        )
        terms: dict[str, Any] = {row.job_id: row for row in await self._connection.execute(query)}
        found = []
        for row in rows:
            known = terms.get(row.job_id)
            spec = None if known is None else json_format.ParseDict(known.spec, JobSpec())
            found.append(Waiting(row.job_id, known.tenant_id if known else "", float(row.accelerators), spec))
        return found

    async def held_in(self, domain_id: str) -> float:
        """Accelerators that runs hold in a domain at this moment."""
        bound = {"held": UnitState.HELD.value, "domain": domain_id}
        return float((await self._connection.execute(_HELD, bound)).scalar_one())

    async def history_of(self, domain_id: str, width_s: float) -> dict[float, float]:
        """Means of the demand of a domain by the time (epoch) of windows of ``width_s``; zero where nothing was asked."""
        began = (await self._connection.execute(_BEGAN)).scalar_one()
        if began is None:
            return {}
        bound = {"width": width_s, "kind": SubjectKind.DOMAIN.value, "domain": domain_id}
        rows = {float(row.at): float(row.accelerators) for row in await self._connection.execute(_HISTORY, bound)}
        if not rows:
            return {}
        first, last = float(began) // width_s * width_s, max(rows)
        count = int((last - first) / width_s) + 1
        return {first + place * width_s: rows.get(first + place * width_s, 0.0) for place in range(count)}


class TermEvents:
    """Keeps the terms of jobs until they end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def handle(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Take a batch of `TERM_EVENTS`."""
        now = self._clock.now()
        store = TermsStore(transaction.connection)
        await store.keep([item.data for item in envelopes if isinstance(item.data, JobSubmitted)], now)
        finished = [item.data.job_id for item in envelopes if isinstance(item.data, JobFinished)]
        if finished:
            await store.forget(finished, now - _KEEP)
