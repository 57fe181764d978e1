"""Suspicions of a node that flaps are one incident, which counts them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("incidents", sa.Column("suspicions", sa.Integer, nullable=False, server_default="0"))
    op.execute("UPDATE incidents SET suspicions = 1 WHERE kind = 'node_suspected'")
    op.create_index(
        "incidents_of_suspected",
        "incidents",
        ["node_id", "closed_at"],
        postgresql_where=sa.text("kind = 'node_suspected'"),
    )
