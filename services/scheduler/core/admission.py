"""Limits: whether a unit may start at all now, whatever room there is (quotas, caps on running units).

A limit plugin has a ``name`` and ``open(context)``, which begins a cycle and returns a `Gate`. The gate is asked for each
unit that the order puts forward; a unit that is held back waits with the reason, and so do the others of its lane. ``compares`` True
says that a gate which is opened anew after placements refuses otherwise than the one that was charged with them: such a cycle is
not bounded (`decide`). ``counts_parts`` True says that what a unit holds of its accelerators counts: the gate is a `PartsGate`, and
is asked before a part grows (shares.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit


class Gate(Protocol):
    """A limit in one cycle."""

    def refuses(self, unit: PendingUnit) -> str:
        """Why the unit may not start now; empty when it may."""
        ...

    def charge(self, unit: PendingUnit, sign: int = 1) -> None:
        """The unit was placed, or with ``sign`` -1 taken off."""
        ...


class PartsGate(Gate, Protocol):
    """A limit that counts parts of accelerators."""

    def grows(self, running: RunningUnit, milli: int, more: int) -> bool:
        """Whether a unit that runs and has ``milli`` thousandths of its device may have ``more``."""
        ...

    def resize(self, running: RunningUnit, milli: int, after: int) -> None:
        """It has ``after`` instead, until the next cycle or change of what runs."""
        ...


class Limit(Protocol):
    """See the module. ``context.facts["running"]`` are the running units by key."""

    name: str

    def open(self, context: OrderContext) -> Gate:
        """Begin a cycle."""
        ...


LIMITS: dict[str, Limit] = {}


def register(plugin: Limit) -> None:
    """Make a limit known by its name; PolicyError when the name is taken."""
    if plugin.name in LIMITS:
        raise PolicyError(f"a limit {plugin.name!r} exists already")
    LIMITS[plugin.name] = plugin


def limits(names: Iterable[str]) -> tuple[Limit, ...]:
    """The limit plugins of these names; PolicyError when one does not exist."""
    try:
        return tuple(LIMITS[name] for name in names)
    except KeyError as error:
        raise PolicyError(f"there is no limit {error.args[0]!r}; known are {', '.join(sorted(LIMITS))}") from None
