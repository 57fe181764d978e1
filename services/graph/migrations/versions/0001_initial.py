"""The graph: its version, domains, nodes, identities, incidents and the log of changes."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from meridian.database import create_kernel_tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _seconds(name: str) -> sa.Column:
    return sa.Column(name, sa.Double, nullable=False, server_default="0")


def _text(name: str) -> sa.Column:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def upgrade() -> None:
    create_kernel_tables()
    op.create_table(
        "graph_version",
        sa.Column("single", sa.Boolean, sa.CheckConstraint("single"), primary_key=True, server_default=sa.true()),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.execute("INSERT INTO graph_version (version) VALUES (0)")
    op.create_table(
        "domains",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("inventory", sa.LargeBinary),
        _seconds("observed_at_s"),
        _text("silence"),
        # The domain and its links as consumers know them, without nodes.
        sa.Column("published", sa.LargeBinary, nullable=False),
        _seconds("metrics_published_at_s"),
        _seconds("image_published_at_s"),
        _seconds("image_logged_at_s"),
        _seconds("oldest_reading_at_s"),
        _seconds("updated_at_s"),
    )
    op.create_table(
        "nodes",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("node_id", sa.Text, primary_key=True),
        # The node as consumers know it.
        sa.Column("published", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("readings", postgresql.JSONB, nullable=False),
        sa.Column("bad_readings", postgresql.ARRAY(sa.Text), nullable=False),
        _text("rule"),
        _text("rule_reason"),
        _seconds("rule_since_s"),
    )
    op.create_index("nodes_by_id", "nodes", ["node_id"])
    op.create_table(
        "certificates",
        sa.Column("identity_id", sa.Text, primary_key=True),
        _text("domain_id"),
        _text("node_id"),
        sa.Column("accelerator_index", sa.Integer, nullable=False),
        _seconds("issued_at_s"),
        sa.Column("revoked", sa.Boolean, nullable=False),
    )
    op.create_index("certificates_of_domain", "certificates", ["domain_id"])
    op.create_table(
        "incidents",
        sa.Column("domain_id", sa.Text, primary_key=True),
        sa.Column("node_id", sa.Text, primary_key=True),
        _text("incident"),
        _text("reason"),
        _seconds("at_s"),
    )
    op.create_table(
        "change_log",
        sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        _text("domain_id"),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        _text("kind"),
        sa.Column("whole", sa.Boolean, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.CheckConstraint("kind IN ('structure', 'metrics', 'image')", name="change_kind"),
    )
    op.create_index("change_log_by_version", "change_log", ["version", "seq"])
    op.create_index("change_log_of_domain", "change_log", ["domain_id", "at", "seq"])
    op.create_index("images_of_domain", "change_log", ["domain_id", "seq"], postgresql_where=sa.text("whole"))
    op.create_index("change_log_by_time", "change_log", ["at"])
