"""What plugins read of a cluster beside what they are asked about, and what they keep up with it from cycle to cycle."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Protocol, TypeVar

from services.scheduler.core.ledger import Usage
from services.scheduler.core.pending import Pending
from services.scheduler.core.policy import Policy
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.state import UnitKey
from services.scheduler.core.table import Table
from services.scheduler.core.view import View


class Observer(Protocol):
    """What a plugin keeps up with the units that run, from cycle to cycle; see `Cluster.watch`. One that has a method
    ``restated`` is told too of units that are thought to end at another time (`Cluster.restate`)."""

    def began(self, running: RunningUnit) -> None:
        """A unit holds nodes."""
        ...

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """A unit holds nothing more; ``now_s`` is NaN when the caller does not say when."""
        ...


Watching = TypeVar("Watching", bound=Observer)


class Watched(Protocol):
    """A cluster (`Cluster`), as limits, orders and share contracts see it."""

    @property
    def view(self) -> View:
        """What is free, and the facts that plugins read by name."""
        ...

    @property
    def table(self) -> Table:
        """The arrays that do not change."""
        ...

    @property
    def policy(self) -> Policy:
        """What is decided by."""
        ...

    @property
    def pending(self) -> Pending:
        """What waits."""
        ...

    @property
    def running(self) -> Mapping[UnitKey, RunningUnit]:
        """What runs."""
        ...

    @property
    def tenants(self) -> Mapping[str, Usage]:
        """What is held, by tenant."""
        ...

    def watch(self, name: str, settings: Hashable, make: Callable[[], Watching]) -> Watching:
        """See `Cluster.watch`."""
        ...

    def forget(self) -> None:
        """See `Cluster.forget`."""
        ...
