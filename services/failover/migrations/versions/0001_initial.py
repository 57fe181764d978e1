"""Nodes, domains, incidents, runs, checkpoints, recoveries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from meridian.database import create_kernel_tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


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
        "domains",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("lease_s", sa.Double, nullable=False),
        sa.Column("lease_ran_out", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("changed_at", _TIME, nullable=False),
        sa.Column("incident_id", sa.Text, nullable=True),
    )
    op.create_table(
        "nodes",
        sa.Column("node_id", sa.Text, primary_key=True),
        sa.Column("domain_id", sa.Text, nullable=False),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("quarantined", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("failures", postgresql.ARRAY(_TIME), nullable=False, server_default="{}"),
        sa.Column("changed_at", _TIME, nullable=False),
        sa.Column("incident_id", sa.Text, nullable=True),
    )
    op.create_index("nodes_domain_id", "nodes", ["domain_id"])
    op.create_table(
        "incidents",
        sa.Column("incident_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("domain_id", sa.Text, nullable=False),
        sa.Column("node_id", sa.Text, nullable=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("last_seen_at", _TIME, nullable=True),
        sa.Column("opened_at", _TIME, nullable=False),
        sa.Column("detected_at", _TIME, nullable=True),
        sa.Column("closed_at", _TIME, nullable=True),
        sa.Column("timeline", postgresql.JSONB, nullable=False, server_default="[]"),
    )
    op.create_index("incidents_opened_at", "incidents", ["opened_at"])
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("unit_index", sa.Integer, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("restore_from", sa.Text, nullable=False, server_default=""),
        sa.Column("restore_step", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("placed_at", _TIME, nullable=True),
        sa.Column("ended_at", _TIME, nullable=True),
        sa.Column("end_reason", sa.Text, nullable=True),
    )
    op.create_index("runs_unit", "runs", ["job_id", "unit_index", "epoch"])
    op.create_table(
        "run_domains",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("node_ids", postgresql.ARRAY(sa.Text), nullable=False, server_default="{}"),
        sa.Column("finished_at", _TIME, nullable=True),
    )
    op.create_index("run_domains_domain_id", "run_domains", ["domain_id"])
    op.create_index("run_domains_node_ids", "run_domains", ["node_ids"], postgresql_using="gin")
    op.create_table(
        "checkpoints",
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("unit_index", sa.Integer, primary_key=True),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("written_at", _TIME, nullable=False),
    )
    op.create_table(
        "recoveries",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("incident_id", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("unit_index", sa.Integer, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("restore_from", sa.Text, nullable=False),
        sa.Column("restore_step", sa.BigInteger, nullable=False),
        sa.Column("last_seen_at", _TIME, nullable=True),
        sa.Column("detected_at", _TIME, nullable=False),
        sa.Column("planned_at", _TIME, nullable=False),
        sa.Column("replaced_at", _TIME, nullable=True),
        sa.Column("replaced_by", sa.Text, nullable=True),
        sa.Column("resumed_at", _TIME, nullable=True),
    )
    op.create_index("recoveries_incident_id", "recoveries", ["incident_id"])
    op.create_index(
        "recoveries_waiting",
        "recoveries",
        ["job_id", "unit_index"],
        postgresql_where=sa.text("resumed_at IS NULL"),
    )
