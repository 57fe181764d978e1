"""The revocation of a token goes a while after the token has expired; those without an expiry are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("revocation", sa.Column("expires_at", sa.DateTime(timezone=True)))
    op.create_index(
        "revocation_expires_at", "revocation", ["expires_at"], postgresql_where=sa.text("expires_at IS NOT NULL")
    )
