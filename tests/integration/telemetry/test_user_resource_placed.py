"""A job that asks for a user-defined resource runs where it is, and only as many as there is of it at a time."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1.job_pb2 import JOB_OUTCOME_SUCCEEDED, JobFinished
from meridian.contracts.run.v1.run_pb2 import ASSIGNMENT_ACTION_START, Assignment
from tests.harness import environment
from tests.integration.agent.agent_process import agent_running, configuration
from tests.integration.scheduler.messages import submission
from tests.integration.scheduler.test_service import until


async def test_a_job_is_placed_only_where_its_resource_is(database_url: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as life:
        stack = await life.enter_async_context(environment(database_url))
        services = {}
        for name in ("telemetry", "graph", "scheduler"):
            services[name] = await life.enter_async_context(stack.service(name))
        settings = configuration(tmp_path, stack.bootstrap_servers, lease_s=120)
        settings["domain"]["nodes"] = [
            {"node_id": f"north-{number}", "cpus": 8, "memory_bytes": 2**34} for number in (1, 2, 3)
        ]
        settings["domain"]["resources"] = [
            {
                "name": "fpga", "description": "boards", "dynamic": True, "command": ["/bin/echo", "1 vendor=acme"],
                "interval_s": 5, "scope": ["north-2"],
            }
        ]  # fmt: skip
        await life.enter_async_context(agent_running(settings, tmp_path))
        await until(services["scheduler"], lambda body: len(body["items"]) == 3, "/v1/nodes")
        bus = stack.bus
        asks = Resources(cpus=0.1, user_resources={"fpga": 1.0})
        for name in ("first", "second", "third"):
            await bus.publish(submission(name, command=["python", "-c", "pass"], resources=asks))
        await bus.publish(submission("none", resources=Resources(cpus=0.1, user_resources={"tape": 1.0})))
        finished = {(await bus.expect(JobFinished, lambda event, name=name: event.job_id == name)).job_id
                    for name in ("first", "second", "third")}  # fmt: skip
        assert finished == {"first", "second", "third"}
        assert {event.outcome for event in bus.events(JobFinished)} == {JOB_OUTCOME_SUCCEEDED}
        orders = bus.events(Assignment, lambda event: event.action == ASSIGNMENT_ACTION_START)
        assert {rank.node_id for order in orders for rank in order.ranks} == {"north-2"}
        # A job that asks for what nobody has is told so.
        await until(
            services["scheduler"],
            lambda body: body.get("state") == "queued" and "'nodes_short_of': {'tape': 3}" in str(body),
            "/v1/jobs/none/explanation",
        )
