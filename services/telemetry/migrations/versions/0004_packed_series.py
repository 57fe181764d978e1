"""The series of a node as packed numbers with their names, and room on each page for the next version of a row.

The column before them stays, empty: a process of the release before goes on beside those of this one.
"""

import json

import sqlalchemy as sa
from alembic import op

from services.telemetry.reading_check import Series
from services.telemetry.series_row import packed

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("newest", sa.Column("names", sa.Text, nullable=False, server_default="[]"))
    op.add_column("newest", sa.Column("numbers", sa.LargeBinary, nullable=False, server_default=""))
    op.alter_column("newest", "series", server_default="{}")
    _convert()
    # Every report replaces the rows of its nodes: with room beside it a new version needs no entry in any index.
    op.execute("ALTER TABLE newest SET (fillfactor = 45)")
    op.execute("ALTER TABLE listed_nodes SET (fillfactor = 45)")
    # Numbers do not become smaller by compression.
    op.execute("ALTER TABLE newest ALTER COLUMN numbers SET STORAGE EXTERNAL")


def _convert() -> None:
    connection = op.get_bind()
    rows = connection.execute(sa.text("SELECT domain_id, node_id, CAST(series AS text) AS series FROM newest")).all()
    for row in rows:
        names, numbers = packed(
            {
                (int(index), metric): _series(fields)
                for metric, by_index in json.loads(row.series).items()
                for index, fields in by_index.items()
            }
        )
        connection.execute(
            sa.text(
                "UPDATE newest SET series = '{}', names = :names, numbers = :numbers "
                "WHERE domain_id = :domain AND node_id = :node"
            ),
            {"names": names, "numbers": numbers, "domain": row.domain_id, "node": row.node_id},
        )


def _series(fields: list) -> Series:
    """From the order of fields before; rows of older releases have fewer of them."""
    names = (
        "value", "observed_at_s", "source", "statistic", "reason", "unchanged_reports", "history_at_s", "unchanged_since_s",
        "unknown_kind", "part_profile", "part_memory_bytes",
    )  # fmt: skip
    return Series(**dict(zip(names, fields, strict=False)))
