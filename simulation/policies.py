"""The policies that a simulation knows by name: the baselines of the literature, and ours. Each is a setting of the real core.

The core's policy says how to decide; the setting adds what a simulated scheduler knows (`knowledge`) and whether domains are
joined (`isolated`). Baselines that need an oracle say so in their name or text.
"""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import Policy
from simulation.engine import Setting

_PLAIN = Policy(
    name="plain",
    filters=("up", "domain", "accelerator", "anti_affinity", "capacity"),
    scores=(("pack", 1.0), ("spread", 0.001)),
    order=("age",),
)
"""First come, first served; the domain with most room, in it the fullest node that fits."""


def _core(name: str, **changes: object) -> Policy:
    return replace(_PLAIN, name=name, **changes)  # type: ignore[arg-type]


SETTINGS: dict[str, Setting] = {}


def register(setting: Setting) -> Setting:
    """Make a setting known by its name; PolicyError when the name is taken."""
    if setting.name in SETTINGS:
        raise PolicyError(f"a policy {setting.name!r} exists already")
    SETTINGS[setting.name] = setting
    return setting


def setting(name: str) -> Setting:
    """The setting of this name; PolicyError names those that exist."""
    try:
        return SETTINGS[name]
    except KeyError:
        raise PolicyError(f"there is no policy {name!r}; known are {', '.join(sorted(SETTINGS))}") from None


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
            about="two-dimensional least attained service in two queues (Tiresias)",
        ),
    ):
        register(replace(_setting, isolated=_isolated))
