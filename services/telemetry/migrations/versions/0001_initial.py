"""Agents, listed nodes, newest values, history and quality of readings."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from meridian.database import create_kernel_tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _time(name: str) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)


def _series_columns() -> list[sa.Column]:
    return [
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("node_id", sa.Text, primary_key=True),
        sa.Column("accelerator_index", sa.Integer, primary_key=True),
        sa.Column("metric", sa.Text, primary_key=True),
    ]


def upgrade() -> None:
    create_kernel_tables()
    op.create_table(
        "agents",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        _time("reported_at"),
    )
    op.create_table(
        "listed_nodes",
        sa.Column("node_id", sa.Text, primary_key=True),
        sa.Column("domain_id", sa.Text, nullable=False),
        _time("listed_at"),
    )
    # One row a node, because a report brings all series of a node at once:
    # metric -> accelerator index -> [value, observed_at_s, source, statistic, reason, unchanged_reports, history_at_s]
    op.create_table(
        "newest",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("node_id", sa.Text, primary_key=True),
        sa.Column("series", postgresql.JSONB, nullable=False),
        _time("observed_at"),
    )
    op.create_index("newest_of_node", "newest", ["node_id"])
    # metric -> accelerator index -> [value, observed_at_s]
    op.create_table(
        "history",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("node_id", sa.Text, primary_key=True),
        sa.Column("observed_at", sa.DateTime(timezone=True), primary_key=True),
        sa.Column("readings", postgresql.JSONB, nullable=False),
    )
    op.create_index("history_by_time", "history", ["observed_at"])
    op.create_index("history_of_node", "history", ["node_id", "observed_at"])
    op.create_table(
        "quality",
        *_series_columns(),
        sa.Column("kind", sa.SmallInteger, primary_key=True),
        sa.Column("detail", sa.Text, nullable=False),
        _time("first_at"),
        _time("last_at"),
        sa.Column("occurrences", sa.BigInteger, nullable=False),
    )
    op.create_index("quality_by_time", "quality", ["last_at"])
