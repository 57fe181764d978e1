"""Policies with planners, by name: Gavel, Sia, Pollux, deadlines, the rolling program; and ours beside them.

What each knows: all know the measured throughputs. "exact" settings know the steps that are left as well, as the paper gives them to
the objectives for makespan, finish-time fairness and shortest job first; ``*-blind`` and elastic ones do not. Rounds are the
published ones: 360 s for Gavel, 60 s for Sia and Pollux; ours has those of what it is compared with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.scheduler.core.policy import Policy
from services.scheduler.plans.catalogue import register_all
from simulation.setting import Setting, named

GAVEL_ROUND_S = 360.0
SIA_ROUND_S = 60.0

_POLICY = Policy(
    name="planned",
    filters=("up", "domain", "accelerator", "capacity"),
    scores=(("pack", 1.0), ("spread", 0.001)),
    order=("age",),
)


def planned(name: str, planner: str, interval_s: float, **options: Any) -> Policy:
    """A policy that follows a planner every ``interval_s``."""
    given = ((planner, tuple(options.items())),) if options else ()
    return replace(_POLICY, name=name, planner=planner, interval_s=interval_s, options=given)


_all: list[Setting] = []


def _add(
    name: str, planner: str, interval_s: float, knowledge: str, baseline: bool, about: str, **options: Any
) -> None:
    policy = planned(name, planner, interval_s, **options)
    _all.append(Setting(name, policy, knowledge, baseline=baseline, about=about))


register_all()
for _name, _objective, _knowledge, _about in (
    ("gavel-las", "las", "none", "max-min fairness of effective throughput"),
    ("gavel-ftf", "finish_time_fairness", "exact", "finish-time fairness; knows the steps left"),
    ("gavel-makespan", "min_makespan", "exact", "least makespan; knows the steps left"),
    ("gavel-throughput", "max_throughput", "none", "greatest sum of throughputs"),
    ("gavel-fifo", "fifo", "none", "first in, first out on the best types"),
    ("gavel-sjf", "shortest_job_first", "exact", "shortest job first; knows the steps left"),
):
    _add(_name, "gavel", GAVEL_ROUND_S, _knowledge, True, f"Gavel in rounds: {_about}", objective=_objective)
_add(
    "completion",
    "completion",
    GAVEL_ROUND_S,
    "exact",
    False,
    "ours: least mean completion time on unlike accelerators; knows the steps left",
)
_add(
    "completion-blind",
    "completion",
    GAVEL_ROUND_S,
    "none",
    False,
    "ours, without the steps left: as long again as it had",
    known=0,
)
_add("sia", "sia", SIA_ROUND_S, "none", True, "Sia's integer program over configurations of elastic jobs")
_add(
    "sia-measured",
    "sia",
    SIA_ROUND_S,
    "none",
    True,
    "the same, allowed to begin with what is best (all goodputs are measured here)",
    growth=0,
)
_add("greedy-elastic", "greedy-elastic", SIA_ROUND_S, "none", True, "configurations by gain per device")
_add("pollux-lite", "pollux-lite", SIA_ROUND_S, "none", True, "Pollux's fitness over numbers of devices")
_add(
    "elastic-exact",
    "elastic-exact",
    SIA_ROUND_S,
    "none",
    False,
    "ours: exact plan over all types, few restarts",
)
_add(
    "rolling-milp",
    "rolling-milp",
    GAVEL_ROUND_S,
    "exact",
    True,
    "rolling integer program over the first 20 jobs (oracle)",
)
for _name, _method, _about in (
    ("edf", "edf", "earliest deadline first"),
    ("edf-admission", "admission", "earliest deadline first with admission"),
    ("chronus", "chronus", "Chronus' leases by an integer program"),
):
    _add(_name, "deadlines", GAVEL_ROUND_S, "exact", True, f"{_about} (run times known)", method=_method)

PLANNED = named(_all)
