"""Wires the scheduler: events to the live scheduler, its tasks, and the answers over HTTP."""

from __future__ import annotations

from pathlib import Path

from meridian.contracts.run.v1 import run_pb2
from meridian.errors import ConfigurationError
from meridian.service import Kernel
from meridian.settings import load
from services.scheduler.api import create_router
from services.scheduler.collector import leave_survivors
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import Policy
from services.scheduler.domains.settings import prepared_schemas
from services.scheduler.events import SUBSCRIPTIONS, Events
from services.scheduler.live import LiveScheduler
from services.scheduler.plans.catalogue import register_all
from services.scheduler.plugins import load_plugins
from services.scheduler.policy.api import create_policy_router
from services.scheduler.policy.file import parse, shipped
from services.scheduler.predicted_starts import PredictedStarts
from services.scheduler.promises_api import PromisesCollector, create_promises_router
from services.scheduler.settings import SchedulerSettings
from services.scheduler.shards.handing_over import hand_over
from services.scheduler.shards.live import OwnTenants, TwoLevelScheduler
from services.scheduler.tenants_api import create_tenants_router

_SCRIPTS = Path(__file__).parent / "migrations"


def part_name() -> str:
    """The name of this shard."""
    settings = load(SchedulerSettings)
    return settings.names[settings.shard]


def schemas() -> dict[str, Path]:
    """The schemas of all shards, and those of the deciders of domains where there are any."""
    settings = load(SchedulerSettings)
    shards = dict.fromkeys(settings.names, _SCRIPTS)
    return shards if settings.levels == "one" else {**shards, **prepared_schemas()}


async def after_migrations(database_url: str) -> None:
    """Jobs go to the shards that have their tenants now; ConfigurationError while that cannot be."""
    await hand_over(database_url, load(SchedulerSettings).names, _SCRIPTS)


def build(kernel: Kernel) -> None:
    """Add the scheduler to a kernel."""
    settings = load(SchedulerSettings)
    kernel.http_settings = settings
    leave_survivors()
    load_plugins()
    register_all()
    kind = LiveScheduler if settings.levels == "one" else TwoLevelScheduler
    live = kind(kernel, settings, read_policy(settings.policy_file))
    alone = settings.shards == 1
    events = Events(live) if alone else OwnTenants(live, settings.shard, settings.shards)

    kernel.before_start.append(live.start)
    kernel.after_stop.append(live.stop)
    for purpose, handlers in SUBSCRIPTIONS.items():
        # Where tenants went to other shards with a new number, submissions that nobody took yet are read by those.
        name = f"{purpose}_of_{settings.shards}" if purpose == "requests" and not alone else purpose
        kernel.bus.subscribe_batch(name, tuple(handlers), events.handle)
    if isinstance(live, TwoLevelScheduler):
        live.subscribe(kernel.bus)
        kernel.add_task("shares", live.run_shares)
    kernel.bus.stream("steps", (run_pb2.RunProgress,), live.hear_steps, group=False, keys=live.knows_job)
    kernel.add_task("leadership", live.keep_leading)
    kernel.add_task("cycles", live.run_cycles)
    kernel.add_task("deadlines", live.run_deadlines)
    kernel.add_task("upkeep", live.run_upkeep)
    kernel.add_task("journal", live.run_journal)
    starts = PredictedStarts(kernel.database, live)
    kernel.before_start.append(starts.load)
    kernel.after_stop.append(starts.stop)
    kernel.add_task("predicted starts", starts.run)
    kernel.http.include_router(create_router(kernel.database, live, starts))
    kernel.http.include_router(create_policy_router(kernel.database, live))
    kernel.http.include_router(create_promises_router(live))
    kernel.http.include_router(create_tenants_router(live))
    PromisesCollector(live, kernel.registry)


def read_policy(path: Path | None) -> Policy:
    """The policy in a YAML or JSON file, or the default one; ConfigurationError says what is wrong, and in which line."""
    if path is None:
        return shipped("balanced")
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the policy file {path} cannot be read: {error}") from None
    except PolicyError as error:
        raise ConfigurationError(f"the policy is wrong: {error.detail}") from None
