"""Whether a request can be carried out as it stands. Pure.

One that cannot would end the agent, and again each time that it is read: with it the runs of the domain. Amounts that are none would be
given away without end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from agent.engines.base import why_unsafe
from meridian.contracts.scheduler.v1 import scheduler_pb2

_MOST_RANKS = 2**30
"""Twice as many have no number on the wire."""


def why_unsound(request: scheduler_pb2.PlacementRequest) -> str:
    """The first field that cannot be, with what is wrong; empty: the request is sound."""
    return next(_wrongs(request), "")


def _wrongs(request: scheduler_pb2.PlacementRequest) -> Iterator[str]:
    if not request.shard:
        yield "shard: is empty"
    for place, item in enumerate(request.classes):
        yield from _of_demand(f"classes[{place}].demand", item.demand)
    for place, holding in enumerate(request.holdings):
        yield from _of_name(f"holdings[{place}].name", holding.name.job_id, holding.name.epoch)
        yield from _of_demand(f"holdings[{place}].demand", holding.demand)
    for place, wanted in enumerate(request.wanted):
        yield from _of_name(f"wanted[{place}]", wanted.job_id, wanted.epoch)
        if wanted.HasField("demand"):
            yield from _of_demand(f"wanted[{place}].demand", wanted.demand)
        if not 0 <= wanted.first_rank <= _MOST_RANKS:
            yield f"wanted[{place}].first_rank: out of range"
        if math.isnan(wanted.time_limit_s) or wanted.time_limit_s < 0:
            yield f"wanted[{place}].time_limit_s: is no time"


def _of_name(field: str, job_id: str, epoch: int) -> Iterator[str]:
    if wrong := why_unsafe(job_id):
        yield f"{field}.job_id: {wrong}"
    if epoch < 1:
        yield f"{field}.epoch: starts at 1"


def _of_demand(field: str, demand: scheduler_pb2.Demand) -> Iterator[str]:
    if not 1 <= demand.ranks <= _MOST_RANKS:
        yield f"{field}.ranks: 1 to {_MOST_RANKS}"
    if demand.accelerators < 0 or demand.memory_bytes < 0:
        yield f"{field}: accelerators and memory_bytes are at least 0"
    if not 0 <= demand.device_milli <= 1000:
        yield f"{field}.device_milli: 0-1000"
    for name, amount in (
        ("cpus", demand.cpus),
        *((f"resources[{key}]", value) for key, value in demand.resources.items()),
    ):
        if not math.isfinite(amount) or amount < 0:
            yield f"{field}.{name}: is no amount"
