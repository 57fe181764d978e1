"""Wires a decider of domains: events to its grants, and a look at them over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter

from meridian.service import Kernel
from meridian.settings import load
from services.scheduler.app import read_policy
from services.scheduler.domains.live import DomainDecider
from services.scheduler.domains.settings import DomainSettings, prepared_schemas
from services.scheduler.plans.catalogue import register_all
from services.scheduler.plugins import load_plugins


def part_name() -> str:
    """The name of this part."""
    settings = load(DomainSettings)
    return settings.names[settings.part]


def schemas() -> dict[str, Path]:
    """The schemas of all parts."""
    return prepared_schemas()


def build(kernel: Kernel) -> None:
    """Add the decider to a kernel."""
    settings = load(DomainSettings)
    kernel.http_settings = settings
    load_plugins()
    register_all()
    decider = DomainDecider(kernel, settings, read_policy(settings.policy_file))
    decider.subscribe(kernel.bus)
    kernel.before_start.append(decider.start)
    kernel.after_stop.append(decider.stop)
    kernel.add_task("leadership", decider.keep_leading)
    kernel.add_task("summaries", decider.run_summaries)
    if decider.puts_to_sleep:
        kernel.add_task("rest", decider.run_rest)
    kernel.add_task("journal", decider.run_journal)
    kernel.http.include_router(create_router(decider))


def create_router(decider: DomainDecider) -> APIRouter:
    """What a decider answers."""
    router = APIRouter(prefix="/v1")

    @router.get("/domains")
    async def domains() -> dict[str, Any]:
        """The domains that it decides for: what runs there, and for whom."""
        return {
            "term": decider.term,
            "items": [
                {
                    "domain_id": domain.domain_id,
                    "nodes": len(domain.fleet.nodes),
                    "asleep": sum(domain.fleet.sleeps(name) for name in domain.fleet.nodes),
                    "grants": len(domain.grants),
                    "sequence": domain.sequence,
                    "shards": {
                        shard: {"term": item.session.term, "session": item.session.number, "waiting": item.waiting}
                        for shard, item in sorted(domain.sessions.items())
                    },
                }
                for _, domain in sorted(decider.domains.items())
            ],
        }

    return router
