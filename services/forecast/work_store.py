"""All SQL of what the structure of jobs lets expect: work with its progress, ended runs, arrivals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.forecast.ledger import Job, Subject, SubjectKind
from services.forecast.progress import Progress
from services.forecast.schema import capacity, forecasts, jobs, levels, units
from services.forecast.store import unit_of as unit_of_row

_metadata = sa.MetaData()
_TIME = sa.DateTime(timezone=True)
# How long ended runs and arrivals are kept to learn from.
KEEP = timedelta(days=14)
# How many of each are read at most, after a start.
MOST = 100_000

run_progress = sa.Table(
    "run_progress",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("unit_index", sa.Integer, primary_key=True),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("body", postgresql.JSONB),
)
ended_runs = sa.Table(
    "ended_runs",
    _metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("owner", sa.Text),
    sa.Column("accelerators", sa.Double),
    sa.Column("lasted_s", sa.Double),
    sa.Column("by_itself", sa.Boolean),
    sa.Column("at", _TIME),
)
arrivals = sa.Table(
    "arrivals",
    _metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("subject_kind", sa.Text),
    sa.Column("subject_id", sa.Text),
    sa.Column("owner", sa.Text),
    sa.Column("accelerators", sa.Double),
    sa.Column("at", _TIME),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that ended, of whom, on how many accelerators, after how long; whether it came to its own end."""

    owner: str
    accelerators: float
    lasted_s: float
    by_itself: bool
    at: datetime


@dataclass(frozen=True, slots=True)
class Arrived:
    """Work of ``owner`` that began to count for a subject."""

    subject: Subject
    owner: str
    accelerators: float
    at: datetime


@dataclass(frozen=True, slots=True)
class AskingJob:
    """A job that asks for something, its file (a serialised JobSpec, None where it was not heard), and the progress of
    its units' present runs."""

    job: Job
    spec: bytes | None
    progress: Mapping[int, Progress]


@dataclass(frozen=True, slots=True)
class Learned:
    """What came since it was last asked; ``until`` is where to go on from."""

    ended: list[Ended]
    arrived: list[Arrived]
    until: tuple[int, int]


def progress_of(body: Mapping[str, Any]) -> Progress:
    """Progress as it is stored. Fields that a later release added, whose replicas write beside this one's, are passed over."""
    return Progress(**{item.name: body[item.name] for item in fields(Progress) if item.name in body})


class WorkStore:
    """The tables, seen from one transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def keep_specs(self, specs: Mapping[str, bytes]) -> None:
        """Keep the files of jobs that `Store.take_jobs` has locked."""
        for job_id, spec in specs.items():
            await self._connection.execute(sa.update(jobs).where(jobs.c.job_id == job_id).values(spec=spec))

    async def chips_of_nodes(self, node_ids: Iterable[str]) -> dict[str, str]:
        """The model of the accelerators of those nodes that are known."""
        wanted = sa.literal(sorted(set(node_ids)), postgresql.ARRAY(sa.Text))
        query = sa.select(capacity.c.node_id, capacity.c.chip).where(
            capacity.c.node_id == sa.any_(wanted), capacity.c.chip != ""
        )
        return {row.node_id: row.chip for row in (await self._connection.execute(query)).all()}

    async def models(self) -> frozenset[str]:
        """The models of accelerators that nodes with one model have."""
        query = sa.select(capacity.c.chip).where(capacity.c.chip != "").distinct()
        return frozenset((await self._connection.execute(query)).scalars())

    async def take_progress(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, Progress]]:
        """The progress of units with the epoch of its run, locked."""
        wanted = sorted(set(keys))
        key = sa.tuple_(run_progress.c.job_id, run_progress.c.unit_index)
        query = sa.select(run_progress).where(key.in_(wanted)).order_by(*run_progress.primary_key).with_for_update()
        rows = (await self._connection.execute(query)).all()
        return {(row.job_id, row.unit_index): (row.epoch, progress_of(row.body)) for row in rows}

    async def keep_progress(self, found: Mapping[tuple[str, int], tuple[int, Progress]]) -> None:
        """Keep the progress of units; that of an older run is not kept over a newer one's."""
        rows = [
            {"job_id": job_id, "unit_index": index, "epoch": epoch, "body": asdict(progress)}
            for (job_id, index), (epoch, progress) in sorted(found.items())
        ]
        if rows:
            statement = insert(run_progress)
            statement = statement.on_conflict_do_update(
                index_elements=list(run_progress.primary_key),
                set_={"epoch": statement.excluded.epoch, "body": statement.excluded.body},
                where=run_progress.c.epoch <= statement.excluded.epoch,
            )
            await self._connection.execute(statement, rows)

    async def add_ended(self, items: Sequence[Ended]) -> None:
        """Note runs that ended."""
        if items:
            await self._connection.execute(sa.insert(ended_runs), [asdict(item) for item in items])

    async def add_arrived(self, items: Sequence[Arrived]) -> None:
        """Note work that came."""
        rows = [
            {
                "subject_kind": item.subject.kind,
                "subject_id": item.subject.id,
                "owner": item.owner,
                "accelerators": item.accelerators,
                "at": item.at,
            }
            for item in items
        ]
        if rows:
            await self._connection.execute(sa.insert(arrivals), rows)

    async def forget(self, before: datetime) -> None:
        """Remove what is too old to learn from, and progress of jobs that are forgotten."""
        for table in (ended_runs, arrivals):
            await self._connection.execute(sa.delete(table).where(table.c.at < before))
        known = sa.select(jobs.c.job_id).where(jobs.c.job_id == run_progress.c.job_id)
        await self._connection.execute(sa.delete(run_progress).where(~known.exists()))

    async def load_since(self, since: tuple[int, int]) -> Learned:
        """What was noted after ``since``, the newest `MOST` of each; what is written late may be passed over: it is one of many."""
        gone, came = [
            (
                await self._connection.execute(
                    sa.select(table).where(table.c.seq > seq).order_by(table.c.seq.desc()).limit(MOST)
                )
            ).all()[::-1]
            for table, seq in zip((ended_runs, arrivals), since, strict=True)
        ]
        return Learned(
            [Ended(row.owner, row.accelerators, row.lasted_s, row.by_itself, row.at) for row in gone],
            [
                Arrived(Subject(SubjectKind(row.subject_kind), row.subject_id), row.owner, row.accelerators, row.at)
                for row in came
            ],
            (gone[-1].seq if gone else since[0], came[-1].seq if came else since[1]),
        )

    async def load_asking(self) -> list[AskingJob]:
        """The jobs that hold or ask for anything."""
        open_units = sa.select(units.c.job_id).where(units.c.state != "done")
        query = sa.select(jobs).where(~jobs.c.finished, jobs.c.job_id.in_(open_units)).order_by(jobs.c.job_id)
        heads = (await self._connection.execute(query)).all()
        ids = sa.literal([row.job_id for row in heads], postgresql.ARRAY(sa.Text))
        found: dict[str, dict[int, Any]] = {row.job_id: {} for row in heads}
        for row in (await self._connection.execute(sa.select(units).where(units.c.job_id == sa.any_(ids)))).all():
            found[row.job_id][row.unit_index] = unit_of_row(row)
        reported: dict[str, dict[int, Progress]] = {}
        rows = await self._connection.execute(sa.select(run_progress).where(run_progress.c.job_id == sa.any_(ids)))
        for row in rows.all():
            unit = found[row.job_id].get(row.unit_index)
            if unit is not None and unit.epoch == row.epoch:
                reported.setdefault(row.job_id, {})[row.unit_index] = progress_of(row.body)
        return [
            AskingJob(
                Job(row.job_id, row.tenant_id, row.submitted, row.finished, found[row.job_id]),
                row.spec,
                reported.get(row.job_id, {}),
            )
            for row in heads
        ]

    async def forget_jobs_but(self, kept: Iterable[Subject]) -> None:
        """Remove the forecasts of other jobs."""
        ids = sa.literal(sorted(subject.id for subject in kept), postgresql.ARRAY(sa.Text))
        await self._connection.execute(
            sa.delete(forecasts).where(
                forecasts.c.subject_kind == SubjectKind.JOB, forecasts.c.subject_id != sa.all_(ids)
            )
        )

    async def joined_domains(self) -> list[str]:
        """Domains that offer something and have no forecast yet."""
        query = sa.text(
            "SELECT DISTINCT domain_id FROM capacity WHERE NOT EXISTS (SELECT 1 FROM forecasts"
            " WHERE subject_kind = 'domain' AND subject_id = domain_id) ORDER BY domain_id"
        )
        return [row.domain_id for row in (await self._connection.execute(query)).all()]

    async def begin_levels(self, subjects: Iterable[Subject]) -> None:
        """Let subjects have windows from now on, though nothing is asked of them yet."""
        rows = [
            {"subject_kind": subject.kind, "subject_id": subject.id, "accelerators": 0.0, "cpus": 0.0}
            for subject in subjects
        ]
        if rows:
            await self._connection.execute(insert(levels).values(rows).on_conflict_do_nothing())
