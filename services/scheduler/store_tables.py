"""The tables of the scheduler's schema that statements are made of; migrations/ makes them."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

_metadata = sa.MetaData()
_JSON = postgresql.JSONB

leadership = sa.Table(
    "leadership", _metadata, sa.Column("single", sa.Boolean, primary_key=True), sa.Column("term", sa.BigInteger)
)
job = sa.Table(
    "job",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text),
    sa.Column("spec", sa.LargeBinary),
    sa.Column("state", sa.Text),
    sa.Column("outcome", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("succeeded_units", sa.Integer),
    sa.Column("active_runs", sa.Integer),
    sa.Column("open_runs", sa.Integer),
    sa.Column("restarts", sa.Integer),
    sa.Column("decisions", sa.Integer),
    sa.Column("submitted_at_s", sa.Double),
    sa.Column("finished_at_s", sa.Double),
    sa.Column("traceparent", sa.Text),
)
unit = sa.Table(
    "unit",
    _metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("unit_index", sa.Integer, primary_key=True),
    sa.Column("state", sa.Text),
    sa.Column("queued_at_s", sa.Double),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("failures", sa.Integer),
    sa.Column("recoveries", sa.Integer),
    sa.Column("not_before_s", sa.Double),
    sa.Column("recovery_due_s", sa.Double),
    sa.Column("checkpoint", _JSON),
    sa.Column("excluded_nodes", _JSON),
    sa.Column("excluded_until_s", sa.Double),
    sa.Column("reason", sa.Text),
    sa.Column("attained_s", sa.Double),
    sa.Column("kept_s", sa.Double),
    sa.Column("nomination", _JSON),
    sa.Column("served_s", sa.Double),
)
run = sa.Table(
    "run",
    _metadata,
    sa.Column("run_id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text),
    sa.Column("unit_index", sa.Integer),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("tenant_id", sa.Text),
    sa.Column("state", sa.Text),
    sa.Column("ranks", _JSON),
    sa.Column("open_domains", _JSON),
    sa.Column("cpus", sa.Double),
    sa.Column("memory_bytes", sa.BigInteger),
    sa.Column("master_addr", sa.Text),
    sa.Column("master_port", sa.Integer),
    sa.Column("service_port", sa.Integer),
    sa.Column("assigned_at_s", sa.Double),
    sa.Column("started_at_s", sa.Double),
    sa.Column("stop_until_s", sa.Double),
    sa.Column("ended_at_s", sa.Double),
    sa.Column("reason", sa.Text),
    sa.Column("decision_id", sa.Text),
    sa.Column("preempted_for", sa.Text),
)
decision = sa.Table(
    "decision",
    _metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("decision_id", sa.Text),
    sa.Column("job_id", sa.Text),
    sa.Column("unit_index", sa.Integer),
    sa.Column("kind", sa.Text),
    sa.Column("at_s", sa.Double),
    sa.Column("policy_version", sa.Text),
    sa.Column("explanation", _JSON),
)
domain = sa.Table(
    "domain",
    _metadata,
    sa.Column("domain_id", sa.Text, primary_key=True),
    sa.Column("facts", _JSON),
)
node = sa.Table(
    "node",
    _metadata,
    sa.Column("node_id", sa.Text, primary_key=True),
    sa.Column("domain_id", sa.Text),
    sa.Column("facts", _JSON),
)
mark = sa.Table(
    "mark",
    _metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("reason", sa.Text),
    sa.Column("domain_id", sa.Text),
    sa.Column("node_id", sa.Text),
)
expected_demand = sa.Table(
    "expected_demand",
    _metadata,
    sa.Column("domain_id", sa.Text, primary_key=True),
    sa.Column("accelerators", sa.Double),
)

policy_change = sa.Table(
    "policy_change",
    _metadata,
    sa.Column("change_id", sa.BigInteger, primary_key=True),
    sa.Column("version", sa.Text),
    sa.Column("name", sa.Text),
    sa.Column("origin", sa.Text),
    sa.Column("source", sa.Text),
    sa.Column("body", sa.Text),
    sa.Column("changed_by", sa.Text),
    sa.Column("changed_at_s", sa.Double),
)

journal = sa.Table(
    "journal",
    _metadata,
    sa.Column("chunk", sa.BigInteger, primary_key=True),
    sa.Column("term", sa.BigInteger),
    sa.Column("number", sa.BigInteger),
    sa.Column("begins", sa.Boolean),
    sa.Column("first_at_s", sa.Double),
    sa.Column("last_at_s", sa.Double),
    sa.Column("entries", sa.Integer),
    sa.Column("body", sa.LargeBinary),
)
run_times = sa.Table(
    "run_times",
    _metadata,
    sa.Column("single", sa.Boolean, primary_key=True),
    sa.Column("state", sa.LargeBinary),
)
