"""The gateway's tables."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSON

metadata = sa.MetaData()


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True))


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def _count(name: str, kind: type[sa.Integer] = sa.Integer) -> sa.Column[int]:
    return sa.Column(name, kind, nullable=False, server_default="0")


job = sa.Table(
    "job",
    metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    # Position in lists, newest last.
    sa.Column("seq", sa.BigInteger, sa.Identity(always=True), unique=True),
    # Grows with every change; the ETag.
    sa.Column("revision", sa.BigInteger, nullable=False, server_default="1"),
    _text("tenant_id"),
    _text("name"),
    _text("kind"),
    _count("priority"),
    sa.Column("units_total", sa.Integer, nullable=False, server_default="1"),
    sa.Column("state", sa.Text, nullable=False, server_default="submitted"),
    _text("reason"),
    _count("restarts"),
    _count("units_active"),
    _count("units_succeeded"),
    sa.Column("progress", sa.Double),
    _time("submitted_at"),
    _time("queued_at"),
    _time("placed_at"),
    _time("started_at"),
    _time("finished_at"),
    _time("cancel_requested_at"),
    # Null until the submission is known; such a job is in no list.
    sa.Column("spec", JSON(none_as_null=True)),
    sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    sa.Index("job_by_tenant", "tenant_id", "seq"),
    sa.Index("job_by_end", "finished_at", postgresql_where=sa.text("finished_at IS NOT NULL")),
    sa.Index("job_unknown", "stored_at", postgresql_where=sa.text("spec IS NULL")),
    sa.Index("job_unfinished", "tenant_id", postgresql_where=sa.text("finished_at IS NULL")),
)

unit = sa.Table(
    "unit",
    metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("unit_index", sa.Integer, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    _text("reason"),
    _count("placed_epoch", sa.BigInteger),
    _count("lost_epoch", sa.BigInteger),
    _text("run_id"),
    _count("placements"),
    sa.Column("checkpoint", JSON(none_as_null=True)),
    _time("queued_at"),
)

run = sa.Table(
    "run",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, sa.Identity(always=True)),
    sa.Column("job_id", sa.Text, nullable=False),
    _count("unit_index"),
    _count("epoch", sa.BigInteger),
    sa.Column("state", sa.Text, nullable=False),
    _text("reason"),
    sa.Column("domains", JSON, nullable=False),
    sa.Column("finished_domains", JSON, nullable=False),
    sa.Column("placement", JSON, nullable=False),
    _time("placed_at"),
    _time("started_at"),
    _time("ended_at"),
    _time("preempted_at"),
    _count("step", sa.BigInteger),
    _count("total_steps", sa.BigInteger),
    sa.Column("metrics", JSON, nullable=False),
    _time("progress_at"),
    # Time of the newest RunProgress that went into the event stream.
    _time("streamed_at"),
    sa.Column("checkpoint", JSON(none_as_null=True)),
    _text("restore_from"),
    _count("restore_step", sa.BigInteger),
    sa.Column("failure", JSON(none_as_null=True)),
    _text("policy_version"),
    _text("decision_id"),
    sa.Index("run_by_job", "job_id", "seq"),
)

requirement = sa.Table(
    "requirement",
    metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("body", JSON, nullable=False),
)

event = sa.Table(
    "event",
    metadata,
    sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("time", sa.DateTime(timezone=True), nullable=False),
    _text("source"),
    _text("topic"),
    _text("trace_id"),
    _text("event_id"),
    # Empty job: about the network, for everyone who may read resources. A job's event is for the job's tenant.
    _text("job_id"),
    _text("tenant_id"),
    _text("domain_id"),
    # JSON that is passed on as it is.
    sa.Column("data", sa.Text, nullable=False),
    sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    sa.Index("event_by_job", "job_id", "seq", postgresql_where=sa.text("job_id <> ''")),
    sa.Index("event_by_age", "stored_at"),
)

domain = sa.Table(
    "domain",
    metadata,
    sa.Column("domain_id", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("body", JSON, nullable=False),
    _time("updated_at"),
)

node = sa.Table(
    "node",
    metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("domain_id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    _text("state_reason"),
    sa.Column("body", JSON, nullable=False),
    _time("updated_at"),
    sa.Index("node_by_domain", "domain_id", "node_id"),
)

link = sa.Table(
    "link",
    metadata,
    sa.Column("from_domain_id", sa.Text, primary_key=True),
    sa.Column("to_domain_id", sa.Text, primary_key=True),
    # The domain whose image named the link.
    sa.Column("domain_id", sa.Text, nullable=False),
    sa.Column("body", JSON, nullable=False),
)

incident = sa.Table(
    "incident",
    metadata,
    sa.Column("incident_id", sa.Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, sa.Identity(always=True), unique=True),
    sa.Column("domain_id", sa.Text, nullable=False),
    _text("node_id"),
    sa.Column("state", sa.Text, nullable=False),
    _text("reason"),
    _time("opened_at"),
    _time("updated_at"),
    _time("closed_at"),
    sa.Index("incident_by_end", "closed_at", postgresql_where=sa.text("closed_at IS NOT NULL")),
    sa.Index("incident_unreachable", "domain_id", postgresql_where=sa.text("state = 'unreachable'")),
)

recovery = sa.Table(
    "recovery",
    metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("incident_id", sa.Text, primary_key=True),
    _text("job_id"),
    _count("unit_index"),
    _count("epoch", sa.BigInteger),
    _text("restore_from"),
    _count("restore_step", sa.BigInteger),
    _text("reason"),
    _time("planned_at"),
    sa.Index("recovery_by_incident", "incident_id"),
)

forecast = sa.Table(
    "forecast",
    metadata,
    sa.Column("subject_kind", sa.Text, primary_key=True),
    sa.Column("subject_id", sa.Text, primary_key=True),
    sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("body", JSON, nullable=False),
)

revocation = sa.Table(
    "revocation",
    metadata,
    sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("identity_id", sa.Text, nullable=False),
    # Empty: every token that the identity was given before.
    _text("token_id"),
    sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=False),
    # When the token expires, where identity said so.
    sa.Column("expires_at", sa.DateTime(timezone=True)),
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("request_hash", sa.Text, nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("answer", sa.Text, nullable=False),
    sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    sa.Index("idempotency_by_age", "created_at"),
)
