"""How many transitions were carried out in the present term: a commit whose answer was lost is not repeated."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leadership", sa.Column("carried_out", sa.BigInteger, nullable=False, server_default="0"))
