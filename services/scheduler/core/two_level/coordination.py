"""One cycle of both levels, in one process: rounds of dispatching and answering until nothing moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.scheduler.core.pending import Pending
from services.scheduler.core.stages import stages_of
from services.scheduler.core.state import PlacedRank, UnitKey
from services.scheduler.core.two_level.messages import Answer, Assignment, Constraints, IntraDomain
from services.scheduler.core.two_level.network import InterDomain
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit

MOST_ROUNDS = 8
"""How often the domains are asked in a cycle before the network goes by estimates."""


@dataclass(slots=True)
class Coordinated:
    """What a cycle of both levels decided. ``placed`` gives all ranks of a unit, ``reasons`` what domains said of those that
    they refused; ``feedback`` counts units that came back, ``rounds`` how often domains were asked."""

    placed: dict[UnitKey, tuple[PlacedRank, ...]] = field(default_factory=dict)
    handed: dict[UnitKey, list[tuple[str, Constraints]]] = field(default_factory=dict)
    waiting: list[UnitKey] = field(default_factory=list)
    reasons: dict[UnitKey, list[str]] = field(default_factory=dict)
    feedback: int = 0
    rounds: int = 0


def coordinate(
    inter: InterDomain,
    pending: Pending,
    domains: Mapping[str, IntraDomain],
    context: OrderContext,
    now_s: float,
    *,
    most_rounds: int = MOST_ROUNDS,
) -> Coordinated:
    """One cycle; see the module. Units that were placed or handed over are taken out of ``pending``."""
    done = Coordinated()
    excluded: dict[UnitKey, frozenset[str]] = {}
    twice: set[UnitKey] = set()
    gates = [limit.open(context) for limit in stages_of(inter.policy).limits]
    if inter.know(pending):
        for name in domains:
            domains[name].begin((), inter.classes, now_s)
        for name in domains:
            inter.update(domains[name].answer().summary)
    while True:
        certain = done.rounds < most_rounds - 1
        found = inter.dispatch(pending, context, excluded=excluded, refused=twice, gates=gates, certain=certain)
        done.waiting = [unit.key for unit in found.waiting]
        if not found.assigned:
            return done
        done.rounds += 1
        refused = _round(inter, pending, domains, found.assigned, now_s, done)
        for unit, names in refused.items():
            if unit.key in excluded:
                twice.add(unit.key)
            else:
                done.feedback += 1
            excluded[unit.key] = excluded.get(unit.key, frozenset()) | names
            # It holds nothing: its tenant gets its turn back.
            context.shares.charge(unit.tenant_id, unit.demand, -1)
            for gate in gates:
                gate.charge(unit, -1)
        done.waiting += [unit.key for unit in refused]
        if not found.stopped and not refused:
            return done


@dataclass(slots=True)
class _Heard:
    """The answers of one round, by unit and domain."""

    ranks: dict[tuple[UnitKey, str], tuple[PlacedRank, ...]] = field(default_factory=dict)
    handed: dict[tuple[UnitKey, str], Constraints] = field(default_factory=dict)
    refused: dict[UnitKey, dict[str, str]] = field(default_factory=dict)

    def hear(self, answer: Answer) -> None:
        name = answer.domain_id
        self.ranks.update({(key, name): ranks for key, ranks in answer.placed})
        self.handed.update({(key, name): constraints for key, constraints in answer.handed})
        for key, reason in answer.refused:
            self.refused.setdefault(key, {})[name] = reason


def _round(
    inter: InterDomain,
    pending: Pending,
    domains: Mapping[str, IntraDomain],
    assigned: Sequence[Assignment],
    now_s: float,
    done: Coordinated,
) -> dict[PendingUnit, frozenset[str]]:
    """Let the domains place their parts; returns the units that have no place, with the domains that refused them."""
    by_domain: dict[str, list[Assignment]] = {}
    parts: dict[UnitKey, list[Assignment]] = {}
    for item in assigned:
        by_domain.setdefault(item.domain_id, []).append(item)
        parts.setdefault(item.unit.key, []).append(item)
    classes = inter.classes
    for name, items in by_domain.items():
        domains[name].begin(items, classes, now_s)
    heard = _Heard()
    for name in by_domain:
        answer = domains[name].answer()
        inter.update(answer.summary)
        heard.hear(answer)
    back: dict[str, list[UnitKey]] = {}
    refused: dict[PendingUnit, frozenset[str]] = {}
    for key, items in parts.items():
        reasons = heard.refused.get(key)
        if reasons is None:
            pending.remove(key)
            _record(done, key, items, heard)
            continue
        unit = pending.get(key)
        assert unit is not None
        refused[unit] = frozenset(reasons)
        done.reasons.setdefault(key, []).extend(f"{name}: {reason}" for name, reason in reasons.items())
        for item in items:
            if item.domain_id not in reasons:
                back.setdefault(item.domain_id, []).append(key)
    for name, keys in back.items():
        domains[name].give_back(keys, now_s)
        domains[name].begin([], classes, now_s)
        inter.update(domains[name].answer().summary)
    return refused


def _record(done: Coordinated, key: UnitKey, items: Sequence[Assignment], heard: _Heard) -> None:
    """Put the parts of a unit together."""
    ranks: list[PlacedRank] = []
    for item in items:
        constraints = heard.handed.get((key, item.domain_id))
        if constraints is not None:
            done.handed.setdefault(key, []).append((item.domain_id, constraints))
        here = heard.ranks.get((key, item.domain_id), ())
        ranks.extend(replace(rank, rank=item.first_rank + rank.rank) for rank in here)
    if ranks:
        done.placed[key] = tuple(ranks)
