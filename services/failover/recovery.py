"""Which runs are recovered after a loss, from which checkpoint, and without which nodes: a pure decision.

The rules (who plans what) stand in README.md. A run is planned once: its id names job, unit and epoch, and the plan of
an epoch is final. The scheduler places the unit again with a greater epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a run is recovered."""

    NODE_FAILED = "node_failed"
    RUN_LOST = "run_lost"
    DOMAIN_LOST = "domain_lost"


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """A unit of a job."""

    job_id: str
    unit_index: int


@dataclass(frozen=True, slots=True)
class LostRun:
    """A run that lost a node, with the nodes it was placed on."""

    run_id: str
    unit: Unit
    epoch: int
    domain_id: str
    node_ids: tuple[str, ...] = ()
    # What the run itself was started from.
    restore_from: str = ""
    restore_step: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that a unit can resume from."""

    path: str
    step: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Place the unit again, from this checkpoint (none when ``restore_from`` is empty), not on these nodes."""

    run: LostRun
    restore_from: str
    restore_step: int
    exclude_node_ids: tuple[str, ...]


def plan_recoveries(
    lost: Iterable[LostRun],
    checkpoints: Mapping[Unit, Checkpoint],
    unusable_nodes: Set[str],
    planned: Set[str],
) -> list[Plan]:
    """Plans for the lost runs that have none yet, oldest unit first.

    ``checkpoints`` holds the newest (by step) of each unit over all its runs; where a run has written none, it starts
    from where it was started itself. ``unusable_nodes`` are the nodes known to be failed or suspected; each plan
    excludes those of them that the run was on.
    """
    plans: dict[str, Plan] = {}
    for run in sorted(lost, key=lambda item: (item.unit, item.epoch)):
        if run.run_id in planned or run.run_id in plans:
            continue
        newest = checkpoints.get(run.unit)
        if newest is None or (run.restore_from and run.restore_step > newest.step):
            newest = Checkpoint(run.restore_from, run.restore_step if run.restore_from else 0)
        excluded = tuple(sorted(set(run.node_ids) & set(unusable_nodes)))
        plans[run.run_id] = Plan(run, newest.path, newest.step, excluded)
    return list(plans.values())
