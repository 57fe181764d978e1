"""Accounts of share contracts and service levels, what was observed since they were saved, and tenants' own objectives."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "promises",
        sa.Column("single", sa.Boolean, primary_key=True, server_default=sa.true()),
        sa.Column("state", sa.LargeBinary, nullable=False),
        sa.CheckConstraint("single"),
    )
    op.create_table(
        "observation",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("body", postgresql.JSONB, nullable=False),
    )
    op.create_table(
        "tenant_objectives",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("weights", postgresql.JSONB, nullable=False),
        sa.Column("changed_by", sa.Text, nullable=False),
        sa.Column("changed_at_s", sa.Double, nullable=False),
    )
