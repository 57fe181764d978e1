"""The journal of what was granted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "journal",
        sa.Column("chunk", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("term", sa.BigInteger, nullable=False),
        # Whether everything was read from the database in this chunk: replay can begin there.
        sa.Column("begins", sa.Boolean, nullable=False),
        sa.Column("first_at_s", sa.Double, nullable=False),
        sa.Column("last_at_s", sa.Double, nullable=False),
        sa.Column("entries", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
