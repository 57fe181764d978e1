"""Identities, certificates, tenants, clients, tokens and revocations."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from meridian.database import create_kernel_tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _time(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str, **options: object) -> sa.Column:
    return sa.Column(name, sa.Text, nullable=False, **options)


def upgrade() -> None:
    create_kernel_tables()
    op.create_table(
        "identities",
        sa.Column("identity_id", sa.Text, primary_key=True),
        _text("kind"),
        _text("domain_id", server_default=""),
        _text("node_id", server_default=""),
        sa.Column("accelerator_index", sa.Integer),
        _text("agent_id", server_default=""),
        _text("spiffe_id"),
        _text("status"),
        _text("reason", server_default=""),
        sa.Column("evidence_level", sa.Integer, nullable=False),
        sa.Column("emulated", sa.Boolean, nullable=False, server_default=sa.false()),
        _text("vendor", server_default=""),
        _text("model", server_default=""),
        _text("replaces", server_default=""),
        _time("created_at"),
        _time("updated_at"),
        sa.CheckConstraint("kind IN ('agent', 'node', 'device', 'tenant')", name="identity_kind"),
        sa.CheckConstraint("status IN ('issued', 'quarantined', 'retired', 'revoked')", name="identity_status"),
    )
    op.create_index("identities_of_domain", "identities", ["domain_id", "node_id"])
    op.create_index("identities_of_agent", "identities", ["agent_id"])
    op.create_index(
        "one_live_node",
        "identities",
        ["domain_id", "node_id"],
        unique=True,
        postgresql_where=sa.text("kind = 'node' AND status IN ('issued', 'quarantined')"),
    )
    op.create_table(
        "agent_keys",
        sa.Column("fingerprint", sa.Text, primary_key=True),
        _text("agent_id"),
        _time("first_seen_at"),
        _time("last_seen_at"),
    )
    op.create_table(
        "aliases",
        sa.Column("identity_id", sa.Text, sa.ForeignKey("identities.identity_id"), primary_key=True),
        sa.Column("scheme", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, primary_key=True),
        sa.Column("exclusive", sa.Boolean, nullable=False),
        _time("first_seen_at"),
        _time("last_seen_at"),
    )
    op.create_index("aliases_by_value", "aliases", ["scheme", "value"])
    op.create_table(
        "life_events",
        sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        _text("identity_id"),
        _time("at"),
        _text("event"),
        _text("detail", server_default=""),
    )
    op.create_index("life_events_of_identity", "life_events", ["identity_id", "seq"])
    op.create_table(
        "certificates",
        sa.Column("serial", sa.Text, primary_key=True),
        _text("identity_id"),
        _time("not_before"),
        _time("not_after"),
        _time("revoked_at", nullable=True),
    )
    op.create_index("certificates_of_identity", "certificates", ["identity_id", "not_after"])
    op.create_table(
        "join_tokens",
        sa.Column("token_hash", sa.Text, primary_key=True),
        _text("join_token_id"),
        sa.Column("domain_ids", postgresql.ARRAY(sa.Text), nullable=False),
        _time("created_at"),
        _time("expires_at", nullable=True),
        _time("revoked_at", nullable=True),
    )
    op.create_table(
        "tenants",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        _text("name"),
        _time("created_at"),
        _time("revoked_at", nullable=True),
    )
    op.create_table(
        "clients",
        sa.Column("client_id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.tenant_id"), nullable=False),
        _text("secret_hash"),
        sa.Column("scopes", postgresql.ARRAY(sa.Text), nullable=False),
        _time("created_at"),
        _time("revoked_at", nullable=True),
    )
    op.create_table(
        "tokens",
        sa.Column("token_id", sa.Text, primary_key=True),
        _text("client_id"),
        _text("tenant_id"),
        _time("issued_at"),
        _time("expires_at"),
        _time("revoked_at", nullable=True),
    )
    op.create_index("tokens_by_expiry", "tokens", ["expires_at"])
    op.create_table(
        "revocations",
        sa.Column("revocation_id", sa.Text, primary_key=True),
        _text("subject_kind"),
        _text("subject_id"),
        _text("reason"),
        _text("revoked_by"),
        _time("revoked_at"),
    )
    op.create_index("revocations_by_subject", "revocations", ["subject_kind", "subject_id"])
