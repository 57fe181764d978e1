"""Policies without a planner, by name: the baselines of the literature, and ours. Those that need an oracle say so in their name
or text."""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.core.policy import Policy
from simulation.setting import Setting, Suits, named

_PLAIN = Policy(
    name="plain",
    filters=("up", "domain", "accelerator", "runs_there", "anti_affinity", "capacity"),
    scores=(("pack", 1.0), ("spread", 0.001)),
    order=("age",),
)
"""First come, first served; the domain with most room, in it the fullest node that fits."""


def _core(name: str, **changes: object) -> Policy:
    return replace(_PLAIN, name=name, **changes)  # type: ignore[arg-type]


_all: list[Setting] = []


def _add(setting: Setting) -> None:
    _all.append(setting)


for _name, _isolated in (("isolated-", True), ("", False)):
    for _setting in (
        Setting(
            f"{_name}fifo",
            _core("fifo", discipline="strict"),
            about="first in, first out; the first that has no room stops all",
        ),
        Setting(f"{_name}first-fit", _core("first-fit"), about="in order of arrival, whatever fits"),
        Setting(
            f"{_name}easy",
            _core("easy", discipline="easy"),
            "exact",
            about="EASY backfill with exact run times (oracle)",
        ),
        Setting(
            f"{_name}easy-declared",
            _core("easy", discipline="easy", estimate="limit"),
            "declared",
            about="EASY backfill with users' estimates",
        ),
        Setting(
            f"{_name}easy-predicted",
            _core("easy", discipline="easy"),
            "predicted",
            about="EASY backfill with predicted run times",
        ),
        Setting(
            f"{_name}conservative",
            _core("conservative", discipline="conservative"),
            "exact",
            about="conservative backfill with exact run times (oracle)",
        ),
        Setting(f"{_name}sjf", _core("sjf", order=("shortest",)), "exact", about="shortest job first (oracle)"),
        Setting(
            f"{_name}sjf-predicted",
            _core("sjf", order=("shortest",)),
            "predicted",
            about="predicted shortest job first",
        ),
        Setting(
            f"{_name}srtf",
            _core("srtf", order=("shortest_remaining",), preemptions=("order",)),
            "exact",
            about="shortest remaining time first, preemptive (oracle)",
        ),
        Setting(
            f"{_name}las",
            _core("las", order=("least_attained", "age"), preemptions=("order",)),
            about="least attained service in two queues (Tiresias): accelerators times time, without accelerators time alone",
        ),
    ):
        _add(replace(_setting, isolated=_isolated))


def _placing(name: str, about: str, *scores: tuple[str, float]) -> Setting:
    return Setting(name, _core(name, scores=scores), about=f"in order of arrival, whatever fits; {about}")


for _setting in (
    Setting(
        "drf",
        _core("drf", order=("drf", "age")),
        about="the tenant with the least dominant share of what it holds first (the paper's order; Armada counts the next gang too)",
    ),
    Setting("smallest", _core("smallest", order=("smallest", "age")), about="fewest accelerators first"),
    Setting("deadline", _core("deadline", order=("deadline", "age")), about="earliest deadline first"),
    _placing("best-fit", "the fullest node that fits", ("best_fit", 1.0)),
    _placing("fgd", "the node where fragmentation grows least (FGD)", ("fgd", 1.0)),
    _placing("least-loaded", "the emptiest domain and node", ("spread", 1.0), ("least_loaded", 1.0)),
    _placing("random", "any node", ("random", 1.0)),
    _placing("cheapest", "the cheapest domain (SkyPilot's order)", ("price", 1.0), ("pack", 1.0)),
):
    _add(_setting)

_OURS = _core(
    "meridian",
    order=("shortest_effort",),
    preemptions=("order", "move"),
    interval_s=1800.0,
    options=(
        ("order", (("margin_s", 120.0), ("ratio", 1.5), ("alike_ratio", 1.1), ("smallest_first", True))),
        ("shortest_effort", (("ceiling_s", 86_400.0), ("patience_s", 86_400.0))),
    ),
)
_add(
    Setting(
        "meridian-backfill",
        _core(
            "meridian-backfill",
            discipline="easy",
            estimate="limit",
            backfill_estimate="expected",
            backfill_order="shortest",
        ),
        "predicted",
        baseline=False,
        about="EASY for jobs that may not be interrupted: the reservation rests on declared limits, what overtakes it on"
        " predicted run times, the shortest first",
    )
)
_WORTH = (("worth_moving", (("micro_units", 20_000_000.0),)),)

for _setting in (
    Setting(
        "meridian",
        _OURS,
        "predicted",
        baseline=False,
        refresh=True,
        about="least effort until an end first, between predicted remaining run time and Gittins index, less by a factor of e for"
        " each day since submission, and the eldest first where it is a day or more; predictions of running jobs renewed every"
        " half hour; a job that runs for less than two minutes, or is less than 1.5 times as far back (1.1 times among jobs of"
        " one tenant that ask for the same and name neither user nor program), is left alone, and large gangs among those alike;"
        " jobs that find room elsewhere at once move where that makes room for one that waits."
        " Where rates differ between the network's accelerators it plans as completion-blind, elastic jobs as elastic-exact",
        suits=Suits(elastic="elastic-exact", unlike="completion-blind"),
    ),
    Setting(
        "meridian-local",
        replace(
            _OURS,
            name="meridian-local",
            filters=(*_OURS.filters[:-1], "worth_moving", "capacity"),
            scores=(("transfer_cost", 4.0), ("transfer_time", 1.0), *_OURS.scores),
            options=(*_OURS.options, *_WORTH),
        ),
        "predicted",
        baseline=False,
        refresh=True,
        about="the same, near the jobs' data: waits for a domain near it when moving would cost too much",
    ),
):
    _add(_setting)

PLAIN = named(_all)
