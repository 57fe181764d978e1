"""Between domains: the network's side chooses a domain for each unit from what the domains told of themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from services.scheduler.core.admission import Gate
from services.scheduler.core.choosing import Choice
from services.scheduler.core.cycle_order import Selection
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.explaining.explanation import Candidate, Explanation, Ranking, best_of
from services.scheduler.core.fleet import Fleet, Node
from services.scheduler.core.pending import Pending
from services.scheduler.core.placement import would_do
from services.scheduler.core.plugins import plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.scores import SCORES, DomainScore, SetScore
from services.scheduler.core.stages import stages_of
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.tenants_objectives import state_tenant
from services.scheduler.core.two_level.messages import Assignment, DomainSummary
from services.scheduler.core.two_level.rooms import Room, Rooms, whole
from services.scheduler.core.two_level.tally import apart
from services.scheduler.core.view import View
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit

_DOMAIN_FILTERS = ("domain", "security")


@dataclass(slots=True)
class Dispatch:
    """What one look at the summaries gave: parts in order, and units without room. ``stopped``: not all were looked at.
    ``explanations`` say why a unit goes to its domains, where that was asked for."""

    assigned: list[Assignment] = field(default_factory=list)
    waiting: list[PendingUnit] = field(default_factory=list)
    stopped: bool = False
    explanations: dict[UnitKey, Explanation] = field(default_factory=dict)


class InterDomain:
    """The network's side: domains as single nodes, with the room that their summaries told.

    ``fleet`` gives the facts of domains (prices, links); its nodes are not looked at. ``facts`` are those of `View.facts`.
    """

    def __init__(
        self,
        fleet: Fleet,
        summaries: Sequence[DomainSummary],
        policy: Policy,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        check_policy(policy)
        self.policy = policy
        scored = [pair for pair in policy.scores if isinstance(SCORES.get(pair[0]), DomainScore | SetScore)]
        self._coarse = replace(
            policy,
            filters=tuple(name for name in policy.filters if name in _DOMAIN_FILTERS),
            scores=tuple(scored),
            domain_node_scores=(),
        )
        self._fleet = fleet
        self._summaries = {item.domain_id: item for item in summaries}
        self.view = self._build(facts or {})
        self._index = {name: index for index, name in enumerate(self.view.table.domain_ids)}
        self._per_tenant = any(
            getattr(score, "per_tenant", False) for score, _ in plugins_of(self._coarse).scores.domain
        )
        self._rooms = Rooms(self.view, self._summaries, policy, self._coarse)

    @property
    def summaries(self) -> Mapping[str, DomainSummary]:
        """The newest summary of each domain."""
        return self._summaries

    def update(self, summary: DomainSummary) -> bool:
        """A domain told about itself; an older summary than the one that is known is left out (False)."""
        known = self._summaries.get(summary.domain_id)
        if known is None:
            raise PolicyError(f"the domain {summary.domain_id!r} is not known to the dispatcher")
        if summary.sequence < known.sequence:
            return False
        self._summaries[summary.domain_id] = summary
        self._rooms.read(summary)
        return True

    def dispatch(
        self,
        pending: Pending,
        context: OrderContext,
        *,
        excluded: Mapping[UnitKey, frozenset[str]] | None = None,
        refused: Collection[UnitKey] = (),
        gates: Sequence[Gate] = (),
        certain: bool = False,
        explain: bool = False,
    ) -> Dispatch:
        """A domain, or several with a part each, for each waiting unit that seems to have room. ``excluded`` names domains
        where a unit may not go, ``refused`` units that are not asked about. With ``certain`` it stops, having given
        something away, before a unit of which the summaries do not tell whether its best domain still has room."""
        excluded = excluded or {}
        self.know(pending)
        selection = Selection(pending, context)
        found = Dispatch()
        while (unit := selection.pop()) is not None:
            if unit.key in refused:
                found.waiting.append(unit)
                continue
            if any(gate.refuses(unit) for gate in gates):
                found.waiting += [unit, *selection.drop()]
                continue
            kept = found.explanations if explain else None
            parts = self._assign(unit, excluded.get(unit.key, frozenset()), certain and bool(found.assigned), kept)
            if parts is None:
                found.stopped = True
                return found
            if parts:
                found.assigned += parts
                selection.charge(unit)
                for gate in gates:
                    gate.charge(unit)
                continue
            found.waiting.append(unit)
            if self.policy.discipline == "strict":
                partition = unit.demand.domains
                found.waiting += selection.drop_where(lambda lane, wanted=partition: lane.demand.domains == wanted)  # type: ignore[misc]
            elif unit.key not in excluded:
                found.waiting += selection.drop()
        return found

    def know(self, pending: Pending) -> bool:
        """Keep room for the classes that wait, before anything is given away in this round. True when some domain has
        not told of one of them."""
        return self._rooms.keep(demand for _, _, demand in pending.lanes)

    @property
    def classes(self) -> tuple[Demand, ...]:
        """The classes that domains are to tell about: those that wait, and those that did lately."""
        return self._rooms.classes

    # -- the coarse view ---------------------------------------------------------------------------------------------

    def _build(self, facts: Mapping[str, Any]) -> View:
        nodes = {name: Node(name, name, item.total_cpus, 2**62) for name, item in self._summaries.items()}
        domains = {name: self._fleet.domains[name] for name in nodes if name in self._fleet.domains}
        table = table_of(Fleet(domains, nodes, expected_demand=self._fleet.expected_demand))
        models = tuple(dict.fromkeys(model for item in self._summaries.values() for model in item.total_devices))
        devices = np.array(
            [[self._summaries[name].total_devices.get(model, 0) for model in models] for name in table.domain_ids],
            dtype=np.int64,
        ).reshape(len(table.domain_ids), len(models))
        totals = devices.sum(axis=1)
        table = replace(
            table, models=models, devices=devices, device_totals=totals, domain_devices=totals.astype(np.float64)
        )
        view = View(table)
        view.facts.update(facts)
        gaps = np.array([self._summaries[name].share_gap for name in table.domain_ids])
        if not np.isnan(gaps).all():
            view.facts.setdefault("share_gap", gaps)
        return view

    # -- choosing ----------------------------------------------------------------------------------------------------

    def _assign(
        self,
        unit: PendingUnit,
        excluded: frozenset[str],
        certain: bool,
        explanations: dict[UnitKey, Explanation] | None,
    ) -> list[Assignment] | None:
        """The parts of a unit; none when there is no room; None when that is not ``certain``."""
        if self._per_tenant:
            state_tenant(self.view, unit.tenant_id)
        found: list[tuple[Room, Choice]] = []
        rankings: list[Ranking] = []
        shut = [self._index[name] for name in excluded if name in self._index]
        for room in self._rooms.of(unit.demand):
            # By what fits at most the choice may be too good, but nothing is overlooked.
            fits = self._rooms.fits(unit.demand, room, most=certain)
            fits[shut] = 0
            room.candidates.refresh()
            choice = room.candidates.choose_of(fits, fits)
            if choice is not None:
                found.append((room, choice))
            if explanations is not None:
                rankings.append(replace(room.candidates.domain_ranking(), fits=fits))
        if not found:
            return []
        room, choice = max(found, key=lambda pair: (-len(pair[1].domains), pair[1].score))
        if certain and not self._is_certain(unit.demand, room, choice):
            return None
        if explanations is not None:
            explanations[unit.key] = self._explanation(room, choice, rankings)
        names = self.view.table.domain_ids
        parts, first = [], 0
        for row, count in choice.rows:
            demand = unit.demand
            if len(choice.rows) > 1:
                demand = replace(demand, ranks=count, cross_domain=False, accelerator_types=self._types(room, demand))
            part = unit if demand is unit.demand else replace(unit, demand=demand)
            parts.append(Assignment(part, names[row], first, whole=len(choice.rows) == 1))
            self._rooms.take(unit.demand, room, row, count)
            first += count
        return parts

    def explain(self, demand: Demand) -> Explanation:
        """How the domains stand for a class now, by what they told; `Explanation.rejections` name domains, not nodes."""
        rooms = self._rooms.of(demand)
        rankings = []
        for room in rooms:
            room.candidates.refresh()
            fits = self._rooms.fits(demand, room, most=False)
            rankings.append(replace(room.candidates.domain_ranking(), fits=fits))
        chosen = would_do([room.candidates for room in rooms])
        return replace(chosen.explain_waiting(), domains=best_of(rankings))

    def _explanation(self, room: Room, choice: Choice, rankings: Sequence[Ranking]) -> Explanation:
        """Why a unit goes to these domains, whatever nodes they choose."""
        domains = best_of(rankings)
        sets: tuple[Candidate, ...] = ()
        if len(choice.domains) > 1:
            fits = int(domains.fits[list(choice.domains)].sum())
            place = "+".join(self.view.table.domain_ids[row] for row in choice.domains)
            sets = (Candidate(place, choice.score, fits, ()),)
        return replace(room.candidates.explain(choice), domains=domains, nodes=(), sets=sets)

    def _is_certain(self, demand: Demand, room: Room, choice: Choice) -> bool:
        """Whether the choice stands wherever the room lies between its bounds: that of other domains can only be less, so
        one domain stands when its own room does; a split depends on all of them."""
        if len(choice.domains) == 1:
            return bool(room.least[choice.domains[0]] >= demand.ranks)
        return bool((whole(room.least) == whole(room.most)).all())

    def _types(self, room: Room, demand: Demand) -> tuple[str, ...]:
        """Parts of one gang use one model: each is told which."""
        if not apart(demand, self.policy) or len(room.columns) != 1:
            return demand.accelerator_types
        return (self.view.table.models[int(room.columns[0])].model,)


def check_policy(policy: Policy) -> None:
    """PolicyError when a policy needs all nodes at once, which two levels do not look at."""
    if policy.discipline not in {"greedy", "strict"}:
        raise PolicyError(
            f"discipline: {policy.discipline!r} looks at all nodes at once; two levels take greedy or strict"
        )
    for name in ("preemptions", "planner"):
        if getattr(policy, name):
            raise PolicyError(f"{name}: looks at all nodes at once, which two levels do not")
    plugins_of(policy)


def dispatch(
    fleet: Fleet,
    summaries: Sequence[DomainSummary],
    pending: Pending,
    policy: Policy,
    context: OrderContext,
    facts: Mapping[str, Any] | None = None,
) -> Dispatch:
    """One dispatch from summaries alone; see `InterDomain.dispatch`. ``fleet`` gives the facts of domains, not nodes."""
    gates = [limit.open(context) for limit in stages_of(policy).limits]
    return InterDomain(fleet, summaries, policy, facts).dispatch(pending, context, gates=gates)
