"""Units and their demand, windows, forecasts, capacity, requirements."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from meridian.database import create_kernel_tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    create_kernel_tables()
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("submitted", sa.Boolean, nullable=False),
        sa.Column("finished", sa.Boolean, nullable=False),
        sa.Column("changed_at", _TIME, nullable=False),
    )
    op.create_table(
        "units",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("unit_index", sa.Integer, primary_key=True),
        sa.Column("accelerators", sa.Double, nullable=False),
        sa.Column("cpus", sa.Double, nullable=False),
        sa.Column("cpus_per_rank", sa.Double, nullable=False),
        sa.Column("depends_on", postgresql.ARRAY(sa.Integer), nullable=False),
        sa.Column("only_domain", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("held", postgresql.JSONB, nullable=False),
        sa.Column("ranks_held", postgresql.JSONB, nullable=False),
        sa.Column("ended_epoch", sa.BigInteger, nullable=False),
        sa.Column("ended_domains", postgresql.ARRAY(sa.Text), nullable=False),
    )
    op.create_table(
        "changes",
        sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("subject_kind", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("accelerators", sa.Double, nullable=False),
        sa.Column("cpus", sa.Double, nullable=False),
    )
    op.create_index("changes_at", "changes", ["at"])
    op.create_table(
        "levels",
        sa.Column("subject_kind", sa.Text, primary_key=True),
        sa.Column("subject_id", sa.Text, primary_key=True),
        sa.Column("accelerators", sa.Double, nullable=False),
        sa.Column("cpus", sa.Double, nullable=False),
    )
    op.create_table(
        "windows",
        sa.Column("window_start", _TIME, primary_key=True),
        sa.Column("subject_kind", sa.Text, primary_key=True),
        sa.Column("subject_id", sa.Text, primary_key=True),
        sa.Column("accelerators", sa.Double, nullable=False),
        sa.Column("cpus", sa.Double, nullable=False),
    )
    op.create_table(
        "sampling",
        sa.Column("single", sa.Boolean, primary_key=True, server_default=sa.true()),
        sa.Column("window_s", sa.Double, nullable=False),
        sa.Column("closed_until", _TIME, nullable=False),
        sa.CheckConstraint("single"),
    )
    op.create_table(
        "forecasts",
        sa.Column("subject_kind", sa.Text, primary_key=True),
        sa.Column("subject_id", sa.Text, primary_key=True),
        sa.Column("made_at", _TIME, nullable=False),
        sa.Column("published_at", _TIME, nullable=False),
        sa.Column("body", postgresql.JSONB, nullable=False),
    )
    op.create_table(
        "capacity",
        sa.Column("node_id", sa.Text, primary_key=True),
        sa.Column("domain_id", sa.Text, nullable=False),
        sa.Column("accelerators", sa.Integer, nullable=False),
        sa.Column("cpus", sa.Double, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.create_index("capacity_domain_id", "capacity", ["domain_id"])
    op.create_table(
        "chips",
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
    )
