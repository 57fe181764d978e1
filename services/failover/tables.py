"""The tables of failover; made by ``migrations/``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

_metadata = sa.MetaData()
TIME = sa.DateTime(timezone=True)

leadership = sa.Table(
    "leadership",
    _metadata,
    sa.Column("single", sa.Boolean, primary_key=True),
    sa.Column("term", sa.BigInteger),
    sa.Column("carried_out", sa.BigInteger),
)
domains = sa.Table(
    "domains",
    _metadata,
    sa.Column("domain_id", sa.Text, primary_key=True),
    sa.Column("state", sa.Text),
    sa.Column("lease_s", sa.Double),
    sa.Column("lease_ran_out", sa.Boolean),
    sa.Column("changed_at", TIME),
    sa.Column("incident_id", sa.Text),
)
nodes = sa.Table(
    "nodes",
    _metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("domain_id", sa.Text),
    sa.Column("incarnation", sa.BigInteger),
    sa.Column("state", sa.Text),
    sa.Column("quarantined", sa.Boolean),
    sa.Column("failures", postgresql.ARRAY(TIME)),
    sa.Column("changed_at", TIME),
    sa.Column("incident_id", sa.Text),
)
incidents = sa.Table(
    "incidents",
    _metadata,
    sa.Column("incident_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text),
    sa.Column("domain_id", sa.Text),
    sa.Column("node_id", sa.Text),
    sa.Column("state", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("last_seen_at", TIME),
    sa.Column("opened_at", TIME),
    sa.Column("detected_at", TIME),
    sa.Column("closed_at", TIME),
    sa.Column("timeline", postgresql.JSONB),
    sa.Column("suspicions", sa.Integer),
)
runs = sa.Table(
    "runs",
    _metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text),
    sa.Column("unit_index", sa.Integer),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("restore_from", sa.Text),
    sa.Column("restore_step", sa.BigInteger),
    sa.Column("placed_at", TIME),
    sa.Column("ended_at", TIME),
    sa.Column("end_reason", sa.Text),
)
run_domains = sa.Table(
    "run_domains",
    _metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("domain_id", sa.Text, primary_key=True),
    sa.Column("node_ids", postgresql.ARRAY(sa.Text)),
    sa.Column("finished_at", TIME),
)
checkpoints = sa.Table(
    "checkpoints",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("unit_index", sa.Integer, primary_key=True),
    sa.Column("step", sa.BigInteger),
    sa.Column("path", sa.Text),
    sa.Column("run_id", sa.Text),
    sa.Column("written_at", TIME),
)
recoveries = sa.Table(
    "recoveries",
    _metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("incident_id", sa.Text),
    sa.Column("job_id", sa.Text),
    sa.Column("unit_index", sa.Integer),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("cause", sa.Text),
    sa.Column("restore_from", sa.Text),
    sa.Column("restore_step", sa.BigInteger),
    sa.Column("last_seen_at", TIME),
    sa.Column("detected_at", TIME),
    sa.Column("planned_at", TIME),
    sa.Column("replaced_at", TIME),
    sa.Column("replaced_by", sa.Text),
    sa.Column("resumed_at", TIME),
)


def strings(values: Iterable[str]) -> sa.ColumnElement[Any]:
    """Texts as one parameter."""
    return sa.literal(sorted(set(values)), postgresql.ARRAY(sa.Text))


def any_of(column: sa.Column[Any], values: Iterable[str]) -> sa.ColumnElement[bool]:
    """Whether a column has one of these values."""
    return column == sa.any_(strings(values))
