"""What the structure of jobs lets expect: placements with chips and times, progress, ended runs, arrivals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("jobs", sa.Column("spec", sa.LargeBinary))
    op.add_column("units", sa.Column("only_chip", sa.Text, nullable=False, server_default=""))
    op.add_column("units", sa.Column("limit_s", sa.Double, nullable=False, server_default="0"))
    op.add_column("units", sa.Column("chips_held", postgresql.JSONB, nullable=False, server_default="{}"))
    op.add_column("units", sa.Column("began_s", sa.Double, nullable=False, server_default="0"))
    op.create_index("units_asking", "units", ["state"], postgresql_where=sa.text("state <> 'done'"))
    op.add_column("capacity", sa.Column("chip", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "run_progress",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("unit_index", sa.Integer, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("body", postgresql.JSONB, nullable=False),
    )
    op.create_table(
        "ended_runs",
        sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("accelerators", sa.Double, nullable=False),
        sa.Column("lasted_s", sa.Double, nullable=False),
        sa.Column("by_itself", sa.Boolean, nullable=False),
        sa.Column("at", _TIME, nullable=False),
    )
    op.create_index("ended_runs_at", "ended_runs", ["at"])
    op.create_table(
        "arrivals",
        sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("subject_kind", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("accelerators", sa.Double, nullable=False),
        sa.Column("at", _TIME, nullable=False),
    )
    op.create_index("arrivals_at", "arrivals", ["at"])
