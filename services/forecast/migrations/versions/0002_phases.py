"""Phases of training: schedules of jobs, states of units, and what was told; terms of submitted jobs, for advice."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "training_jobs",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("schedule", postgresql.JSONB),
        sa.Column("changed_at", _TIME, nullable=False),
    )
    op.create_index("training_jobs_changed_at", "training_jobs", ["changed_at"])
    op.create_table(
        "training_units",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("unit_index", sa.Integer, primary_key=True),
        sa.Column("state", postgresql.JSONB, nullable=False),
    )
    op.create_table(
        "phase_changes",
        sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("unit_index", sa.Integer, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", _TIME, nullable=False),
    )
    op.create_index("phase_changes_job_id", "phase_changes", ["job_id"])
    op.create_table(
        "job_terms",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("spec", postgresql.JSONB, nullable=False),
        sa.Column("submitted_at", _TIME, nullable=False),
    )
    op.create_index("job_terms_submitted_at", "job_terms", ["submitted_at"])
