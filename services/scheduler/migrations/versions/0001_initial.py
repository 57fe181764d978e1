"""Jobs, units, runs, decisions; the fleet with its marks and forecasts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from meridian.database import create_kernel_tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_JSON = postgresql.JSONB


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, server_default="0")


def _seconds(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=False, server_default="0")


def upgrade() -> None:
    create_kernel_tables()
    op.create_table(
        "leadership",
        sa.Column("single", sa.Boolean, primary_key=True, server_default=sa.true()),
        sa.Column("term", sa.BigInteger, nullable=False),
        sa.CheckConstraint("single"),
    )
    op.execute("INSERT INTO leadership (term) VALUES (0)")
    op.create_table(
        "job",
        sa.Column("job_id", sa.Text, primary_key=True),
        _text("tenant_id"),
        sa.Column("spec", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=True),
        _text("reason"),
        _count("succeeded_units"),
        _count("active_runs"),
        _count("open_runs"),
        _count("restarts"),
        _count("decisions"),
        _seconds("submitted_at_s"),
        _seconds("finished_at_s"),
        _text("traceparent"),
    )
    op.create_index(
        "job_unfinished",
        "job",
        ["job_id"],
        postgresql_where=sa.text("state NOT IN ('succeeded', 'failed', 'cancelled')"),
    )
    op.create_index("job_finished_at", "job", ["finished_at_s"], postgresql_where=sa.text("finished_at_s > 0"))
    of_job = lambda: sa.Column(  # noqa: E731 - a column object belongs to one table
        "job_id", sa.Text, sa.ForeignKey("job.job_id", ondelete="CASCADE"), nullable=False
    )
    op.create_table(
        "unit",
        of_job(),
        sa.Column("unit_index", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        _seconds("queued_at_s"),
        sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
        _count("failures"),
        _count("recoveries"),
        _seconds("not_before_s"),
        _seconds("recovery_due_s"),
        sa.Column("checkpoint", _JSON, nullable=True),
        sa.Column("excluded_nodes", _JSON, nullable=False, server_default="[]"),
        _seconds("excluded_until_s"),
        _text("reason"),
        sa.PrimaryKeyConstraint("job_id", "unit_index"),
    )
    op.create_table(
        "run",
        sa.Column("run_id", sa.Text, primary_key=True),
        of_job(),
        sa.Column("unit_index", sa.Integer, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        _text("tenant_id"),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("ranks", _JSON, nullable=False),
        sa.Column("open_domains", _JSON, nullable=False),
        sa.Column("cpus", sa.Double, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        _text("master_addr"),
        _count("master_port"),
        _count("service_port"),
        _seconds("assigned_at_s"),
        _seconds("started_at_s"),
        _seconds("stop_until_s"),
        _seconds("ended_at_s"),
        _text("reason"),
        _text("decision_id"),
        # No unit is ever assigned twice under one epoch, whatever a program does.
        sa.UniqueConstraint("job_id", "unit_index", "epoch"),
    )
    # And no unit has two active runs.
    op.create_index(
        "run_active", "run", ["job_id", "unit_index"], unique=True, postgresql_where=sa.text("state = 'active'")
    )
    op.create_index("run_open", "run", ["run_id"], postgresql_where=sa.text("state <> 'ended'"))
    op.create_table(
        "decision",
        sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("decision_id", sa.Text, nullable=False),
        of_job(),
        sa.Column("unit_index", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        _seconds("at_s"),
        _text("policy_version"),
        sa.Column("explanation", _JSON, nullable=False),
    )
    op.create_index("decision_job", "decision", ["job_id", "seq"])
    op.create_table(
        "domain",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("facts", _JSON, nullable=False),
    )
    op.create_table(
        "node",
        sa.Column("node_id", sa.Text, primary_key=True),
        sa.Column("domain_id", sa.Text, nullable=False),
        sa.Column("facts", _JSON, nullable=False),
    )
    op.create_table(
        "mark",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        _text("reason"),
        _text("domain_id"),
        _text("node_id"),
    )
    op.create_table(
        "expected_demand",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("accelerators", sa.Double, nullable=False),
    )
