"""Grants and sessions of shards; the fleet of the domains."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from meridian.database import create_kernel_tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_kernel_tables()
    op.create_table(
        "leadership",
        sa.Column("single", sa.Boolean, primary_key=True, server_default=sa.true()),
        sa.Column("term", sa.BigInteger, nullable=False),
        sa.CheckConstraint("single"),
    )
    op.execute("INSERT INTO leadership (term) VALUES (0)")
    op.create_table(
        "unit_grant",
        sa.Column("domain_id", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("unit_index", sa.Integer, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("shard", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("domain_id", "job_id", "unit_index"),
    )
    op.create_table(
        "shard_session",
        sa.Column("domain_id", sa.Text, nullable=False),
        sa.Column("shard", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("domain_id", "shard"),
    )
    op.create_table(
        "domain",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("facts", postgresql.JSONB, nullable=False),
    )
    op.create_table(
        "node",
        sa.Column("node_id", sa.Text, primary_key=True),
        sa.Column("domain_id", sa.Text, nullable=False),
        sa.Column("facts", postgresql.JSONB, nullable=False),
    )
    op.create_table(
        "mark",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
        sa.Column("domain_id", sa.Text, nullable=False, server_default=""),
        sa.Column("node_id", sa.Text, nullable=False, server_default=""),
    )
    op.create_table(
        "expected_demand",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("accelerators", sa.Double, nullable=False),
    )
