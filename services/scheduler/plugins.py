"""Plugins that other distributions bring: entry points of the group ``meridian.scheduler.plugins``, loaded once at start.

An entry point names a plugin (an object, or a class without arguments) or a function ``register(registry)`` that registers
several. What a plugin is shows from its methods (`Registry.add`). Names in policies are the plugins' own; that of the entry
point appears only in errors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from meridian.errors import ConfigurationError, MeridianError
from services.scheduler.core import admission, filters, planning, preemption, queue, scores, waiting_unit

GROUP = "meridian.scheduler.plugins"
log = logging.getLogger(__name__)


class Registry:
    """Where plugins are registered; ``added`` lists them as ``kind name``."""

    def __init__(self) -> None:
        self.added: list[str] = []

    def filter(self, plugin: filters.Filter) -> None:
        """Which nodes may take a rank: ``passes`` and ``why`` (core/filters.py)."""
        self._add("filter", plugin, filters.register, ("passes", "why"), ("dynamic",))

    def score(self, plugin: scores.Score) -> None:
        """How good a place is: ``nodes``, ``domains`` or ``domain_set`` (core/scores.py)."""
        attributes = () if hasattr(plugin, "domain_set") else ("dynamic",)
        self._add("score", plugin, scores.register, (), attributes)

    def order(self, plugin: waiting_unit.Order) -> None:
        """Which unit goes first: ``key`` (core/waiting_unit.py)."""
        self._add("order", plugin, queue.register, ("key",), ("per",))

    def limit(self, plugin: admission.Limit) -> None:
        """Whether a unit may start at all: ``open`` (core/admission.py)."""
        self._add("limit", plugin, admission.register, ("open",))

    def preemption(self, plugin: preemption.Preemption) -> None:
        """Who may lose its nodes: ``victims`` (core/preemption.py)."""
        self._add("preemption", plugin, preemption.register, ("victims",))

    def planner(self, plugin: planning.Planner) -> None:
        """What should run as a whole: ``plan`` (core/planning.py)."""
        self._add("planner", plugin, planning.register, ("plan",))

    def add(self, plugin: Any) -> None:
        """A plugin of the kind that its methods show; ConfigurationError when they show none or several."""
        kinds: dict[str, Callable[[Any], None]] = {
            "passes": self.filter,
            "nodes": self.score,
            "domains": self.score,
            "domain_set": self.score,
            "key": self.order,
            "open": self.limit,
            "victims": self.preemption,
            "plan": self.planner,
        }
        found = {kinds[name] for name in kinds if callable(getattr(plugin, name, None))}
        if len(found) != 1:
            count = "none" if not found else "more than one"
            raise ConfigurationError(f"{plugin!r} has the methods of {count} of the kinds of plugins")
        found.pop()(plugin)

    def _add(
        self,
        kind: str,
        plugin: Any,
        register: Callable[[Any], None],
        methods: tuple[str, ...],
        attributes: tuple[str, ...] = (),
    ) -> None:
        name = getattr(plugin, "name", None)
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"the {kind} {plugin!r} has no name")
        missing = [method for method in methods if not callable(getattr(plugin, method, None))]
        missing += [attribute for attribute in attributes if not hasattr(plugin, attribute)]
        if missing:
            raise ConfigurationError(f"the {kind} {name!r} has no {' and no '.join(missing)}")
        register(plugin)
        self.added.append(f"{kind} {name}")


_loaded: set[tuple[str, str, str]] = set()


def load_plugins() -> list[str]:
    """Load what installed distributions bring and register it; returns what was added, as ``kind name``.

    Each entry point is loaded once in a process. ConfigurationError names the distribution when one does not load or
    brings something that is no plugin, or a name that is taken.
    """
    added = []
    for point in sorted(entry_points(group=GROUP), key=lambda item: (_distribution(item), item.name)):
        identity = (_distribution(point), point.name, point.value)
        if identity in _loaded:
            continue
        found = _load(point)
        _loaded.add(identity)
        log.info("plugins loaded", extra={"distribution": identity[0], "plugins": found})
        added += found
    return added


def _load(point: EntryPoint) -> list[str]:
    registry = Registry()
    try:
        plugin = point.load()
        if isinstance(plugin, type):
            plugin = plugin()
        if hasattr(plugin, "name"):
            registry.add(plugin)
        elif callable(plugin):
            plugin(registry)
        else:
            raise ConfigurationError(f"{plugin!r} is neither a plugin nor a function that registers some")
    except Exception as error:
        # Code of others: whatever it raises, the reader must learn whose it is.
        detail = error.detail if isinstance(error, MeridianError) else f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"the plugin {point.name} = {point.value} of the distribution {_distribution(point)} cannot be used: {detail}"
        ) from error
    return registry.added


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown distribution"
