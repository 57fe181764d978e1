"""What the network promised and what became of it, kept with a book: share contracts of domains, service levels of tenants.

The live service and replay do the same steps, so that decisions that rest on the accounts are made again alike:
1. `begin` reads the accounts as they were saved and catches up with what ran since.
2. Before a draft is merged, time passes until it (`pass_time`), and what it does to units is observed (`observe`).
3. `use` takes another policy's promises over; what is promised as before keeps its account.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.contracts.account import Held, ShareAccount, restored
from services.scheduler.core.contracts.contract import tell
from services.scheduler.core.contracts.plan import SharePlan, plan_of
from services.scheduler.core.contracts.service_levels import Changes, Observation, ServiceLevels, seen
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.options import refuse_unknown
from services.scheduler.core.policy import Policy
from services.scheduler.core.records import Records
from services.scheduler.core.selection.objectives_sla import SLA, objectives_of
from services.scheduler.core.selection.settings import list_of, mapping_of
from services.scheduler.core.sla_values import Objective

SERVICE_LEVELS = "service_levels"
"""The options of a policy that promise service levels; they belong to no plugin."""
CONTRACT = "share_contract"


def service_levels_of(policy: Policy) -> dict[str, tuple[Objective, ...]]:
    """What a policy promises by tenant; empty when it promises nothing. PolicyError names the wrong option."""
    options = policy.options_of(SERVICE_LEVELS)
    where = f"options.{SERVICE_LEVELS}"
    refuse_unknown(SERVICE_LEVELS, options, ("objectives",))
    found = objectives_of(f"{where}.objectives", options.get("objectives", ()))
    for tenant, items in found.items():
        for place, item in enumerate(items):
            if item in items[:place]:
                raise PolicyError(f"{where}.objectives.{tenant}[{place}]: is promised twice")
    return found


def parents_of(policy: Policy) -> dict[str, str]:
    """The queue above each queue of a policy's quotas."""
    specs = policy.options_of("quota").get("queues", ())
    rows = [mapping_of("options.quota.queues", item) for item in list_of("options.quota.queues", specs)]
    return {str(row["name"]): str(row.get("parent", "")) for row in rows}


@dataclass(frozen=True, slots=True)
class Saved:
    """The accounts as the database has them: ``state`` as `Promises.state` gave it, and what came after it: observations, and
    units that ended. ``number`` is that of the last observation that was ever noted."""

    state: Mapping[str, Any]
    number: int = 0
    observations: Sequence[Observation] = ()
    ended: Sequence[Held] = ()

    def as_json(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "state": dict(self.state),
            "number": self.number,
            "observations": [item.as_row() for item in self.observations],
            "ended": [
                [item.began_s, item.ended_s, [list(part) for part in item.parts], item.pieces] for item in self.ended
            ],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Saved:
        """What `as_json` gave."""
        return cls(
            body["state"],
            body["number"],
            [Observation.from_row(row) for row in body["observations"]],
            [
                Held(began_s, ended_s, tuple((name, size) for name, size in parts), pieces)
                for began_s, ended_s, parts, pieces in body["ended"]
            ],
        )


class Promises:
    """See the module. Nothing is kept before `begin`: a simulation has accounts of its own."""

    def __init__(self, book: Records, cluster: Cluster) -> None:
        self._book, self._cluster = book, cluster
        self._begun = False
        self._number = 0
        self.shares: ShareAccount | None = None
        self.levels: ServiceLevels | None = None

    def begin(self, saved: Saved, now_s: float) -> None:
        """Begin with the policy of the book's cluster and what was saved."""
        self._begun, self._number = True, saved.number
        cluster, policy = self._cluster, self._cluster.policy
        plan = plan_of(policy)
        if plan is not None:
            table = cluster.table
            up = dict(zip(table.domain_ids, table.domain_devices.tolist(), strict=True))
            known = saved.state.get("shares", {})
            running = list(cluster.running.values())
            self._install(plan, restored(plan, known, up, running, saved.ended if known else (), now_s))
        promised = service_levels_of(policy)
        if promised:
            from_s = min([now_s, *(item.at_s for item in saved.observations[:1])])
            self.levels = ServiceLevels(promised, parents_of(policy), from_s)
            if "levels" in saved.state:
                self.levels.load(saved.state["levels"])
            self.levels.observe(saved.observations)
            self.levels.number = saved.number
            self.levels.align(self._book, now_s)
            cluster.view.state(SLA, self.levels.accounts)

    @property
    def number(self) -> int:
        """Of the last observation that was taken in."""
        return self.levels.number if self.levels is not None else self._number

    def use(self, policy: Policy, now_s: float) -> None:
        """Another policy applies from now on."""
        if not self._begun:
            return
        self.pass_time(now_s)
        cluster, plan = self._cluster, plan_of(policy)
        if plan is None:
            self._uninstall()
        elif self.shares is None:
            table = cluster.table
            self._install(
                plan, ShareAccount(plan, table.domain_ids, table.domain_devices, now_s, pieces=True, judge=True)
            )
        elif self.shares.plan != plan:
            self._install(plan, self.shares.under(plan))
        self._promise(policy, now_s)

    def pass_time(self, now_s: float) -> None:
        """It is ``now_s``; a time that is not known, or earlier than before, counts as now."""
        if self.shares is not None and not math.isnan(now_s):
            tell(self._cluster, self.shares, max(now_s, self.shares.now_s))

    def seen(self, draft: Changes) -> list[Observation]:
        """What a draft does to units to whose tenants something was promised."""
        return seen(draft, self.levels.counts) if self.levels is not None else []

    def observe(self, observations: Sequence[Observation]) -> None:
        """Take in what `seen` found in the draft that is merged now."""
        if self.levels is not None:
            self.levels.observe(observations)

    def state(self) -> dict[str, Any]:
        """The accounts, as JSON types."""
        found: dict[str, Any] = {"number": self.number}
        if self.shares is not None:
            found["shares"] = self.shares.state()
        if self.levels is not None:
            found["levels"] = self.levels.state()
        return found

    def _install(self, plan: SharePlan, account: ShareAccount) -> None:
        cluster = self._cluster
        self.shares = cluster.watch(CONTRACT, plan, lambda: account)
        tell(cluster, account, account.now_s)

    def _uninstall(self) -> None:
        if self.shares is not None:
            self.shares = None
            cluster = self._cluster
            cluster.unwatch(CONTRACT)
            for name in ("share_gap", "share_contract_free"):
                cluster.view.facts.pop(name, None)
            cluster.view.state(CONTRACT, None)

    def _promise(self, policy: Policy, now_s: float) -> None:
        promised, parents = service_levels_of(policy), parents_of(policy)
        before, view = self.levels, self._cluster.view
        self._number = self.number
        if not promised:
            self.levels = None
            view.state(SLA, None)
        elif before is None or (before.accounts.objectives, before.parents) != (promised, parents):
            self.levels = ServiceLevels(promised, parents, now_s)
            if before is not None:
                self.levels.load(before.state())
            self.levels.number = self._number
            self.levels.align(self._book, now_s)
            view.state(SLA, self.levels.accounts)
