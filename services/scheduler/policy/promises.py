"""What a policy file promises: ``shares`` of domains per window, and ``service_levels`` of tenants and queues.

    shares:
      planned: {beijing: 3, shanghai: 1}      # or a list of such rows, one per window, from midnight UTC on
      kind: fraction                          # or accelerators
      tolerance: 0.05
      window_s: 3600
      plan: standing                          # or per_window, and then perhaps
      move_every_s: 0
    service_levels:
      team-a:
      - {kind: average_wait, target: 600, window_s: 3600, penalty_micro_units: 5000000, currency: CNY}

They become options: of the score ``share_deficit``, and of ``service_levels``, which belong to no plugin. The core checks them;
here is remembered in which line each part stands.
"""

from __future__ import annotations

from collections.abc import Iterator

from services.scheduler.core.contracts.plan import PLUGIN
from services.scheduler.core.contracts.promises import SERVICE_LEVELS
from services.scheduler.core.idle_nodes import IDLE_NODES
from services.scheduler.policy.marked_yaml import Marked, Problems

SECTIONS = {"shares": PLUGIN, "service_levels": SERVICE_LEVELS, IDLE_NODES: IDLE_NODES}
"""Sections of a policy file, and whose options they are."""
_SHARE_KEYS = ("planned", "kind", "window_s", "tolerance", "plan", "move_every_s")


def read_shares(at: Marked, problems: Problems) -> Marked:
    """The section ``shares`` as the options of the score `share_deficit`."""
    if not isinstance(at.value, dict):
        problems.add(at, "a mapping is wanted")
        return _with(at, {})
    found: dict[str, Marked] = {}
    for name, item in at.value.items():
        if name not in _SHARE_KEYS:
            problems.add(item, f"unknown key; known are {', '.join(_SHARE_KEYS)}")
        else:
            found["shares" if name == "planned" else name] = item
    if "shares" not in found:
        problems.add(at, "names no planned shares")
    return _with(at, found)


def read_service_levels(at: Marked, problems: Problems) -> Marked:
    """The section ``service_levels`` as options."""
    if not isinstance(at.value, dict):
        problems.add(at, "lists of objectives by tenant are wanted")
        return _with(at, {})
    unlisted = [item for item in at.value.values() if not isinstance(item.value, list)]
    for item in unlisted:
        problems.add(item, f"a list of objectives is wanted, not {item.plain()!r}")
    if unlisted:
        return _with(at, {})
    return _with(at, {"objectives": at})


def places(path: str, at: Marked) -> Iterator[tuple[str, Marked]]:
    """Every part of a value by its path in the errors of the core."""
    yield path, at
    if isinstance(at.value, dict):
        for name, item in at.value.items():
            yield from places(f"{path}.{name}", item)
    elif isinstance(at.value, list):
        for number, item in enumerate(at.value):
            yield from places(f"{path}[{number}]", item)


def _with(at: Marked, value: dict[str, Marked]) -> Marked:
    return Marked(value, at.path, at.pointer, at.line, at.column)
