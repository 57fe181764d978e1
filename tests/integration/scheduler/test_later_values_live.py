"""What a later release kept under values of its own is loaded from the database, and stands there unchanged."""

from __future__ import annotations

import sqlalchemy as sa

from meridian.contracts.job.v1.job_pb2 import JobPlaced
from services.scheduler import store
from services.scheduler.core.fleet import MarkKind, NodeState
from services.scheduler.core.state import JobState, RunState, UnitState
from tests.integration.scheduler.messages import graph, submission
from tests.integration.scheduler.test_service import scheduler

LATER = (
    "UPDATE job SET state = 'suspended'",
    "UPDATE unit SET state = 'suspended'",
    "UPDATE run SET state = 'frozen'",
    "UPDATE node SET facts = jsonb_set(facts::jsonb, '{state}', '\"draining\"')",
    "INSERT INTO mark (kind, subject, reason, domain_id, node_id) VALUES ('cordoned', 'ticket-7', 'repair', 'beijing', 'beijing-0')",
)


async def test_a_state_of_a_later_release_is_loaded(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        await stack.bus.publish(graph("beijing", 2), submission("job-1"), submission("job-over"))
        for _ in range(2):
            await stack.bus.expect(JobPlaced)
        database = service.kernel.database
        async with database.transaction() as connection:
            for statement in LATER:
                await connection.execute(sa.text(statement))
            await connection.execute(
                sa.text("UPDATE job SET state = 'expired', finished_at_s = 7 WHERE job_id = 'job-over'")
            )
            await connection.execute(sa.text("UPDATE run SET ended_at_s = 7 WHERE job_id = 'job-over'"))
        async with database.reading() as connection:
            loaded = await store.load(connection)
        assert [(job.job_id, job.state) for job in loaded.jobs] == [("job-1", JobState.RUNNING)]
        assert [unit.state for unit in loaded.units] == [UnitState.RUNNING]
        assert [run.state for run in loaded.runs] == [RunState.ACTIVE]
        assert {node.state for node in loaded.fleet.nodes.values()} == {NodeState.UNKNOWN}
        assert set(loaded.fleet.marks) == {(MarkKind.NODE_SUSPECTED, "beijing-0")}
        async with database.reading() as connection:
            assert await connection.scalar(sa.text("SELECT state FROM unit WHERE job_id = 'job-1'")) == "suspended"
