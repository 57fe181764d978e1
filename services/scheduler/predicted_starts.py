"""The track record of predicted starts in the live service: now and then a unit that begins to wait is predicted, though nobody
asks, and later it is noted when it started. Kept in the database as one small row; a crash loses the last minutes of it."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from meridian.database import Database, is_passing
from services.scheduler.answer_time import AnswerTime
from services.scheduler.collector import held_off
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.futures.asked_starts import follow, next_asked
from services.scheduler.core.futures.prospect import prospects
from services.scheduler.core.futures.track_record import TrackRecord
from services.scheduler.live import LiveScheduler

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 5.0
_SAVE_EVERY_S = 300.0

_table = sa.Table(
    "predicted_starts",
    sa.MetaData(),
    sa.Column("single", sa.Boolean, primary_key=True),
    sa.Column("state", postgresql.JSONB),
)


class PredictedStarts:
    """See the module; ``record`` moves bands."""

    def __init__(self, database: Database, live: LiveScheduler) -> None:
        self._database, self._live = database, live
        self.record = TrackRecord()
        self._asked_at_s = self._saved_at_s = 0.0
        self._saved = self.record.state()

    async def load(self) -> None:
        """Go on where `save` was last; from nothing when that does not read."""
        async with self._database.reading() as connection:
            state = (await connection.execute(sa.select(_table.c.state))).scalar_one_or_none()
        if state is not None:
            try:
                self.record = TrackRecord.restored(state)
            except PolicyError as error:
                log.warning("the track record of predicted starts is begun anew", extra={"error": error.detail})
        self._saved, self._saved_at_s = self.record.state(), self._live.now_s()

    async def run(self) -> None:
        """Look and save for ever."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self.look()
            if self._live.now_s() < self._saved_at_s + _SAVE_EVERY_S:
                continue
            try:
                await self.save()
            except Exception as error:  # what does not pass ends the process, as everywhere
                if not is_passing(error):
                    raise
                log.warning("the track record of predicted starts was not saved", extra={"error": repr(error)})

    async def look(self) -> None:
        """Note what became of predicted units, and predict the newest one if it is time."""
        now_s, cluster = self._live.now_s(), self._live.book.cluster
        follow(self.record, cluster, now_s)
        unit = next_asked(cluster, self._asked_at_s, now_s)
        if unit is None:
            return
        self._asked_at_s = now_s
        copy, policy = self._live.for_questions(), self._live.policy
        # As long as for who asks: what is told later than that is told to nobody.
        ask = partial(held_off()(prospects), patience=AnswerTime().to_follow)
        found = await asyncio.to_thread(ask, copy, policy, now_s, [unit.key])
        for said in found.values():
            self.record.asked(said, now_s)

    async def save(self) -> None:
        """Keep the record, if it changed."""
        state = self.record.state()
        self._saved_at_s = self._live.now_s()
        if state == self._saved:
            return
        statement = postgresql.insert(_table).values(single=True, state=json.loads(json.dumps(state)))
        async with self._database.transaction() as connection:
            await connection.execute(
                statement.on_conflict_do_update(index_elements=["single"], set_={"state": statement.excluded.state})
            )
        self._saved = state

    async def stop(self) -> None:
        """Keep what is known when the service ends."""
        try:
            await self.save()
        except (OSError, sa.exc.SQLAlchemyError) as error:
            log.warning("the end of the track record was not written", extra={"error": repr(error)})
