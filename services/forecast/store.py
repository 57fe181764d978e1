"""SQL of demand: the ledger of jobs, windows of what they used, forecasts, capacity. That of structure: work_store.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.forecast.ledger import Amount, Job, Subject, SubjectKind, Unit, UnitState
from services.forecast.schema import TIME, capacity, changes, chips, forecasts, jobs, levels, sampling, units, windows

# The integral of a step function over [start, end): its level before, and each change times the time that is left.
_CLOSE_WINDOW = sa.text(
    """
    WITH taken AS (
        DELETE FROM changes WHERE at < :end RETURNING subject_kind, subject_id, at, accelerators, cpus
    ), sums AS (
        SELECT subject_kind, subject_id,
               sum(accelerators) AS accelerators, sum(cpus) AS cpus,
               sum(accelerators * extract(epoch FROM :end - greatest(at, :start))::float8) AS accelerators_s,
               sum(cpus * extract(epoch FROM :end - greatest(at, :start))::float8) AS cpus_s
        FROM taken GROUP BY subject_kind, subject_id
    ), closed AS (
        INSERT INTO windows (window_start, subject_kind, subject_id, accelerators, cpus)
        SELECT :start, subject_kind, subject_id,
               coalesce(levels.accelerators, 0) + coalesce(sums.accelerators_s, 0) / :width,
               coalesce(levels.cpus, 0) + coalesce(sums.cpus_s, 0) / :width
        FROM levels FULL JOIN sums USING (subject_kind, subject_id)
    )
    INSERT INTO levels (subject_kind, subject_id, accelerators, cpus)
    SELECT subject_kind, subject_id, accelerators, round(cpus::numeric, 6)::float8 FROM sums
    ON CONFLICT (subject_kind, subject_id) DO UPDATE
    SET accelerators = levels.accelerators + excluded.accelerators,
        cpus = round((levels.cpus + excluded.cpus)::numeric, 6)::float8
    """
).bindparams(sa.bindparam("start", type_=TIME), sa.bindparam("end", type_=TIME), sa.bindparam("width", type_=sa.Double))

_FORGET_IDLE = sa.text(
    """
    DELETE FROM levels WHERE accelerators = 0 AND cpus = 0 AND NOT EXISTS (
        SELECT 1 FROM windows WHERE windows.subject_kind = levels.subject_kind
        AND windows.subject_id = levels.subject_id AND (windows.accelerators > 0 OR windows.cpus > 0))
    AND NOT (subject_kind = 'domain' AND subject_id IN (SELECT domain_id FROM capacity))
    RETURNING subject_kind, subject_id
    """
)


@dataclass(frozen=True, slots=True)
class Change:
    """Demand that came (positive) or went (negative)."""

    subject: Subject
    at: datetime
    amount: Amount


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What a node offers."""

    node_id: str
    domain_id: str
    accelerators: int
    cpus: float
    version: int
    # The model of its accelerators; empty without, or with several.
    chip: str = ""


def _any(column: sa.Column[Any], values: Iterable[str]) -> sa.ColumnElement[bool]:
    return column == sa.any_(sa.literal(sorted(set(values)), postgresql.ARRAY(sa.Text)))


class Store:
    """The tables, seen from one transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    # -- the ledger ----------------------------------------------------------------------------------------------

    async def take_jobs(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Lock and read jobs with their units; unknown ones are created empty, so that they can be locked too."""
        wanted = sorted(set(job_ids))
        rows = [
            {"job_id": job_id, "tenant_id": "", "submitted": False, "finished": False, "changed_at": sa.func.now()}
            for job_id in wanted
        ]
        await self._connection.execute(insert(jobs).values(rows).on_conflict_do_nothing())
        query = sa.select(jobs).where(_any(jobs.c.job_id, wanted)).order_by(jobs.c.job_id).with_for_update()
        heads = (await self._connection.execute(query)).all()
        found: dict[str, dict[int, Unit]] = {row.job_id: {} for row in heads}
        query_units = sa.select(units).where(_any(units.c.job_id, wanted))
        for row in (await self._connection.execute(query_units)).all():
            found[row.job_id][row.unit_index] = unit_of(row)
        return {
            row.job_id: Job(row.job_id, row.tenant_id, row.submitted, row.finished, found[row.job_id]) for row in heads
        }

    async def keep_jobs(self, changed: Sequence[tuple[Job, Job]], at: datetime) -> None:
        """Write jobs (before, after) and those of their units that differ."""
        heads = [
            {
                "job_id": after.job_id,
                "tenant_id": after.tenant_id,
                "submitted": after.submitted,
                "finished": after.finished,
                "changed_at": at,
            }
            for _, after in changed
        ]
        if not heads:
            return
        statement = insert(jobs)
        names = ("tenant_id", "submitted", "finished", "changed_at")
        statement = statement.on_conflict_do_update(
            index_elements=[jobs.c.job_id], set_={name: statement.excluded[name] for name in names}
        )
        await self._connection.execute(statement, heads)
        rows = [
            _unit_row(after.job_id, unit)
            for before, after in changed
            for index, unit in after.units.items()
            if before.units.get(index) != unit
        ]
        if rows:
            await self._connection.execute(_replacing(units), rows)

    async def add_changes(self, items: Sequence[Change]) -> None:
        """Note changes of demand."""
        rows = [
            {
                "subject_kind": item.subject.kind,
                "subject_id": item.subject.id,
                "at": item.at,
                "accelerators": item.amount.accelerators,
                "cpus": item.amount.cpus,
            }
            for item in items
        ]
        if rows:
            await self._connection.execute(sa.insert(changes), rows)

    async def forget_jobs(self, before: datetime) -> None:
        """Remove jobs that finished long ago."""
        old = sa.select(jobs.c.job_id).where(jobs.c.finished, jobs.c.changed_at < before)
        await self._connection.execute(sa.delete(units).where(units.c.job_id.in_(old)))
        await self._connection.execute(sa.delete(jobs).where(jobs.c.finished, jobs.c.changed_at < before))

    # -- windows -------------------------------------------------------------------------------------------------

    async def begin_sampling(self, window_s: float, first: datetime) -> datetime:
        """Lock the sampling; returns until when windows are closed. Another window length starts the history anew."""
        row = {"single": True, "window_s": window_s, "closed_until": first}
        await self._connection.execute(insert(sampling).values(row).on_conflict_do_nothing())
        state = (await self._connection.execute(sa.select(sampling).with_for_update())).one()
        if state.window_s == window_s:
            closed_until: datetime = state.closed_until
            return closed_until
        await self._connection.execute(sa.delete(windows))
        await self._connection.execute(sa.delete(forecasts))
        closed_until = max(first, state.closed_until)
        await self._connection.execute(sa.update(sampling).values(window_s=window_s, closed_until=closed_until))
        return closed_until

    async def close_window(self, start: datetime, end: datetime) -> None:
        """Make the time-weighted means of [start, end) and move all levels to ``end``."""
        width = (end - start).total_seconds()
        await self._connection.execute(_CLOSE_WINDOW, {"start": start, "end": end, "width": width})
        await self._connection.execute(sa.update(sampling).values(closed_until=end))

    async def forget_windows(self, before: datetime) -> list[Subject]:
        """Remove old windows, and subjects without demand in all that are kept; returns these subjects."""
        await self._connection.execute(sa.delete(windows).where(windows.c.window_start < before))
        gone = [
            Subject(SubjectKind(row.subject_kind), row.subject_id)
            for row in (await self._connection.execute(_FORGET_IDLE)).all()
        ]
        if gone:
            keys = [(subject.kind.value, subject.id) for subject in gone]
            for table in (windows, forecasts):
                await self._connection.execute(
                    sa.delete(table).where(sa.tuple_(table.c.subject_kind, table.c.subject_id).in_(keys))
                )
        return gone

    async def load_windows(self, since: datetime) -> Sequence[sa.Row[Any]]:
        """All windows from ``since`` on, by time."""
        query = sa.select(windows).where(windows.c.window_start >= since).order_by(windows.c.window_start)
        return (await self._connection.execute(query)).all()

    async def load_levels(self) -> dict[Subject, Amount]:
        """The demand at the end of the last closed window."""
        rows = (await self._connection.execute(sa.select(levels))).all()
        return {
            Subject(SubjectKind(row.subject_kind), row.subject_id): Amount(row.accelerators, row.cpus) for row in rows
        }

    # -- forecasts -----------------------------------------------------------------------------------------------

    async def load_forecasts(
        self, kind: str | None = None, subject_id: str | None = None
    ) -> dict[Subject, sa.Row[Any]]:
        """The newest forecast of each subject."""
        query = sa.select(forecasts).order_by(forecasts.c.subject_kind, forecasts.c.subject_id)
        if kind is not None:
            query = query.where(forecasts.c.subject_kind == kind)
        if subject_id is not None:
            query = query.where(forecasts.c.subject_id == subject_id)
        rows = (await self._connection.execute(query)).all()
        return {Subject(SubjectKind(row.subject_kind), row.subject_id): row for row in rows}

    async def keep_forecasts(
        self, made: Mapping[Subject, dict[str, Any]], made_at: datetime, published: Iterable[Subject]
    ) -> None:
        """Keep forecasts; those in ``published`` were published with this."""
        sent = set(published)
        for group, names in ((sent, ("made_at", "published_at", "body")), (set(made) - sent, ("made_at", "body"))):
            rows = [
                {
                    "subject_kind": subject.kind,
                    "subject_id": subject.id,
                    "made_at": made_at,
                    "published_at": made_at,
                    "body": made[subject],
                }
                for subject in sorted(group)
            ]
            if rows:
                statement = insert(forecasts)
                statement = statement.on_conflict_do_update(
                    index_elements=list(forecasts.primary_key),
                    set_={name: statement.excluded[name] for name in names},
                )
                await self._connection.execute(statement, rows)

    # -- capacity ------------------------------------------------------------------------------------------------

    async def keep_capacity(
        self, nodes: Sequence[NodeCapacity], removed: Iterable[tuple[str, str]], full: Mapping[str, int]
    ) -> None:
        """Keep what nodes offer, without those ``removed`` from their domain (domain id, node id).

        ``full`` names domains whose image of that version was complete.
        """
        newest = {node.node_id: node for node in sorted(nodes, key=lambda node: node.version)}
        if newest:
            rows = [
                {
                    "node_id": node.node_id,
                    "domain_id": node.domain_id,
                    "accelerators": node.accelerators,
                    "cpus": node.cpus,
                    "version": node.version,
                    "chip": node.chip,
                }
                for node in newest.values()
            ]
            statement = insert(capacity)
            statement = statement.on_conflict_do_update(
                index_elements=[capacity.c.node_id],
                set_={
                    name: statement.excluded[name] for name in ("domain_id", "accelerators", "cpus", "version", "chip")
                },
                where=capacity.c.version <= statement.excluded.version,
            )
            await self._connection.execute(statement, rows)
        if gone := sorted(removed):
            # Another domain may list the node by now.
            pairs = sa.tuple_(capacity.c.domain_id, capacity.c.node_id).in_(gone)
            await self._connection.execute(sa.delete(capacity).where(pairs))
        for domain_id, version in full.items():
            await self._connection.execute(
                sa.delete(capacity).where(capacity.c.domain_id == domain_id, capacity.c.version < version)
            )

    async def keep_chips(self, memory_bytes: Mapping[str, int]) -> None:
        """Keep the memory of accelerator models; of one model in several sizes the smallest, for a verdict must hold."""
        rows = [{"model": model, "memory_bytes": size} for model, size in sorted(memory_bytes.items())]
        if rows:
            statement = insert(chips)
            statement = statement.on_conflict_do_update(
                index_elements=[chips.c.model],
                set_={"memory_bytes": sa.func.least(chips.c.memory_bytes, statement.excluded.memory_bytes)},
                where=chips.c.memory_bytes > statement.excluded.memory_bytes,
            )
            await self._connection.execute(statement, rows)

    async def memory_of_chip(self, model: str) -> int | None:
        """Memory of an accelerator model that the network has."""
        query = sa.select(chips.c.memory_bytes).where(chips.c.model == model)
        return (await self._connection.execute(query)).scalar_one_or_none()

    async def capacity_of_domains(self) -> dict[str, Amount]:
        """What each domain offers."""
        query = sa.select(
            capacity.c.domain_id, sa.func.sum(capacity.c.accelerators), sa.func.sum(capacity.c.cpus)
        ).group_by(capacity.c.domain_id)
        return {
            domain_id: Amount(float(accelerators), float(cpus))
            for domain_id, accelerators, cpus in (await self._connection.execute(query)).all()
        }

    async def accelerators_of(self, domain_id: str) -> dict[str, int]:
        """Accelerators of a domain by model, the most first; those of nodes with none or several models are under ""."""
        total = sa.func.sum(capacity.c.accelerators)
        query = (
            sa.select(capacity.c.chip, total)
            .where((capacity.c.domain_id == domain_id) & (capacity.c.accelerators > 0))
            .group_by(capacity.c.chip)
            .order_by(total.desc(), capacity.c.chip)
        )
        return {chip: int(count) for chip, count in (await self._connection.execute(query)).all()}


def _replacing(table: sa.Table) -> postgresql.Insert:
    statement = insert(table)
    return statement.on_conflict_do_update(
        index_elements=list(table.primary_key),
        set_={column.name: statement.excluded[column.name] for column in table.c if not column.primary_key},
    )


def unit_of(row: sa.Row[Any]) -> Unit:
    """A row of units."""
    return Unit(
        row.unit_index,
        Amount(row.accelerators, row.cpus),
        row.cpus_per_rank,
        tuple(row.depends_on),
        row.only_domain,
        row.only_chip,
        row.limit_s,
        UnitState(row.state),
        row.epoch,
        row.held,
        row.ranks_held,
        row.chips_held,
        row.began_s,
        row.ended_epoch,
        frozenset(row.ended_domains),
    )


def _unit_row(job_id: str, unit: Unit) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "unit_index": unit.index,
        "accelerators": unit.asked.accelerators,
        "cpus": unit.asked.cpus,
        "cpus_per_rank": unit.cpus_per_rank,
        "depends_on": list(unit.depends_on),
        "only_domain": unit.only_domain,
        "only_chip": unit.only_chip,
        "limit_s": unit.limit_s,
        "state": unit.state,
        "epoch": unit.epoch,
        "held": dict(unit.held),
        "ranks_held": dict(unit.ranks_held),
        "chips_held": {domain: dict(parts) for domain, parts in unit.chips_held.items()},
        "began_s": unit.began_s,
        "ended_epoch": unit.ended_epoch,
        "ended_domains": sorted(unit.ended_domains),
    }
