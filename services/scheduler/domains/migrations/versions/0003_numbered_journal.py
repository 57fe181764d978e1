"""Chunks of the journal have a number in their term, so that none is written twice."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Chunks from before have none, and stay.
    op.add_column("journal", sa.Column("number", sa.BigInteger, nullable=True))
    op.create_unique_constraint("journal_term_number", "journal", ["term", "number"])
