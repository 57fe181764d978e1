"""Keeping what was learned of run times over restarts: saved now and then, with what finished since learned again."""

from __future__ import annotations

import asyncio
import json
import logging
import zlib

from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.database import Database
from services.scheduler import store_run_times
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.run_times import RunTimes

log = logging.getLogger(__name__)

_SAVE_AFTER = 100
"""Observed run times after which what was learned is written to the database."""
_MOST_HISTORY = 20_000
"""Finished units that are read to learn again what was lost, or was not saved."""


class RunTimesKept:
    """What a live scheduler does with the run times of its book beside predicting."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._saved_observations = 0

    async def load(self, connection: AsyncConnection) -> RunTimes:
        """What is known of run times: as it was saved, with the units that finished since."""
        run_times = RunTimes()
        packed = await store_run_times.load_run_times(connection)
        if packed is not None:
            try:
                run_times = RunTimes.restored(json.loads(zlib.decompress(packed)))
            except (PolicyError, ValueError, zlib.error) as error:
                log.warning(
                    "what was learned of run times does not read, is learned again", extra={"error": repr(error)}
                )
        for job, unit_index, ran_s, end_s in await store_run_times.succeeded_after(
            connection, run_times.until_s, _MOST_HISTORY
        ):
            run_times.observe(job, job.units[unit_index], ran_s, end_s)
        self._saved_observations = run_times.observed
        return run_times

    def due(self, run_times: RunTimes) -> bool:
        """Whether enough was learned since they were saved."""
        return run_times.observed - self._saved_observations >= _SAVE_AFTER

    async def save(self, run_times: RunTimes) -> None:
        """Save them as they are."""
        observed, state = run_times.observed, run_times.state()
        packed = await asyncio.to_thread(lambda: zlib.compress(json.dumps(state).encode(), 1))
        async with self._database.transaction() as connection:
            await store_run_times.save_run_times(connection, packed)
        self._saved_observations = observed
