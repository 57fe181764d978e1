"""Measured throughputs that the compute index is fitted to."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "index_measurements",
        sa.Column("measurement_id", sa.Text, primary_key=True),
        sa.Column("chip_id", sa.Text, nullable=False),
        sa.Column("group_name", sa.Text, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("precision", sa.Text, nullable=False),
        sa.Column("n_accel", sa.Integer, nullable=False),
        sa.Column("throughput", sa.Double, nullable=False),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("software", sa.Text, nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("index_measurements_of_chip", "index_measurements", ["chip_id"])


def downgrade() -> None:
    op.drop_table("index_measurements")
