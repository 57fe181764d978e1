"""Jobs that ended and incidents that were closed go after a while, and so what is known of jobs that nobody submitted here."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "job", sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now())
    )
    op.create_index("job_by_end", "job", ["finished_at"], postgresql_where=sa.text("finished_at IS NOT NULL"))
    op.create_index("job_unknown", "job", ["stored_at"], postgresql_where=sa.text("spec IS NULL"))
    op.create_index("incident_by_end", "incident", ["closed_at"], postgresql_where=sa.text("closed_at IS NOT NULL"))
