"""Whether a domain's agent is heard follows from its open incidents: an incident may be told before the domain itself.

The column ``domain.reachable`` is read no more. It stays for the version before, which writes it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "incident_unreachable", "incident", ["domain_id"], postgresql_where=sa.text("state = 'unreachable'")
    )
