"""Which policy was in force from when, and who put it there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def upgrade() -> None:
    op.create_table(
        "policy_change",
        sa.Column("change_id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("version", sa.Text, nullable=False),
        _text("name"),
        sa.Column("origin", sa.Text, nullable=False),
        _text("source"),
        # As text: the order of scores belongs to the policy, and JSONB would not keep it.
        sa.Column("body", sa.Text, nullable=False),
        _text("changed_by"),
        sa.Column("changed_at_s", sa.Double, nullable=False),
        sa.CheckConstraint("origin IN ('api', 'file')"),
    )
    op.create_index("policy_change_version", "policy_change", ["version", "change_id"])
