"""The kernel's tables and one table of what was handled."""

import sqlalchemy as sa
from alembic import op

from meridian.database import create_kernel_tables

revision = "0001"
down_revision = None


def upgrade() -> None:
    create_kernel_tables()
    op.create_table(
        "seen",
        sa.Column("position", sa.BigInteger, sa.Identity(), primary_key=True),
        sa.Column("job_id", sa.Text, nullable=False),
    )
