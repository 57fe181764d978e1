"""The tables of identity; made by ``migrations/``."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

metadata = sa.MetaData()


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True))


identities = sa.Table(
    "identities",
    metadata,
    sa.Column("identity_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text),
    sa.Column("domain_id", sa.Text),
    sa.Column("node_id", sa.Text),
    sa.Column("accelerator_index", sa.Integer),
    sa.Column("agent_id", sa.Text),
    sa.Column("spiffe_id", sa.Text),
    sa.Column("status", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("evidence_level", sa.Integer),
    sa.Column("emulated", sa.Boolean),
    sa.Column("vendor", sa.Text),
    sa.Column("model", sa.Text),
    sa.Column("replaces", sa.Text),
    _time("created_at"),
    _time("updated_at"),
)
agent_keys = sa.Table(
    "agent_keys",
    metadata,
    sa.Column("fingerprint", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text),
    _time("first_seen_at"),
    _time("last_seen_at"),
)
aliases = sa.Table(
    "aliases",
    metadata,
    sa.Column("identity_id", sa.Text, primary_key=True),
    sa.Column("scheme", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    sa.Column("exclusive", sa.Boolean),
    _time("first_seen_at"),
    _time("last_seen_at"),
)
life_events = sa.Table(
    "life_events",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("identity_id", sa.Text),
    _time("at"),
    sa.Column("event", sa.Text),
    sa.Column("detail", sa.Text),
)
certificates = sa.Table(
    "certificates",
    metadata,
    sa.Column("serial", sa.Text, primary_key=True),
    sa.Column("identity_id", sa.Text),
    _time("not_before"),
    _time("not_after"),
    _time("revoked_at"),
)
join_tokens = sa.Table(
    "join_tokens",
    metadata,
    sa.Column("token_hash", sa.Text, primary_key=True),
    sa.Column("join_token_id", sa.Text),
    sa.Column("domain_ids", postgresql.ARRAY(sa.Text)),
    _time("created_at"),
    _time("expires_at"),
    _time("revoked_at"),
)
tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text),
    _time("created_at"),
    _time("revoked_at"),
)
clients = sa.Table(
    "clients",
    metadata,
    sa.Column("client_id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text),
    sa.Column("secret_hash", sa.Text),
    sa.Column("scopes", postgresql.ARRAY(sa.Text)),
    _time("created_at"),
    _time("revoked_at"),
)
tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("token_id", sa.Text, primary_key=True),
    sa.Column("client_id", sa.Text),
    sa.Column("tenant_id", sa.Text),
    _time("issued_at"),
    _time("expires_at"),
    _time("revoked_at"),
)
revocations = sa.Table(
    "revocations",
    metadata,
    sa.Column("revocation_id", sa.Text, primary_key=True),
    sa.Column("subject_kind", sa.Text),
    sa.Column("subject_id", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("revoked_by", sa.Text),
    _time("revoked_at"),
)
