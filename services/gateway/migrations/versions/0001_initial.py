"""Jobs, units, runs, events, the network, incidents, forecasts, revocations and idempotency keys."""

from alembic import op

from meridian.database import create_kernel_tables

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE domain (
        domain_id TEXT NOT NULL,
        version BIGINT NOT NULL,
        body JSON NOT NULL,
        reachable BOOLEAN DEFAULT true NOT NULL,
        updated_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (domain_id)
    )
    """,
    """
    CREATE TABLE event (
        seq BIGINT GENERATED ALWAYS AS IDENTITY,
        type TEXT NOT NULL,
        time TIMESTAMP WITH TIME ZONE NOT NULL,
        source TEXT DEFAULT '' NOT NULL,
        topic TEXT DEFAULT '' NOT NULL,
        trace_id TEXT DEFAULT '' NOT NULL,
        event_id TEXT DEFAULT '' NOT NULL,
        job_id TEXT DEFAULT '' NOT NULL,
        tenant_id TEXT DEFAULT '' NOT NULL,
        domain_id TEXT DEFAULT '' NOT NULL,
        data TEXT NOT NULL,
        stored_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        PRIMARY KEY (seq)
    )
    """,
    "CREATE INDEX event_by_age ON event (stored_at)",
    "CREATE INDEX event_by_job ON event (job_id, seq) WHERE job_id <> ''",
    """
    CREATE TABLE forecast (
        subject_kind TEXT NOT NULL,
        subject_id TEXT NOT NULL,
        made_at TIMESTAMP WITH TIME ZONE NOT NULL,
        body JSON NOT NULL,
        PRIMARY KEY (subject_kind, subject_id)
    )
    """,
    """
    CREATE TABLE idempotency (
        tenant_id TEXT NOT NULL,
        key TEXT NOT NULL,
        request_hash TEXT NOT NULL,
        status INTEGER NOT NULL,
        answer TEXT NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        PRIMARY KEY (tenant_id, key)
    )
    """,
    "CREATE INDEX idempotency_by_age ON idempotency (created_at)",
    """
    CREATE TABLE incident (
        incident_id TEXT NOT NULL,
        seq BIGINT GENERATED ALWAYS AS IDENTITY,
        domain_id TEXT NOT NULL,
        node_id TEXT DEFAULT '' NOT NULL,
        state TEXT NOT NULL,
        reason TEXT DEFAULT '' NOT NULL,
        opened_at TIMESTAMP WITH TIME ZONE,
        updated_at TIMESTAMP WITH TIME ZONE,
        closed_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (incident_id),
        UNIQUE (seq)
    )
    """,
    """
    CREATE TABLE job (
        job_id TEXT NOT NULL,
        seq BIGINT GENERATED ALWAYS AS IDENTITY,
        revision BIGINT DEFAULT '1' NOT NULL,
        tenant_id TEXT DEFAULT '' NOT NULL,
        name TEXT DEFAULT '' NOT NULL,
        kind TEXT DEFAULT '' NOT NULL,
        priority INTEGER DEFAULT '0' NOT NULL,
        units_total INTEGER DEFAULT '1' NOT NULL,
        state TEXT DEFAULT 'submitted' NOT NULL,
        reason TEXT DEFAULT '' NOT NULL,
        restarts INTEGER DEFAULT '0' NOT NULL,
        units_active INTEGER DEFAULT '0' NOT NULL,
        units_succeeded INTEGER DEFAULT '0' NOT NULL,
        progress DOUBLE PRECISION,
        submitted_at TIMESTAMP WITH TIME ZONE,
        queued_at TIMESTAMP WITH TIME ZONE,
        placed_at TIMESTAMP WITH TIME ZONE,
        started_at TIMESTAMP WITH TIME ZONE,
        finished_at TIMESTAMP WITH TIME ZONE,
        cancel_requested_at TIMESTAMP WITH TIME ZONE,
        spec JSON,
        PRIMARY KEY (job_id),
        UNIQUE (seq)
    )
    """,
    "CREATE INDEX job_by_tenant ON job (tenant_id, seq)",
    "CREATE INDEX job_unfinished ON job (tenant_id) WHERE finished_at IS NULL",
    """
    CREATE TABLE link (
        from_domain_id TEXT NOT NULL,
        to_domain_id TEXT NOT NULL,
        domain_id TEXT NOT NULL,
        body JSON NOT NULL,
        PRIMARY KEY (from_domain_id, to_domain_id)
    )
    """,
    """
    CREATE TABLE node (
        node_id TEXT NOT NULL,
        domain_id TEXT NOT NULL,
        state TEXT NOT NULL,
        state_reason TEXT DEFAULT '' NOT NULL,
        body JSON NOT NULL,
        updated_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (node_id)
    )
    """,
    "CREATE INDEX node_by_domain ON node (domain_id, node_id)",
    """
    CREATE TABLE recovery (
        run_id TEXT NOT NULL,
        incident_id TEXT NOT NULL,
        job_id TEXT DEFAULT '' NOT NULL,
        unit_index INTEGER DEFAULT '0' NOT NULL,
        epoch BIGINT DEFAULT '0' NOT NULL,
        restore_from TEXT DEFAULT '' NOT NULL,
        restore_step BIGINT DEFAULT '0' NOT NULL,
        reason TEXT DEFAULT '' NOT NULL,
        planned_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (run_id, incident_id)
    )
    """,
    "CREATE INDEX recovery_by_incident ON recovery (incident_id)",
    """
    CREATE TABLE requirement (
        job_id TEXT NOT NULL,
        body JSON NOT NULL,
        PRIMARY KEY (job_id)
    )
    """,
    """
    CREATE TABLE revocation (
        seq BIGINT GENERATED ALWAYS AS IDENTITY,
        identity_id TEXT NOT NULL,
        token_id TEXT DEFAULT '' NOT NULL,
        revoked_at TIMESTAMP WITH TIME ZONE NOT NULL,
        PRIMARY KEY (seq)
    )
    """,
    """
    CREATE TABLE run (
        run_id TEXT NOT NULL,
        seq BIGINT GENERATED ALWAYS AS IDENTITY,
        job_id TEXT NOT NULL,
        unit_index INTEGER DEFAULT '0' NOT NULL,
        epoch BIGINT DEFAULT '0' NOT NULL,
        state TEXT NOT NULL,
        reason TEXT DEFAULT '' NOT NULL,
        domains JSON NOT NULL,
        finished_domains JSON NOT NULL,
        placement JSON NOT NULL,
        placed_at TIMESTAMP WITH TIME ZONE,
        started_at TIMESTAMP WITH TIME ZONE,
        ended_at TIMESTAMP WITH TIME ZONE,
        preempted_at TIMESTAMP WITH TIME ZONE,
        step BIGINT DEFAULT '0' NOT NULL,
        total_steps BIGINT DEFAULT '0' NOT NULL,
        metrics JSON NOT NULL,
        progress_at TIMESTAMP WITH TIME ZONE,
        streamed_at TIMESTAMP WITH TIME ZONE,
        checkpoint JSON,
        restore_from TEXT DEFAULT '' NOT NULL,
        restore_step BIGINT DEFAULT '0' NOT NULL,
        failure JSON,
        policy_version TEXT DEFAULT '' NOT NULL,
        decision_id TEXT DEFAULT '' NOT NULL,
        PRIMARY KEY (run_id)
    )
    """,
    "CREATE INDEX run_by_job ON run (job_id, seq)",
    """
    CREATE TABLE unit (
        job_id TEXT NOT NULL,
        unit_index INTEGER NOT NULL,
        state TEXT NOT NULL,
        reason TEXT DEFAULT '' NOT NULL,
        placed_epoch BIGINT DEFAULT '0' NOT NULL,
        lost_epoch BIGINT DEFAULT '0' NOT NULL,
        run_id TEXT DEFAULT '' NOT NULL,
        placements INTEGER DEFAULT '0' NOT NULL,
        checkpoint JSON,
        queued_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (job_id, unit_index)
    )
    """,
)


def upgrade() -> None:
    create_kernel_tables()
    for statement in STATEMENTS:
        op.execute(statement)
