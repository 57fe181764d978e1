"""Shards of the scheduler and deciders of domains as real processes, and an agent that ends what is started."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from subprocess import Popen

from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1.job_pb2 import JobSubmitted
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFailed, RunFinished, RunStarted
from meridian.database import migrate
from meridian.embedded.probes import tcp_accepts
from meridian.embedded.process import ProcessSpec
from tests.fixtures_embedded import free_port, running
from tests.harness import PATIENCE_S, ROOT, Environment, Probe
from tests.integration.scheduler import messages
from tests.integration.scheduler.messages import START, STOP, graph, report

__all__ = ["ANSWER_LIMIT_S", "START", "Agents", "Parts", "graph", "report", "submission"]


ANSWER_LIMIT_S = 20.0
"""A domain that answers late, because the machine has other things to do, does not count as full."""


@dataclass(frozen=True)
class Parts:
    """So many shards and deciders over one database and broker."""

    stack: Environment
    shards: int = 1
    deciders: int = 1
    env: dict[str, str] = field(default_factory=dict)

    async def prepare(self) -> None:
        """The schemas of all of them."""
        for name in self.names("scheduler", self.shards):
            await migrate(self.stack.database_url, name, ROOT / "services/scheduler/migrations")
        for name in self.names("scheduler_domain", self.deciders):
            await migrate(self.stack.database_url, name, ROOT / "services/scheduler/domains/migrations")

    @staticmethod
    def names(base: str, parts: int) -> list[str]:
        """The schemas of the parts."""
        return [base] if parts == 1 else [f"{base}_{number}" for number in range(parts)]

    @contextmanager
    def shard(self, number: int = 0, *, ready: bool = True) -> Iterator[Popen[bytes]]:
        """A process of this shard; ``ready`` False does not wait for it to lead."""
        with self._process("scheduler", f"shard-{number}", {"MERIDIAN_SCHEDULER_SHARD": str(number)}, ready) as process:
            yield process

    @contextmanager
    def decider(self, number: int = 0, *, ready: bool = True) -> Iterator[Popen[bytes]]:
        """A process of this decider."""
        variables = {"MERIDIAN_SCHEDULER_DOMAIN_PART": str(number)}
        with self._process("scheduler_domain", f"decider-{number}", variables, ready) as process:
            yield process

    @contextmanager
    def _process(self, service: str, name: str, variables: dict[str, str], ready: bool) -> Iterator[Popen[bytes]]:
        port = free_port(name)
        spec = ProcessSpec(
            name=name,
            argv=(sys.executable, "-m", "meridian.service", service),
            env={
                **os.environ,
                "MERIDIAN_DATABASE_URL": self.stack.database_url,
                "MERIDIAN_KAFKA_BOOTSTRAP_SERVERS": self.stack.bootstrap_servers,
                "MERIDIAN_INSTANCE": "one",
                "MERIDIAN_SCHEDULER_LEVELS": "two",
                "MERIDIAN_SCHEDULER_SHARDS": str(self.shards),
                "MERIDIAN_SCHEDULER_DOMAIN_PARTS": str(self.deciders),
                "MERIDIAN_SCHEDULER_ANSWER_LIMIT_S": str(ANSWER_LIMIT_S),
                f"MERIDIAN_{service.upper()}_HTTP_PORT": str(port),
                **variables,
                **self.env,
            },
            cwd=ROOT,
            log_path=self.stack.data_dir / f"{name}-{port}.log",
            ready=tcp_accepts("127.0.0.1", port) if ready else None,
            ready_timeout_s=2 * PATIENCE_S,
            # The end of the journal is written when it stops.
            stop_timeout_s=PATIENCE_S,
        )
        with running(spec) as process:
            yield process


def submission(job_id: str, tenant: str = "lab", *, accelerators: int = 1, **spec: object) -> JobSubmitted:
    """A task that wants accelerators."""
    wanted = {"command": ["run"], "resources": Resources(cpus=1, accelerators=accelerators), **spec}
    return messages.submission(job_id, tenant, **wanted)


class Agents:
    """Ends every run of every domain soon after it was started; holds on to devices meanwhile and checks them."""

    def __init__(self, bus: Probe, hold_s: float = 0.05) -> None:
        self._bus, self._hold_s = bus, hold_s
        self._done: set[tuple[str, str, int]] = set()
        self.held: dict[tuple[str, int], str] = {}
        self.twice: list[str] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            new = []
            for item in self._bus.events(Assignment):
                name = (item.run_id, item.domain_id, item.action)
                if name not in self._done:
                    self._done.add(name)
                    new.append(item)
            for item in new:
                if item.action == STOP:
                    await self._bus.publish(report(RunFailed, item, kind=run_pb2.RUN_FAILURE_KIND_STOPPED))
                    continue
                for rank in item.ranks:
                    for index in rank.accelerator_indices:
                        other = self.held.setdefault((rank.node_id, index), item.run_id)
                        if other != item.run_id:
                            self.twice.append(f"{rank.node_id}/{index}: {other} and {item.run_id}")
            await self._bus.publish(*(report(RunStarted, item) for item in new if item.action == START))
            await asyncio.sleep(self._hold_s)
            for item in new:
                for rank in item.ranks:
                    for index in rank.accelerator_indices:
                        self.held.pop((rank.node_id, index), None)
            await self._bus.publish(*(report(RunFinished, item) for item in new if item.action == START))
