"""The agent of one domain: its parts, how they are wired, in which order they start and end.

Start: (1) the journal is read, leftovers are ended, nodes start, while the identity service is asked; (2) the HTTP side
answers; (3) the bus: the position in the orders is taken before the first report, so that no order is missed; (4) all
parts run until a signal comes or one of them fails. End: runs are ended and reported, then the parts stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Coroutine, Iterator
from typing import Any

import uvicorn

from agent.bus_clients import Producer
from agent.engine_choice import ENDING_RUNS_S, engine_of
from agent.engines.own_scheduler import OwnScheduler
from agent.engines.slurm.cluster import Cluster
from agent.heartbeats import Heartbeats
from agent.http_api import AgentView, create_api
from agent.kubernetes_settings import KubernetesScheduling
from agent.lease import Lease
from agent.measures import AgentMeasures, registry_of
from agent.orders import Orders
from agent.placing.kubernetes import KubernetesParts, kubernetes_of
from agent.placing.local import first_fit_of
from agent.placing.service import Placing
from agent.placing.slurm import cluster_of, slurm_scheduler_of
from agent.registration import IdentityClient, Registration, RegistrationRefusedError
from agent.resource_reports import ResourceReports
from agent.run_book import RunBook
from agent.run_logs import RunLogs
from agent.run_reports import RunReports
from agent.settings import AgentSettings, SlurmScheduling
from meridian.clock import Clock, SystemClock
from meridian.errors import UnavailableError
from meridian.ids import NewId, new_id

_log = logging.getLogger(__name__)

LAST_REPORTS_S = 10.0
REPORT_TIMEOUT_S = 30.0
HEARTBEAT_TIMEOUT_S = 2.0
LOOP_CHECK_S = 1.0
KEEP_ALIVE_S = 75
"""As in `meridian.service`: longer than clients use an idle connection again."""


class Agent:
    """All parts of one agent."""

    def __init__(self, settings: AgentSettings, clock: Clock | None = None, ids: NewId = new_id) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self.book = RunBook(settings.data_dir / "journal", new_agent_mark=secrets.token_hex(8))
        scheduling = settings.domain.own_scheduler
        self._cluster: Cluster | KubernetesParts | None = None
        if isinstance(scheduling, SlurmScheduling):
            self._cluster = cluster_of(settings.domain, scheduling, settings.shared)
        elif isinstance(scheduling, KubernetesScheduling):
            self._cluster = kubernetes_of(settings.domain, scheduling, ENDING_RUNS_S)
        self.engine = engine_of(settings, self.book, self._cluster, self._clock)
        self._logs = RunLogs(settings.shared / "logs")
        self._identity = IdentityClient(settings, self._clock)
        self._ids = ids
        self._missing = "starting"
        self._loop_moved_at_s = self._clock.monotonic_s()
        self._parts: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set.

        :raises Exception: the error of a part that failed; the process must end, a fresh one takes over.
        """
        settings = self.settings
        self.book.open()
        listener = socket.create_server((settings.http_host, settings.http_port), backlog=128)
        agent_url = f"http://{settings.http_host}:{listener.getsockname()[1]}"
        domain_id = settings.domain.domain_id
        source = f"/agents/{domain_id}"
        servers = settings.kafka_bootstrap_servers
        producer = Producer(servers, f"agent-{domain_id}", source, request_timeout_s=REPORT_TIMEOUT_S)
        beats = Producer(servers, f"agent-{domain_id}-beats", source, request_timeout_s=HEARTBEAT_TIMEOUT_S)
        lease = Lease(settings.lease_s, ENDING_RUNS_S + 1, self._clock.monotonic_s())
        incarnation = self.book.incarnation
        heartbeats = Heartbeats(settings, self.engine, beats, lease, self._clock, incarnation=incarnation)
        run_reports = RunReports(self.engine, producer, domain_id, self.book.agent_mark, self._ids)
        resources = ResourceReports(
            settings,
            self.engine,
            producer,
            self._clock,
            incarnation=incarnation,
            agent_url=agent_url,
            wanted=self.engine.power_changed,
        )
        placing = self._placing(producer, resources)
        refuses = {"why_refused": placing.why_refused} if placing is not None else {}
        orders = Orders(settings, self.engine, producer, lease, self._clock, run_reports.traces, **refuses)
        server = self._http_server(lease, orders, run_reports)
        async with contextlib.AsyncExitStack() as cleanup:
            cleanup.push_async_callback(self.book.close)
            cleanup.push_async_callback(self.engine.close)
            cleanup.push_async_callback(
                self._end_http, server, self._start_part("http", server.serve(sockets=[listener]))
            )
            self._start_part("loop", self._watch_loop())
            cleanup.push_async_callback(producer.stop)
            cleanup.push_async_callback(beats.stop)
            cleanup.push_async_callback(orders.stop)
            if placing is not None:
                cleanup.push_async_callback(placing.stop)
            cleanup.push_async_callback(self._end_parts)
            preparation = asyncio.create_task(self._prepare(producer, beats, orders, placing))
            if not await self._unless_stopped(preparation, stop):
                return
            registration = preparation.result()
            self._use(registration, heartbeats, resources)
            # The lease begins with the first sign of life, not with the wait for others to start.
            lease.acknowledged(self._clock.monotonic_s(), self._clock.monotonic_s())
            reporting = self._start_part("run reports", run_reports.run())
            self._start_part("heartbeats", heartbeats.run())
            await resources.report()
            ordering = self._start_part("orders", orders.run())
            if placing is not None:
                self._start_part("placing", placing.run())
            self._start_part("resource reports", resources.run())
            for name, part in resources.parts().items():
                self._start_part(name, part)
            self._start_part("log removal", self._remove_old_logs())
            if registration is not None:
                self._start_part("registration", self._renew(registration, heartbeats, resources))
            self._missing = "the bus has not taken a heartbeat yet"
            heard = asyncio.create_task(heartbeats.first_heard.wait())
            if await self._unless_stopped(heard, stop):
                self._missing = ""
                _log.info("agent of domain %s ready at %s", domain_id, agent_url)
                await self._unless_stopped(asyncio.create_task(_for_ever()), stop)
            self._missing = "ending"
            ordering.cancel()
            await self.engine.close()
            if not reporting.done():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(run_reports.all_published(), LAST_REPORTS_S)

    # --- start and end ---------------------------------------------------------------------------------------------

    async def _prepare(
        self, producer: Producer, beats: Producer, orders: Orders, placing: Placing | None
    ) -> Registration | None:
        self._missing = "nodes are starting"
        _, registration = await asyncio.gather(self.engine.start(), self._register())
        self._missing = "waiting for the bus"
        await asyncio.gather(producer.start(), beats.start())
        await orders.start()
        if placing is not None:
            await placing.start()
        return registration

    def _placing(self, producer: Producer, resources: ResourceReports) -> Placing | None:
        """What answers for the domain when it chooses its nodes itself."""
        domain = self.settings.domain
        if domain.own_scheduler is None:
            return None
        scheduler: OwnScheduler
        at_once = 1
        if isinstance(domain.own_scheduler, KubernetesScheduling):
            assert isinstance(self._cluster, KubernetesParts)
            scheduler = self._cluster.scheduler
            at_once = domain.own_scheduler.answers_at_once
        elif isinstance(domain.own_scheduler, SlurmScheduling):
            assert isinstance(self._cluster, Cluster)
            scheduler = slurm_scheduler_of(domain, domain.own_scheduler, self._cluster)
            at_once = domain.own_scheduler.answers_at_once
        else:
            scheduler = first_fit_of(domain, domain.own_scheduler, self.engine, resources.user_resources.amounts)
        book = self.book
        return Placing(
            self.settings,
            scheduler,
            producer,
            self._clock,
            incarnation=book.incarnation,
            sender=book.agent_mark,
            at_once=at_once,
        )

    async def _register(self) -> Registration | None:
        if not self.settings.identity_url:
            return None
        stored = self._identity.stored()
        if stored is not None:
            return stored
        return await self._identity.register_until_done(self._say_missing)

    async def _renew(self, registration: Registration, heartbeats: Heartbeats, resources: ResourceReports) -> None:
        """Register again after every start and at ``rotate_at``; while that fails, the present registration stays.

        So it does after a refusal, which is logged: what a revoked agent may still do is for those to decide who read it.
        """
        wait_s = 5.0
        while True:
            await asyncio.sleep(wait_s)
            try:
                registration = await self._identity.register()
            except (UnavailableError, RegistrationRefusedError) as error:
                _log.warning("registration not renewed: %s", error.detail)
                wait_s = 30.0
                continue
            self._use(registration, heartbeats, resources)
            wait_s = max((registration.rotate_at - self._clock.now()).total_seconds(), 30.0)

    def _use(self, registration: Registration | None, heartbeats: Heartbeats, resources: ResourceReports) -> None:
        domain_id = self.settings.domain.domain_id
        agent_id = registration.agent_id if registration is not None else f"agent-{domain_id}"
        heartbeats.agent_id = resources.agent_id = agent_id
        resources.compute_ids = registration.compute_ids if registration is not None else {}

    async def _unless_stopped(self, work: asyncio.Task[Any], stop: asyncio.Event) -> bool:
        """Wait for ``work``; False when ``stop`` came first. The error of a part that failed is raised here."""
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, stopping, *self._parts}, return_when=asyncio.FIRST_COMPLETED)
            for part in self._parts:
                if part.done():
                    part.result()
                    raise RuntimeError(f"{part.get_name()} ended by itself")
            if work.done():
                work.result()
            return not stop.is_set()
        finally:
            for task in (stopping, work):
                if not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    def _start_part(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._parts.add(task)
        return task

    async def _end_parts(self) -> None:
        ending = [part for part in self._parts if part.get_name() != "http"]
        for part in ending:
            part.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _end_http(self, server: uvicorn.Server, part: asyncio.Task[None]) -> None:
        server.should_exit = True
        await asyncio.wait({part}, timeout=2)

    # --- small parts -----------------------------------------------------------------------------------------------

    def _http_server(self, lease: Lease, orders: Orders, run_reports: RunReports) -> uvicorn.Server:
        gauges = {
            ("meridian_agent_unacknowledged_events", "Events the bus has not taken yet"): lambda: len(
                self.book.pending
            ),
            ("meridian_agent_contact_age_seconds", "Time since the newest proof of contact to the bus"): lambda: (
                lease.contact_age_s(self._clock.monotonic_s())
            ),
        }
        counters = {
            ("meridian_agent_orders", "Orders carried out"): lambda: orders.handled_count,
            ("meridian_agent_unreadable_orders", "Orders set aside"): lambda: orders.unreadable_count,
            ("meridian_agent_published_events", "Events published"): lambda: run_reports.published_count,
            ("meridian_agent_malformed_lines", "Protocol lines of programs that were malformed"): lambda: (
                self.engine.malformed_count
            ),
        }
        cluster = self._cluster
        if isinstance(cluster, Cluster):
            unreadable = (
                "meridian_agent_unreadable_slurm_lines",
                "What Slurm said of jobs and nodes and could not be read",
            )
            counters[unreadable] = lambda: cluster.unreadable_count
        view = AgentView(
            engine=self.engine,
            logs=self._logs,
            registry=registry_of(AgentMeasures(self.engine, gauges, counters)),
            token=self.settings.token(),
            emulated=self.settings.domain.emulated,
            knows_run=self.book.knows_run,
            not_ready=lambda: self._missing,
            not_live=self._stalled,
        )
        config = uvicorn.Config(
            create_api(view),
            timeout_graceful_shutdown=1,
            timeout_keep_alive=KEEP_ALIVE_S,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
        )
        return _Server(config)

    def _say_missing(self, what: str) -> None:
        self._missing = what

    def _stalled(self) -> str:
        """A loop that answers moves; what can hang without it is the bus, and readiness tells that."""
        age_s = self._clock.monotonic_s() - self._loop_moved_at_s
        return f"the loop stood still for {age_s:.0f} s" if age_s > 10 * LOOP_CHECK_S else ""

    async def _watch_loop(self) -> None:
        while True:
            self._loop_moved_at_s = self._clock.monotonic_s()
            await asyncio.sleep(LOOP_CHECK_S)

    async def _remove_old_logs(self) -> None:
        while True:
            # What runs goes on writing to its files, however long it was silent.
            running = {run.run_id for run in self.engine.list_runs()}
            await asyncio.to_thread(self._logs.remove_older_than, self.settings.log_retention_s, running)
            await asyncio.sleep(3600)


class _Server(uvicorn.Server):
    """Leaves signals to the agent."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _for_ever() -> None:
    await asyncio.Event().wait()
