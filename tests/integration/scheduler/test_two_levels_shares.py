"""A share contract over two shards: a shard sees what domains give to the tenants of the other one."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFinished, RunStarted
from meridian.contracts.scheduler.v1.scheduler_pb2 import ShardShares
from meridian.settings import KernelSettings
from meridian.sharding import shard_of_tenant
from services.scheduler.replay_command import replayed
from tests.harness import PATIENCE_S, environment
from tests.integration.scheduler.test_service import starts
from tests.integration.scheduler.two_levels import Parts, graph, report, submission

POLICY = """
name: shared
allocation:
  scores: {share_deficit: 1}
shares:
  planned: {beijing: 3, shanghai: 1}
"""


async def test_a_shard_makes_up_for_what_a_domain_gives_to_tenants_of_the_other(
    database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY, encoding="utf-8")
    tenants = {shard_of_tenant(name, 2): name for name in ("lab", "works", "school", "mill")}
    async with environment(database_url) as stack:
        parts = Parts(stack, shards=2, env={"MERIDIAN_SCHEDULER_POLICY_FILE": str(tmp_path / "policy.yaml")})
        bus = stack.bus
        await parts.prepare()
        await bus.publish(graph("beijing", 1), graph("shanghai", 1))
        with parts.decider(), parts.shard(0), parts.shard(1):
            # By hand: of its 4 accelerators beijing is planned 3 (less a half of them: 1 of 3 are missing), shanghai 1 (1 too many).
            # Nobody knows when a service ends, so it is thought to hold them until the window ends.
            await bus.publish(
                submission("first", tenants[0], accelerators=4, kind=job_pb2.JOB_KIND_SERVICE, replicas=1)
            )
            start = await bus.expect(Assignment)
            await bus.publish(report(RunStarted, start))
            told = await bus.expect(ShardShares, lambda event: any(item.held_accelerators for item in event.domains))
            assert (told.shard, told.window_s) == ("scheduler_0", 3600.0)
            assert [(item.domain_id, item.held_accelerators) for item in told.domains] == [("beijing", 4.0)]
            # By hand: alone, shard 1 would give its accelerator to beijing (3/4 - 1/2 of it against 1/4 - 1/2). With the other's
            # 4 there, beijing is planned 3/4 of 5 and has 4.
            chosen = ""
            async with asyncio.timeout(PATIENCE_S):
                for number in count():
                    await bus.publish(submission(f"job-{number}", tenants[1]))
                    start = await bus.expect(Assignment, starts(f"job-{number}"))
                    chosen = start.domain_id
                    if chosen == "shanghai":
                        break
                    # The shard had not heard of the other one yet; what ended at once has given next to nothing.
                    await bus.publish(report(RunStarted, start), report(RunFinished, start))
            assert chosen == "shanghai"
        settings = KernelSettings(
            kafka_bootstrap_servers=stack.bootstrap_servers, database_url=database_url, data_dir=stack.data_dir
        )
        for part in ("scheduler_0", "scheduler_1"):
            assert (await replayed(settings, part)).differences == []
        assert not bus.dead_letters
