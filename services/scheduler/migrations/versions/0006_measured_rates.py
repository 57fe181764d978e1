"""Rates and steps as programs reported them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "measured_rate",
        sa.Column("job_id", sa.Text, sa.ForeignKey("job.job_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("ranks", sa.Integer, primary_key=True),
        sa.Column("steps_per_s", sa.Double, nullable=False),
    )
    op.create_table(
        "steps_done",
        sa.Column("job_id", sa.Text, sa.ForeignKey("job.job_id", ondelete="CASCADE"), primary_key=True),
        sa.Column("unit_index", sa.Integer, primary_key=True),
        sa.Column("step", sa.BigInteger, nullable=False),
        # 0: the program does not say how many there are.
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
    )
