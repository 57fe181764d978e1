"""The tables of demand; made by ``migrations/``."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

_metadata = sa.MetaData()
TIME = sa.DateTime(timezone=True)

jobs = sa.Table(
    "jobs",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text),
    sa.Column("submitted", sa.Boolean),
    sa.Column("finished", sa.Boolean),
    sa.Column("changed_at", TIME),
    sa.Column("spec", sa.LargeBinary),
)
units = sa.Table(
    "units",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("unit_index", sa.Integer, primary_key=True),
    sa.Column("accelerators", sa.Double),
    sa.Column("cpus", sa.Double),
    sa.Column("cpus_per_rank", sa.Double),
    sa.Column("depends_on", postgresql.ARRAY(sa.Integer)),
    sa.Column("only_domain", sa.Text),
    sa.Column("only_chip", sa.Text),
    sa.Column("limit_s", sa.Double),
    sa.Column("state", sa.Text),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("held", postgresql.JSONB),
    sa.Column("ranks_held", postgresql.JSONB),
    sa.Column("chips_held", postgresql.JSONB),
    sa.Column("began_s", sa.Double),
    sa.Column("ended_epoch", sa.BigInteger),
    sa.Column("ended_domains", postgresql.ARRAY(sa.Text)),
)
changes = sa.Table(
    "changes",
    _metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("subject_kind", sa.Text),
    sa.Column("subject_id", sa.Text),
    sa.Column("at", TIME),
    sa.Column("accelerators", sa.Double),
    sa.Column("cpus", sa.Double),
)
levels = sa.Table(
    "levels",
    _metadata,
    sa.Column("subject_kind", sa.Text, primary_key=True),
    sa.Column("subject_id", sa.Text, primary_key=True),
    sa.Column("accelerators", sa.Double),
    sa.Column("cpus", sa.Double),
)
windows = sa.Table(
    "windows",
    _metadata,
    sa.Column("window_start", TIME, primary_key=True),
    sa.Column("subject_kind", sa.Text, primary_key=True),
    sa.Column("subject_id", sa.Text, primary_key=True),
    sa.Column("accelerators", sa.Double),
    sa.Column("cpus", sa.Double),
)
sampling = sa.Table(
    "sampling",
    _metadata,
    sa.Column("single", sa.Boolean, primary_key=True),
    sa.Column("window_s", sa.Double),
    sa.Column("closed_until", TIME),
)
forecasts = sa.Table(
    "forecasts",
    _metadata,
    sa.Column("subject_kind", sa.Text, primary_key=True),
    sa.Column("subject_id", sa.Text, primary_key=True),
    sa.Column("made_at", TIME),
    sa.Column("published_at", TIME),
    sa.Column("body", postgresql.JSONB),
)
capacity = sa.Table(
    "capacity",
    _metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("domain_id", sa.Text),
    sa.Column("accelerators", sa.Integer),
    sa.Column("cpus", sa.Double),
    sa.Column("version", sa.BigInteger),
    sa.Column("chip", sa.Text),
)

chips = sa.Table(
    "chips", _metadata, sa.Column("model", sa.Text, primary_key=True), sa.Column("memory_bytes", sa.BigInteger)
)
