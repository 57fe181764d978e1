"""SQL of runs: what recovery needs to know of them, what was lost, and what is planned for it. See `store` for the locks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.failover.recovery import Cause, Checkpoint, LostRun, Plan, Unit
from services.failover.tables import TIME, any_of, checkpoints, recoveries, run_domains, runs

# How a run ended where that matters later; any other text is for people.
ENDED_BY_PROGRAM = "program"
ENDED_BY_JOB = "job finished"
ENDED_BY_NEWER = "superseded"


@dataclass(frozen=True, slots=True)
class Placement:
    """A run as it was placed."""

    run_id: str
    unit: Unit
    epoch: int
    restore_from: str
    restore_step: int
    placed_at: datetime
    nodes_by_domain: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run."""

    run_id: str
    unit: Unit
    epoch: int
    at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """A checkpoint that a run wrote."""

    unit: Unit
    run_id: str
    checkpoint: Checkpoint
    at: datetime


class RunStore:
    """Runs with their checkpoints and recoveries, seen from one transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    # -- runs ----------------------------------------------------------------------------------------------------

    async def note_placements(self, placements: Sequence[Placement]) -> None:
        """Keep placed runs; every older run of the same unit has ended by that."""
        if not placements:
            return
        statement = insert(runs)
        statement = statement.on_conflict_do_update(
            index_elements=[runs.c.run_id],
            set_={name: statement.excluded[name] for name in ("placed_at", "restore_from", "restore_step")},
        )
        newest = {placement.run_id: placement for placement in placements}
        rows = [
            {
                **_run_key(item.run_id, item.unit, item.epoch),
                "restore_from": item.restore_from,
                "restore_step": item.restore_step,
                "placed_at": item.placed_at,
            }
            for item in newest.values()
        ]
        await self._connection.execute(statement, rows)
        places = insert(run_domains)
        places = places.on_conflict_do_update(
            index_elements=[run_domains.c.run_id, run_domains.c.domain_id],
            set_={"node_ids": places.excluded.node_ids},
        )
        await self._connection.execute(
            places,
            [
                {"run_id": item.run_id, "domain_id": domain_id, "node_ids": list(node_ids)}
                for item in newest.values()
                for domain_id, node_ids in item.nodes_by_domain.items()
            ],
        )
        superseded = sa.text(
            "UPDATE runs SET ended_at = newer.placed_at, end_reason = :reason FROM runs AS newer "
            "WHERE newer.run_id = ANY(:run_ids) AND runs.job_id = newer.job_id "
            "AND runs.unit_index = newer.unit_index AND runs.epoch < newer.epoch AND runs.ended_at IS NULL"
        ).bindparams(
            sa.bindparam("run_ids", sorted(newest), postgresql.ARRAY(sa.Text)),
            sa.bindparam("reason", ENDED_BY_NEWER, sa.Text),
        )
        await self._connection.execute(superseded)
        replaced = sa.text(
            "UPDATE recoveries SET replaced_at = newer.placed_at, replaced_by = newer.run_id FROM runs AS newer "
            "WHERE newer.run_id = ANY(:run_ids) AND recoveries.job_id = newer.job_id "
            "AND recoveries.unit_index = newer.unit_index AND recoveries.epoch < newer.epoch "
            "AND recoveries.replaced_at IS NULL"
        ).bindparams(sa.bindparam("run_ids", sorted(newest), postgresql.ARRAY(sa.Text)))
        await self._connection.execute(replaced)

    async def note_endings(self, endings: Sequence[Ending]) -> None:
        """Keep the ends of runs, also of runs whose placement has not been heard of yet; the first end counts."""
        first: dict[str, Ending] = {}
        for ending in endings:
            first.setdefault(ending.run_id, ending)
        if not first:
            return
        statement = insert(runs)
        statement = statement.on_conflict_do_update(
            index_elements=[runs.c.run_id],
            set_={"ended_at": statement.excluded.ended_at, "end_reason": statement.excluded.end_reason},
            where=runs.c.ended_at.is_(None),
        )
        rows = [
            {**_run_key(item.run_id, item.unit, item.epoch), "ended_at": item.at, "end_reason": item.reason}
            for item in first.values()
        ]
        await self._connection.execute(statement, rows)

    async def note_finished(self, finished: Sequence[tuple[str, str, datetime]]) -> None:
        """Keep that runs finished in domains (run, domain, time): there a later loss takes nothing from them."""
        if not finished:
            return
        statement = insert(run_domains)
        statement = statement.on_conflict_do_update(
            index_elements=[run_domains.c.run_id, run_domains.c.domain_id],
            set_={"finished_at": statement.excluded.finished_at},
        )
        rows = {(run_id, domain_id): at for run_id, domain_id, at in finished}
        await self._connection.execute(
            statement,
            [{"run_id": run_id, "domain_id": domain_id, "finished_at": at} for (run_id, domain_id), at in rows.items()],
        )

    async def note_jobs_finished(self, job_ids: Iterable[str], at: datetime) -> None:
        """End all runs of jobs that reached their final state, and what still waited to resume."""
        await self._connection.execute(
            sa.update(runs)
            .where(any_of(runs.c.job_id, job_ids), runs.c.ended_at.is_(None))
            .values(ended_at=at, end_reason=ENDED_BY_JOB)
        )

    async def note_checkpoints(self, written: Sequence[Written]) -> None:
        """Keep the newest checkpoint, by step, of each unit; of equal steps the one written last."""
        newest: dict[Unit, Written] = {}
        for item in written:
            kept = newest.get(item.unit)
            if kept is None or (item.checkpoint.step, item.at) >= (kept.checkpoint.step, kept.at):
                newest[item.unit] = item
        if not newest:
            return
        statement = insert(checkpoints)
        statement = statement.on_conflict_do_update(
            index_elements=[checkpoints.c.job_id, checkpoints.c.unit_index],
            set_={name: statement.excluded[name] for name in ("step", "path", "run_id", "written_at")},
            where=sa.tuple_(checkpoints.c.step, checkpoints.c.written_at)
            <= sa.tuple_(statement.excluded.step, statement.excluded.written_at),
        )
        rows = [
            {
                **asdict(item.unit),
                "step": item.checkpoint.step,
                "path": item.checkpoint.path,
                "run_id": item.run_id,
                "written_at": item.at,
            }
            for item in newest.values()
        ]
        await self._connection.execute(statement, rows)

    async def note_resumed(self, started: Sequence[tuple[Unit, int, datetime]]) -> list[sa.Row[Any]]:
        """Runs of units started (unit, epoch, time): returns the recoveries that are complete by that."""
        if not started:
            return []
        statement = sa.text(
            "UPDATE recoveries SET resumed_at = started.at "
            "FROM unnest(:jobs, :units, :epochs, :times) AS started(job_id, unit_index, epoch, at) "
            "WHERE recoveries.job_id = started.job_id AND recoveries.unit_index = started.unit_index "
            "AND recoveries.epoch < started.epoch AND recoveries.resumed_at IS NULL "
            "RETURNING recoveries.run_id, recoveries.incident_id, recoveries.detected_at, recoveries.last_seen_at, "
            "recoveries.resumed_at, started.epoch AS new_epoch"
        ).bindparams(
            sa.bindparam("jobs", [unit.job_id for unit, _, _ in started], postgresql.ARRAY(sa.Text)),
            sa.bindparam("units", [unit.unit_index for unit, _, _ in started], postgresql.ARRAY(sa.Integer)),
            sa.bindparam("epochs", [epoch for _, epoch, _ in started], postgresql.ARRAY(sa.BigInteger)),
            sa.bindparam("times", [at for _, _, at in started], postgresql.ARRAY(TIME)),
        )
        return list((await self._connection.execute(statement)).all())

    async def close_run_incidents(self, incident_ids: Iterable[str], job_ids: Iterable[str], at: datetime) -> None:
        """Close incidents of the kind ``run_lost`` in which nothing waits any more, among these or of these jobs."""
        statement = sa.text(
            "UPDATE incidents SET state = 'closed', closed_at = :at, "
            "timeline = timeline || jsonb_build_array(jsonb_build_object('at', :text, 'event', 'closed', 'detail', '')) "
            "WHERE state = 'open' AND kind = 'run_lost' AND (incident_id = ANY(:incident_ids) OR incident_id IN "
            "(SELECT incident_id FROM recoveries WHERE job_id = ANY(:job_ids))) AND NOT EXISTS "
            "(SELECT 1 FROM recoveries WHERE recoveries.incident_id = incidents.incident_id "
            "AND recoveries.resumed_at IS NULL AND NOT recoveries.job_id = ANY(:job_ids))"
        ).bindparams(
            sa.bindparam("at", at, TIME),
            sa.bindparam("text", at.isoformat(), sa.Text),
            sa.bindparam("incident_ids", sorted(set(incident_ids)), postgresql.ARRAY(sa.Text)),
            sa.bindparam("job_ids", sorted(set(job_ids)), postgresql.ARRAY(sa.Text)),
        )
        await self._connection.execute(statement)

    # -- losses and plans ----------------------------------------------------------------------------------------

    async def runs_on_node(self, domain_id: str, node_id: str, *, collateral_since: datetime) -> list[LostRun]:
        """Runs that execute on the node now, and those whose program failed there since ``collateral_since``.

        A rank on another node often fails first, with a broken connection to the one that died: that failure is the
        node's, not the program's.
        """
        query = _LOST.where(run_domains.c.node_ids.contains([node_id]), run_domains.c.domain_id == domain_id).where(
            sa.or_(
                runs.c.ended_at.is_(None),
                sa.and_(runs.c.end_reason == ENDED_BY_PROGRAM, runs.c.ended_at >= collateral_since, _IS_NEWEST),
            )
        )
        return [_lost_run(row) for row in (await self._connection.execute(query)).all()]

    async def runs_in_domain(self, domain_id: str) -> list[LostRun]:
        """Runs that execute in the domain now."""
        query = _LOST.where(run_domains.c.domain_id == domain_id, runs.c.ended_at.is_(None))
        return [_lost_run(row) for row in (await self._connection.execute(query)).all()]

    async def restore_points(self, run_ids: Iterable[str]) -> dict[str, tuple[str, int, tuple[str, ...]]]:
        """What runs were started from, and the nodes they were placed on."""
        query = (
            sa.select(
                runs.c.run_id,
                runs.c.restore_from,
                runs.c.restore_step,
                sa.func.array_agg(sa.func.array_to_string(run_domains.c.node_ids, "\n")).label("nodes"),
            )
            .join(run_domains, run_domains.c.run_id == runs.c.run_id)
            .where(any_of(runs.c.run_id, run_ids))
            .group_by(runs.c.run_id, runs.c.restore_from, runs.c.restore_step)
        )
        return {
            row.run_id: (
                row.restore_from,
                row.restore_step,
                tuple(node for text in row.nodes for node in text.split("\n") if node),
            )
            for row in (await self._connection.execute(query)).all()
        }

    async def ended_otherwise(self, run_ids: Iterable[str]) -> set[str]:
        """Those of the runs that need no plan: their job finished, or a newer run took their place."""
        query = sa.select(runs.c.run_id).where(
            any_of(runs.c.run_id, run_ids), runs.c.end_reason.in_([ENDED_BY_JOB, ENDED_BY_NEWER])
        )
        return set((await self._connection.execute(query)).scalars())

    async def newest_checkpoints(self, units: Iterable[Unit]) -> dict[Unit, Checkpoint]:
        """The newest checkpoint of each unit that has one."""
        wanted = set(units)
        query = sa.select(checkpoints).where(any_of(checkpoints.c.job_id, {unit.job_id for unit in wanted}))
        found = {
            Unit(row.job_id, row.unit_index): Checkpoint(row.path, row.step)
            for row in (await self._connection.execute(query)).all()
        }
        return {unit: found[unit] for unit in wanted if unit in found}

    async def claim_plans(
        self, plans: Sequence[Plan], incident_id: str, cause: Cause, at: datetime, last_seen_at: datetime | None
    ) -> list[Plan]:
        """Keep plans; returns those that are new. A run is planned once, whoever comes first."""
        if not plans:
            return []
        rows = [
            {
                "run_id": plan.run.run_id,
                "incident_id": incident_id,
                **asdict(plan.run.unit),
                "epoch": plan.run.epoch,
                "cause": cause,
                "restore_from": plan.restore_from,
                "restore_step": plan.restore_step,
                "last_seen_at": last_seen_at,
                "detected_at": at,
                "planned_at": at,
            }
            for plan in plans
        ]
        statement = insert(recoveries).values(rows).on_conflict_do_nothing().returning(recoveries.c.run_id)
        new = set((await self._connection.execute(statement)).scalars())
        return [plan for plan in plans if plan.run.run_id in new]

    async def planned(self, run_ids: Iterable[str]) -> set[str]:
        """Those of the runs that have a plan."""
        query = sa.select(recoveries.c.run_id).where(any_of(recoveries.c.run_id, run_ids))
        return set((await self._connection.execute(query)).scalars())


def _run_key(run_id: str, unit: Unit, epoch: int) -> dict[str, Any]:
    return {"run_id": run_id, **asdict(unit), "epoch": epoch}


_LOST = (
    sa.select(runs, run_domains.c.domain_id, run_domains.c.node_ids)
    .join(run_domains, run_domains.c.run_id == runs.c.run_id)
    .where(runs.c.placed_at.is_not(None), run_domains.c.finished_at.is_(None))
)
_newer = runs.alias("newer")
_IS_NEWEST = ~sa.exists().where(
    _newer.c.job_id == runs.c.job_id, _newer.c.unit_index == runs.c.unit_index, _newer.c.epoch > runs.c.epoch
)


def _lost_run(row: sa.Row[Any]) -> LostRun:
    return LostRun(
        row.run_id,
        Unit(row.job_id, row.unit_index),
        row.epoch,
        row.domain_id,
        tuple(row.node_ids),
        row.restore_from,
        row.restore_step,
    )
