"""Nodes kept for units that others are taken off for, what checkpoints keep; the journal of decisions; run times learned."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("attained_s", "kept_s"):
        op.add_column("unit", sa.Column(name, sa.Double, nullable=False, server_default="0"))
    op.add_column("unit", sa.Column("nomination", postgresql.JSONB, nullable=True))
    op.add_column("run", sa.Column("preempted_for", sa.Text, nullable=False, server_default=""))
    op.create_index("run_ended_at", "run", ["ended_at_s"], postgresql_where=sa.text("ended_at_s > 0"))
    op.create_table(
        "journal",
        sa.Column("chunk", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("term", sa.BigInteger, nullable=False),
        # Whether a book begins in this chunk: replay can begin there.
        sa.Column("begins", sa.Boolean, nullable=False),
        sa.Column("first_at_s", sa.Double, nullable=False),
        sa.Column("last_at_s", sa.Double, nullable=False),
        sa.Column("entries", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "run_times",
        sa.Column("single", sa.Boolean, primary_key=True, server_default=sa.true()),
        sa.Column("state", sa.LargeBinary, nullable=False),
        sa.CheckConstraint("single"),
    )
