"""How often the series of a domain were stored; resources that users define and what nodes have of them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "domain_versions",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "user_resources",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("definition", postgresql.JSONB, nullable=False),
        sa.Column("defined_by", sa.Text, nullable=False),
        sa.Column("defined_at", sa.DateTime(timezone=True), nullable=False),
    )
    # One row a node: name -> [value, attributes, unknown kind, reason]
    op.create_table(
        "resource_amounts",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("node_id", sa.Text, primary_key=True),
        sa.Column("amounts", postgresql.JSONB, nullable=False),
        sa.Column("observed_at", sa.DateTime(timezone=True), nullable=False),
    )
