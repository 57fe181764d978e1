"""How long the former runs of a unit held nodes: what orders by attained service count, also without checkpoints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("unit", sa.Column("served_s", sa.Double, nullable=False, server_default="0"))
