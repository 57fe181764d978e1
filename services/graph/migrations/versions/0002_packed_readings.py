"""The readings of a node as packed numbers with their names, and room on each page for the next version of a row.

The column before them stays, empty: a process of the release before goes on beside those of this one.
"""

import json

import sqlalchemy as sa
from alembic import op

from services.graph.readings_row import packed

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("reading_names", sa.Text, nullable=False, server_default="[]"))
    op.add_column("nodes", sa.Column("reading_numbers", sa.LargeBinary, nullable=False, server_default=""))
    op.alter_column("nodes", "readings", server_default="{}")
    _convert()
    # Every observation replaces the rows of its nodes: with room beside it a new version needs no entry in any index.
    op.execute("ALTER TABLE nodes SET (fillfactor = 45)")
    # Numbers do not become smaller by compression.
    op.execute("ALTER TABLE nodes ALTER COLUMN reading_numbers SET STORAGE EXTERNAL")


def _convert() -> None:
    connection = op.get_bind()
    rows = connection.execute(sa.text("SELECT domain_id, node_id, CAST(readings AS text) AS readings FROM nodes")).all()
    for row in rows:
        names, numbers = packed(
            {
                metric: {int(index): (value, at_s) for index, (value, at_s) in series.items()}
                for metric, series in json.loads(row.readings).items()
            }
        )
        connection.execute(
            sa.text(
                "UPDATE nodes SET readings = '{}', reading_names = :names, reading_numbers = :numbers "
                "WHERE domain_id = :domain AND node_id = :node"
            ),
            {"names": names, "numbers": numbers, "domain": row.domain_id, "node": row.node_id},
        )
