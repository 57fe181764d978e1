"""How predicted starts turned out."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "predicted_starts",
        sa.Column("single", sa.Boolean, primary_key=True, server_default=sa.true()),
        sa.Column("state", postgresql.JSONB, nullable=False),
        sa.CheckConstraint("single"),
    )
