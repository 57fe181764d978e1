"""The limit "preallocation": accelerators are held free for what tenants are expected to ask for.

In each cycle, for each tenant named in the options:
1. What it should be able to hold: what it holds now and the ``headroom``, or what its demand is forecast to be (``bound``
   "expected", or "high": the upper end of the band) at the nearest horizon of at least ``horizon_s``, times ``share``,
   whichever is more.
2. The reserve is that less what it holds now, and at most ``most``. A forecast older than ``stale_s`` counts no more.
A unit of another tenant may not start while it would leave fewer free accelerators than the reserves of all others than its
own tenant; one that could not even start in an empty network beside these reserves is not held back. With
``spare_short`` one that is thought to have ended within ``horizon_s`` may: it is gone when the demand comes.

The forecasts are the fact "outlooks" of the cluster: an object with ``at(now_s)``, which gives `Outlook` by tenant. Without it there
is only the headroom. What is held is network-wide: a tenant's forecast does not say where its units will go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import Policy
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.selection.amounts import cluster_of
from services.scheduler.core.selection.settings import list_of, mapping_of, number_of, text_of
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit
from services.scheduler.core.watching import Watched

FACT = "outlooks"
BOUNDS = ("expected", "high")


@dataclass(frozen=True, slots=True)
class Outlook:
    """A tenant's demand in accelerators (held and asked for) as it is forecast: points of (horizon s, expected, high).

    ``high`` is NaN where there is no band yet.
    """

    made_at_s: float
    points: tuple[tuple[float, float, float], ...]

    def demand(self, horizon_s: float, bound: str) -> float:
        """The forecast at the nearest horizon of at least ``horizon_s`` (else the farthest); 0 without any."""
        later = [point for point in self.points if point[0] >= horizon_s]
        point = min(later) if later else max(self.points, default=(0.0, 0.0, 0.0))
        _, expected, high = point
        return high if bound == "high" and high == high else expected  # noqa: PLR0124 - NaN


class Outlooks(Protocol):
    """What the fact is."""

    def at(self, now_s: float) -> Mapping[str, Outlook]:
        """The newest forecasts by tenant."""
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """The options; see the module."""

    tenants: tuple[str, ...] = ()
    headroom: float = 0.0
    share: float = 1.0
    bound: str = "expected"
    horizon_s: float = 600.0
    most: float = 0.0
    stale_s: float = 3600.0
    spare_short: bool = True


class HeldByTenant:
    """Accelerators that running units hold, by tenant; and the reserves of the last cycle."""

    def __init__(self) -> None:
        self.held: dict[str, float] = {}
        self.kept: dict[str, float] = {}

    def began(self, running: RunningUnit) -> None:
        """A unit got its nodes."""
        self._move(running, 1)

    def ended(self, running: RunningUnit, now_s: float) -> None:
        """A unit left its nodes."""
        self._move(running, -1)

    def _move(self, running: RunningUnit, sign: int) -> None:
        tenant = running.unit.tenant_id
        self.held[tenant] = self.held.get(tenant, 0.0) + sign * running.unit.devices


class PreallocationLimit:
    """See the module."""

    name = "preallocation"
    compares = True

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()

    def configured(self, options: Mapping[str, Any]) -> PreallocationLimit:
        """With the options of the module; PolicyError names a wrong one."""
        path = "options.preallocation"
        body = mapping_of(path, options, Settings.__dataclass_fields__)
        found: dict[str, Any] = {}
        if "tenants" in body:
            names = list_of(f"{path}.tenants", body["tenants"])
            found["tenants"] = tuple(text_of(f"{path}.tenants[{place}]", name) for place, name in enumerate(names))
        for name in ("headroom", "share", "horizon_s", "most", "stale_s"):
            if name in body:
                found[name] = number_of(f"{path}.{name}", body[name])
        if "bound" in body:
            if body["bound"] not in BOUNDS:
                raise PolicyError(f"{path}.bound: must be one of {', '.join(BOUNDS)}, not {body['bound']!r}")
            found["bound"] = body["bound"]
        if "spare_short" in body:
            if not isinstance(body["spare_short"], bool):
                raise PolicyError(f"{path}.spare_short: must be true or false, not {body['spare_short']!r}")
            found["spare_short"] = body["spare_short"]
        return PreallocationLimit(Settings(**found))

    def requires(self, policy: Policy) -> None:
        """PolicyError when nothing is held for anybody."""
        if not self._settings.tenants:
            raise PolicyError("options.preallocation.tenants: name the tenants that capacity is held for")
        if not self._settings.most:
            raise PolicyError("options.preallocation.most: name the most accelerators that are held for a tenant")

    def open(self, context: OrderContext) -> PreallocationGate:
        """Begin a cycle."""
        cluster = cluster_of(context)
        watched = cluster.watch(self.name, None, HeldByTenant)
        outlooks = cluster.view.facts.get(FACT)
        known = {} if outlooks is None else outlooks.at(context.now_s)
        lacks = lacking(self._settings, watched.held, known, context.now_s)
        kept = _kept(self._settings, lacks)
        if any(kept[tenant] < amount for tenant, amount in watched.kept.items() if tenant in kept):
            # Those that were held back may start though nothing came free.
            cluster.forget()
        watched.kept = kept
        return PreallocationGate(cluster, self._settings, lacks)


def reserves(
    settings: Settings, held: Mapping[str, float], outlooks: Mapping[str, Outlook], now_s: float
) -> dict[str, float]:
    """Accelerators to keep free for each tenant, at least 0; see the module."""
    return _kept(settings, lacking(settings, held, outlooks, now_s))


def _kept(settings: Settings, lacks: Mapping[str, float]) -> dict[str, float]:
    return {tenant: min(settings.most, max(0.0, amount)) for tenant, amount in lacks.items()}


def lacking(
    settings: Settings, held: Mapping[str, float], outlooks: Mapping[str, Outlook], now_s: float
) -> dict[str, float]:
    """What each tenant should be able to hold less what it holds: the reserves before they are limited to ``most``."""
    found: dict[str, float] = {}
    for tenant in settings.tenants:
        holds = held.get(tenant, 0.0)
        wanted = holds + settings.headroom
        outlook = outlooks.get(tenant)
        if outlook is not None and now_s - outlook.made_at_s <= settings.stale_s:
            wanted = max(wanted, settings.share * outlook.demand(settings.horizon_s, settings.bound))
        found[tenant] = wanted - holds
    return found


class PreallocationGate:
    """`PreallocationLimit` in one cycle. What a tenant places in the cycle is taken from its own reserve, and what is taken off
    from it counts for that again; ``lacks`` is `lacking`."""

    def __init__(self, cluster: Watched, settings: Settings, lacks: Mapping[str, float]) -> None:
        self._view, self._settings, self._lacks = cluster.view, settings, dict(lacks)
        self._kept = _kept(settings, lacks)
        self._total = sum(self._kept.values())

    def kept(self) -> dict[str, float]:
        """Accelerators that are kept free now, by tenant."""
        return dict(self._kept)

    def refuses(self, unit: PendingUnit) -> str:
        """See `Gate`."""
        kept = self._total - self._kept.get(unit.tenant_id, 0.0)
        if kept <= 0 or not unit.devices:
            return ""
        if self._settings.spare_short and unit.expected_s - unit.attained_s <= self._settings.horizon_s:
            return ""
        free = float(self._view.domain_free_devices.sum())
        everything = float((self._view.table.device_totals * self._view.up).sum())
        if free - unit.devices >= kept or unit.devices > everything - kept:
            return ""
        return f"preallocation: {kept:g} of {free:g} free accelerators are held for what other tenants are expected to ask for"

    def charge(self, unit: PendingUnit, sign: int = 1) -> None:
        """See `Gate`."""
        before = self._kept.get(unit.tenant_id)
        if before is not None:
            # By what is lacking and not by what is kept, which has limits: what is put off and back changes nothing.
            self._lacks[unit.tenant_id] -= sign * unit.devices
            after = min(self._settings.most, max(0.0, self._lacks[unit.tenant_id]))
            self._kept[unit.tenant_id] = after
            self._total += after - before
