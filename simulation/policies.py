"""The policies that a simulation knows by name. Each is a setting of the real core.

The core's policy says how to decide; the setting adds what a simulated scheduler knows (`knowledge`) and whether domains are
joined (`isolated`).
"""

from __future__ import annotations

from services.scheduler.core.errors import PolicyError
from simulation.policies_energy import ENERGY
from simulation.policies_plain import PLAIN
from simulation.policies_planned import PLANNED
from simulation.setting import Setting, named

SETTINGS = named((*PLAIN.values(), *ENERGY.values(), *PLANNED.values()))


def setting(name: str) -> Setting:
    """The setting of this name; PolicyError names those that exist."""
    try:
        return SETTINGS[name]
    except KeyError:
        raise PolicyError(f"there is no policy {name!r}; known are {', '.join(sorted(SETTINGS))}") from None
