"""Certificates are found by their end: the revoked ones for the revocation list, those of long ago to forget them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "certificates_revoked",
        "certificates",
        ["not_after", "revoked_at"],
        postgresql_where=sa.text("revoked_at IS NOT NULL"),
    )
    op.create_index("certificates_by_end", "certificates", ["not_after"])
