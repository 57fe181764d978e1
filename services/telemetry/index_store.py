"""SQL of the compute index: measurements in, measurements out. PostgreSQL stores no NUL, so there is none in texts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.telemetry.index.matrix import Column
from services.telemetry.index.served import Measurement, Origin

_ADD = sa.text(
    "INSERT INTO index_measurements (measurement_id, chip_id, group_name, task, precision, n_accel, throughput, origin, "
    "source, software, measured_at, reported_at) VALUES (:measurement_id, :chip_id, :group_name, :task, :precision, "
    ":n_accel, :throughput, :origin, :source, :software, :measured_at, :reported_at) ON CONFLICT DO NOTHING"
)
_NEWEST = 10_000


async def add_measurements(
    connection: AsyncConnection, measurements: Sequence[tuple[str, Measurement]], reported_at: datetime
) -> int:
    """Keep (id, measurement) rows; an id that is known changes nothing. The number of new ones."""
    added = 0
    for measurement_id, each in measurements:
        done = await connection.execute(
            _ADD,
            {
                "measurement_id": measurement_id,
                "chip_id": each.chip_id,
                "group_name": each.column.group.replace("\x00", "\ufffd"),
                "task": each.column.task.replace("\x00", "\ufffd"),
                "precision": each.column.precision.replace("\x00", "\ufffd"),
                "n_accel": each.column.n_accel,
                "throughput": each.throughput,
                "origin": str(each.origin),
                "source": each.source.replace("\x00", "\ufffd"),
                "software": each.software.replace("\x00", "\ufffd"),
                "measured_at": each.measured_at or reported_at,
                "reported_at": reported_at,
            },
        )
        added += done.rowcount
    return added


async def measurements_state(connection: AsyncConnection) -> tuple[int, datetime | None]:
    """How many there are and when the newest came: tells whether a fit is still fresh."""
    row = (await connection.execute(sa.text("SELECT count(*), max(reported_at) FROM index_measurements"))).one()
    return row[0], row[1]


async def all_measurements(connection: AsyncConnection) -> list[Measurement]:
    """The newest measurements, oldest of them first."""
    statement = sa.text("SELECT * FROM index_measurements ORDER BY reported_at DESC, measurement_id LIMIT :newest")
    rows = (await connection.execute(statement, {"newest": _NEWEST})).all()
    return [
        Measurement(
            row.chip_id,
            Column(row.group_name, row.task, row.precision, row.n_accel),
            row.throughput,
            Origin(row.origin),
            row.source,
            row.measured_at,
            row.software,
        )
        for row in reversed(rows)
    ]
