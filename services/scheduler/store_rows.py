"""Rows and values: jobs, units, runs, nodes and domains as rows of their tables have them, and back.

What stands in a column as JSON is read without fields that a later release added: while replicas are replaced one by one an older one
may lead after a newer one wrote. What it takes values for that a later release added: `later_values`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from typing import Any

from meridian.contracts.job.v1 import job_pb2
from services.scheduler import later_values
from services.scheduler.core.fleet import Device, Domain, Link, Node
from services.scheduler.core.state import (
    Checkpoint,
    Job,
    Nomination,
    PlacedRank,
    Run,
    Unit,
    UnitKey,
)
from services.scheduler.core.units import units_of
from services.scheduler.wire import spec_from

Row = dict[str, Any]
"""A row by the names of its columns, as JSON types."""


def row_of_job(item: Job) -> Row:
    return {
        "job_id": item.job_id,
        "tenant_id": item.tenant_id,
        "state": str(item.state),
        "outcome": str(item.outcome) if item.outcome else None,
        "reason": item.reason,
        "succeeded_units": item.succeeded_units,
        "active_runs": item.active_runs,
        "open_runs": item.open_runs,
        "restarts": item.restarts,
        "decisions": item.decisions,
        "submitted_at_s": item.submitted_at_s,
        "finished_at_s": item.finished_at_s,
        "traceparent": item.traceparent,
    }


def job_of(row: Any) -> Job:
    spec = spec_from(job_pb2.JobSpec.FromString(row.spec))
    return Job(
        row.job_id,
        row.tenant_id,
        spec,
        units_of(spec),
        row.submitted_at_s,
        later_values.job_state(
            row.state, outcome=row.outcome, finished_at_s=row.finished_at_s, active_runs=row.active_runs
        ),
        later_values.job_outcome(row.outcome),
        row.reason,
        row.succeeded_units,
        row.active_runs,
        row.open_runs,
        row.restarts,
        row.decisions,
        row.finished_at_s,
        row.traceparent,
    )


def row_of_unit(item: Unit) -> Row:
    return {
        "job_id": item.key.job_id,
        "unit_index": item.key.unit_index,
        "state": str(item.state),
        "queued_at_s": item.queued_at_s,
        "epoch": item.epoch,
        "failures": item.failures,
        "recoveries": item.recoveries,
        "not_before_s": item.not_before_s,
        "recovery_due_s": item.recovery_due_s,
        "checkpoint": asdict(item.checkpoint) if item.checkpoint else None,
        "excluded_nodes": sorted(item.excluded_nodes),
        "excluded_until_s": item.excluded_until_s,
        "reason": item.reason,
        "attained_s": item.attained_s,
        "kept_s": item.kept_s,
        "nomination": _nomination_row(item.nomination) if item.nomination else None,
        "served_s": item.served_s,
    }


def _nomination_row(item: Nomination) -> Row:
    return {**asdict(item), "ranks": _rank_rows(item.ranks), "waits_for": sorted(item.waits_for)}


def _known(kind: type, row: Mapping[str, Any]) -> Row:
    """Of a row in JSON the fields of this release's dataclass."""
    return {name: row[name] for name in _names_of(kind) if name in row}


@cache
def _names_of(kind: type) -> tuple[str, ...]:
    return tuple([item.name for item in fields(kind)])


def _nomination_of(row: Mapping[str, Any]) -> Nomination:
    known = _known(Nomination, row)
    return Nomination(**{**known, "ranks": ranks_of(row["ranks"]), "waits_for": frozenset(row["waits_for"])})


def unit_of(row: Any, *, active: bool = False) -> Unit:
    """``active``: a run of the unit's epoch is."""
    return Unit(
        UnitKey(row.job_id, row.unit_index),
        later_values.unit_state(row.state, active=active),
        row.queued_at_s,
        row.epoch,
        row.failures,
        row.recoveries,
        row.not_before_s,
        row.recovery_due_s,
        Checkpoint(**_known(Checkpoint, row.checkpoint)) if row.checkpoint else None,
        frozenset(row.excluded_nodes),
        row.excluded_until_s,
        row.reason,
        row.attained_s,
        row.kept_s,
        _nomination_of(row.nomination) if row.nomination else None,
        getattr(row, "served_s", 0.0),
    )


def row_of_run(item: Run) -> Row:
    return {
        "run_id": item.run_id,
        "job_id": item.key.job_id,
        "unit_index": item.key.unit_index,
        "epoch": item.epoch,
        "tenant_id": item.tenant_id,
        "state": str(item.state),
        "ranks": _rank_rows(item.ranks),
        "open_domains": sorted(item.open_domains),
        "cpus": item.cpus,
        "memory_bytes": item.memory_bytes,
        "master_addr": item.master_addr,
        "master_port": item.master_port,
        "service_port": item.service_port,
        "assigned_at_s": item.assigned_at_s,
        "started_at_s": item.started_at_s,
        "stop_until_s": item.stop_until_s,
        "ended_at_s": item.ended_at_s,
        "reason": item.reason,
        "decision_id": item.decision_id,
        "preempted_for": item.preempted_for,
    }


def _rank_rows(ranks: Iterable[PlacedRank]) -> list[list[Any]]:
    return [
        [rank.rank, rank.domain_id, rank.node_id, rank.local_rank, list(rank.devices)]
        + ([rank.device_milli] if rank.device_milli != 1000 else [])
        for rank in ranks
    ]


def ranks_of(rows: Iterable[Sequence[Any]]) -> tuple[PlacedRank, ...]:
    """Ranks as the column ``run.ranks`` has them."""
    return tuple(
        PlacedRank(rank, domain_id, node_id, local, tuple(devices), *share)
        for rank, domain_id, node_id, local, devices, *share in rows
    )


def run_of(row: Any) -> Run:
    return Run(
        run_id=row.run_id,
        key=UnitKey(row.job_id, row.unit_index),
        epoch=row.epoch,
        tenant_id=row.tenant_id,
        ranks=ranks_of(row.ranks),
        open_domains=frozenset(row.open_domains),
        cpus=row.cpus,
        memory_bytes=row.memory_bytes,
        assigned_at_s=row.assigned_at_s,
        state=later_values.run_state(row.state, ended_at_s=row.ended_at_s),
        master_addr=row.master_addr,
        master_port=row.master_port,
        service_port=row.service_port,
        started_at_s=row.started_at_s,
        stop_until_s=row.stop_until_s,
        ended_at_s=row.ended_at_s,
        reason=row.reason,
        decision_id=row.decision_id,
        preempted_for=row.preempted_for,
    )


def row_of_node(item: Node) -> Row:
    return {"node_id": item.node_id, "domain_id": item.domain_id, "facts": asdict(item)}


def node_of(facts: Mapping[str, Any]) -> Node:
    devices = tuple(Device(**_known(Device, device)) for device in facts["devices"])
    return Node(**{**_known(Node, facts), "devices": devices, "state": later_values.node_state(facts["state"])})


def domain_of(facts: Mapping[str, Any]) -> Domain:
    links = tuple(Link(**_known(Link, link)) for link in facts["links"])
    return Domain(**{**_known(Domain, facts), "links": links})
