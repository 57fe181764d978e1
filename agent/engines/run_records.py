"""Orders as JSON, for engines whose runs outlive the agent: by these records the next agent knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agent.engines.base import LaunchRequest, RankPlacement, RunLimits
from agent.engines.local.gang import Cause
from agent.run_book import BegunRun


def launch_record(request: LaunchRequest) -> dict[str, Any]:
    """An order as JSON, so that the next agent knows the run."""
    return asdict(request)


def request_of(record: Mapping[str, Any]) -> LaunchRequest:
    """The order of a record.

    :raises KeyError, TypeError, InvalidArgumentError: it is none.
    """
    ranks = tuple(
        RankPlacement(**{**rank, "accelerator_indices": tuple(rank["accelerator_indices"])}) for rank in record["ranks"]
    )
    limits = RunLimits(**record["limits"])
    return LaunchRequest(**{**record, "ranks": ranks, "limits": limits, "command": tuple(record["command"])})


def stop_record(cause: Cause, grace_s: float) -> dict[str, Any]:
    """An order to end a run, and why, so that the next agent knows."""
    return {"grace_s": grace_s, "kind": cause.kind.value, "reason": cause.reason}


def stand_in(begun: BegunRun) -> LaunchRequest:
    """In place of an order that cannot be read: its run, with a rank on each of its nodes."""
    ranks = tuple(RankPlacement(number, node_id) for number, node_id in enumerate(begun.node_ids))
    return LaunchRequest(begun.run_id, begun.job_id, begun.unit_index, begun.epoch, "", ranks, len(ranks), ("unknown",))
