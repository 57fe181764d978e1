"""What would have to be otherwise: the least change along each axis that flips a decision, found by deciding again.

Steps:
1. The cluster is copied, without what the last cycle remembered. A unit that runs is taken off in the copy and decided about
   alone, on what else runs now; a unit that waits is decided about among all that wait. Where it would start so (as others
   keep reservations that they would not get again), nothing is said.
2. For a placed unit, for each of the best other places: the price of its domain (bisection), the weight of each score (from
   the shown parts, where the sums meet), and nodes that are down (enumeration).
3. For a waiting unit: fewer accelerators or ranks, other domains and models, the end of one job, a higher priority, a
   shorter estimate (enumeration and bisection).
4. Each change is made on a fresh copy and decided by the same core; what does not flip the decision is not returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import Placement, decide
from services.scheduler.core.explanation import Candidate, Explanation
from services.scheduler.core.pending import Pending
from services.scheduler.core.policy import Policy
from services.scheduler.core.preemption import best
from services.scheduler.core.state import UnitKey
from services.scheduler.core.table import Table, sum_by
from services.scheduler.core.waiting_unit import PendingUnit

_RIVALS = 3
_SHOWN = 3
"""Changes of one kind that are returned for one decision."""
_TRIED = 8
_LOOKED_AT = 300
"""Running units whose end is thought through for one decision."""
_STEPS = 16
_DECIMALS = 1000.0


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is otherwise; None and empty: as it is."""

    policy: Policy | None = None
    unit: PendingUnit | None = None
    price: tuple[str, float] | None = None
    up: str = ""
    ended: UnitKey | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where the unit goes, and whom it takes off."""

    place: str
    nodes: tuple[str, ...]
    preempted: tuple[UnitKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """With ``field`` at ``new`` instead of ``old`` the decision is ``outcome``, as was verified. ``bound``: "at most", "at least"
    (further the same way does not matter up to here) or "exactly"."""

    field: str
    old: Any
    new: Any
    bound: str
    outcome: Outcome
    sentence: str
    change: Change

    def as_json(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "field": self.field,
            "old": self.old,
            "new": self.new,
            "bound": self.bound,
            "place": self.outcome.place,
            "nodes": list(self.outcome.nodes[:_TRIED]),
            "preempted": [str(key) for key in self.outcome.preempted],
            "sentence": self.sentence,
        }


def outcome_with(cluster: Cluster, policy: Policy, key: UnitKey, change: Change, now_s: float) -> Outcome | None:
    """Where the unit goes when one thing is otherwise; None when it waits. The cluster is left as it is. KeyError when the
    unit neither waits nor runs."""
    return _Question(cluster, policy, key, now_s).ask(change)


def counterfactuals(cluster: Cluster, policy: Policy, key: UnitKey, now_s: float) -> tuple[Counterfactual, ...]:
    """The least changes that flip the decision about a unit that waits or runs; the cluster is left as it is. KeyError when
    the unit does neither."""
    question = _Question(cluster, policy, key, now_s)
    before = question.ask(Change())
    if question.waits:
        return () if before is not None else tuple(_for_waiting(question))
    return () if before is None else tuple(_for_placed(question, before))


class _Question:
    """One unit on one state; see step 1 of the module."""

    def __init__(self, cluster: Cluster, policy: Policy, key: UnitKey, now_s: float) -> None:
        self.policy, self.key, self.now_s = policy, key, now_s
        self.base = base = cluster.copy()
        base.use(policy)
        # Everything is decided anew, as each change is: what a change does is told from what deciding anew does.
        base.memory = None
        unit = base.pending.get(key)
        self.waits = unit is not None
        if unit is None:
            if key not in base.running:
                raise KeyError(str(key))
            running = base.release(key, now_s)
            assert running is not None
            unit = running.unit
            base.pending = Pending(base.pending.order)
            base.add(unit)
        self.unit = unit

    def ask(self, change: Change) -> Outcome | None:
        """Decide again with the change."""
        placement, preempted = self._decided(change, explain=False)
        if placement is None:
            return None
        domains = "+".join(dict.fromkeys(rank.domain_id for rank in placement.ranks))
        return Outcome(domains, tuple(dict.fromkeys(rank.node_id for rank in placement.ranks)), preempted)

    def explanation(self) -> Explanation:
        """Why it goes where it goes as things are."""
        placement, _ = self._decided(Change(), explain=True)
        assert placement is not None
        assert placement.explanation is not None
        return placement.explanation

    def _decided(self, change: Change, *, explain: bool) -> tuple[Placement | None, tuple[UnitKey, ...]]:
        cluster = self.base.copy()
        policy = change.policy or self.policy
        if change.unit is not None:
            cluster.add(change.unit)
        if change.ended is not None:
            cluster.release(change.ended, self.now_s)
        table = cluster.table
        if change.price is not None:
            prices = table.price.copy()
            prices[table.domain_ids.index(change.price[0])] = change.price[1]
            cluster.view.table = replace(table, price=prices)
            cluster.view.generation += 1
        if change.up:
            row = table.node_index[change.up]
            cluster.view.table = _with_up(table, row)
            cluster.view.set_up([row], True)
        decisions = decide(cluster, policy, self.now_s, explain=explain)
        placement = next((item for item in decisions.placed if item.key == self.key), None)
        return placement, tuple([item.key for item in decisions.preempted if item.beneficiary == self.key])


def _with_up(table: Table, row: int) -> Table:
    """The table of a fleet in which the node takes work: scores look at what domains have in all, too."""
    up, down, size = table.up.copy(), list(table.down), len(table.domain_ids)
    up[row], down[row] = True, ""
    return replace(
        table,
        up=up,
        down=tuple(down),
        domain_cpus=sum_by(table.node_domain, table.cpus * up, size),
        domain_devices=sum_by(table.node_domain, table.devices.sum(axis=1) * up, size),
    )


# -- a placed unit -----------------------------------------------------------------------------------------------------


def _for_placed(question: _Question, before: Outcome) -> Iterator[Counterfactual]:
    explanation = question.explanation()
    level, rivals, is_at = _rivals(explanation, before)
    prices = [item for rival in rivals for item in _cheaper(question, rival, is_at)] if level == "domain" else []
    yield from prices[:_SHOWN]
    for rival in rivals[:_SHOWN]:
        weights = list(_weighted_otherwise(question, explanation, level, rival, is_at))
        weights.sort(key=lambda item: abs(item.new - item.old) / max(item.old, 1e-3))
        yield from weights[:2]
    yield from _woken(question, before)


def _rivals(
    explanation: Explanation, before: Outcome
) -> tuple[str, list[Candidate], Callable[[Outcome | None, str], bool]]:
    """Other domains with room, best first; when there is none, other nodes of the domain, for a unit on one node."""
    domains = explanation.domains
    at = [domains.places.index(before.place)] if before.place in domains.places else []
    found = [item for item in domains.top(_RIVALS + 1, at) if item.ranks_that_fit >= domains.ranks]
    if len(found) > 1 or not explanation.nodes or len(before.nodes) > 1:
        return "domain", found[1:], lambda outcome, place: outcome is not None and outcome.place == place
    nodes = explanation.nodes[0]
    top = nodes.ranking.top(_RIVALS + 1, [place for place, _ in nodes.chosen])
    others = [item for item in top[1:] if item.ranks_that_fit >= nodes.ranking.ranks]
    return "node", others, lambda outcome, place: outcome is not None and outcome.nodes == (place,)


def _cheaper(
    question: _Question, rival: Candidate, is_at: Callable[[Outcome | None, str], bool]
) -> Iterator[Counterfactual]:
    table = question.base.table
    now = float(table.price[table.domain_ids.index(rival.place)])
    if not any(name == "price" and weight > 0 for name, weight in question.policy.scores) or not now > 1:
        return

    def at(price: float) -> Outcome | None:
        found = question.ask(Change(price=(rival.place, price)))
        return found if is_at(found, rival.place) else None

    found = _greatest(at, 1.0, now, whole=True)
    if found is None:
        return
    price, outcome = found
    yield Counterfactual(
        f"domains.{rival.place}.price_micro_units",
        now,
        price,
        "at most",
        outcome,
        f"It would go to {rival.place} if an accelerator-hour there cost {price:.0f} micro-units instead of {now:.0f}",
        Change(price=(rival.place, price)),
    )


def _weighted_otherwise(
    question: _Question,
    explanation: Explanation,
    level: str,
    rival: Candidate,
    is_at: Callable[[Outcome | None, str], bool],
) -> Iterator[Counterfactual]:
    ranking = explanation.domains if level == "domain" else explanation.nodes[0].ranking
    place = ranking.places.index(explanation.chosen) if level == "domain" else explanation.nodes[0].chosen[0][0]
    other = ranking.places.index(rival.place)
    behind = float(ranking.totals[place] - ranking.totals[other])
    weights = dict(question.policy.scores)
    for number, name in enumerate(ranking.plugins):
        gain = float(ranking.parts[number, other] - ranking.parts[number, place])
        if abs(gain) < 1e-9:
            continue
        meets = weights[name] + behind / gain
        steps = math.floor(meets * _DECIMALS) + 1 if gain > 0 else math.ceil(meets * _DECIMALS) - 1
        new = steps / _DECIMALS
        if new < 0 or new == weights[name]:
            continue
        scores = tuple((key, new if key == name else weight) for key, weight in question.policy.scores)
        change = Change(policy=replace(question.policy, scores=scores))
        outcome = question.ask(change)
        if not is_at(outcome, rival.place):
            continue
        assert outcome is not None
        yield Counterfactual(
            f"policy.scores.{name}",
            weights[name],
            new,
            "at least" if gain > 0 else "at most",
            outcome,
            f"It would go to {rival.place} if the weight of {name} were {new:g} instead of {weights[name]:g}",
            change,
        )


def _woken(question: _Question, before: Outcome) -> Iterator[Counterfactual]:
    """Nodes that are down and would be taken if they were not; one per domain is tried first."""
    view, table = question.base.view, question.base.table
    rows = np.flatnonzero(~view.up).tolist()
    first = {int(table.node_domain[row]): row for row in reversed(rows)}
    tried = dict.fromkeys([*first.values(), *rows])
    shown = 0
    for row in list(tried)[:_TRIED]:
        name = table.nodes[row].node_id
        outcome = question.ask(Change(up=name))
        if outcome is None or shown >= _SHOWN or name not in outcome.nodes:
            continue
        shown += 1
        where = outcome.place if outcome.place != before.place else name
        why = f" ({table.down[row]})" if table.down[row] else ""
        text = f"It would go to {where} if node {name} took work{why}"
        yield Counterfactual(f"nodes.{name}.up", False, True, "exactly", outcome, text, Change(up=name))


# -- a waiting unit ----------------------------------------------------------------------------------------------------


def _for_waiting(question: _Question) -> Iterator[Counterfactual]:
    yield from _smaller(question)
    yield from _wider(question)
    yield from _after_one(question)
    yield from _more_urgent(question)
    yield from _shorter(question)


def _starts(
    question: _Question, field: str, old: Any, new: Any, bound: str, said: str, change: Change
) -> Counterfactual:
    outcome = question.ask(change)
    assert outcome is not None
    whom = f", taking {', '.join(str(key) for key in outcome.preempted[:3])} off" if outcome.preempted else ""
    text = f"It would start now in {outcome.place}{whom} if {said}"
    return Counterfactual(field, old, new, bound, outcome, text, change)


def _asking(question: _Question, **fields: Any) -> Change:
    return Change(unit=replace(question.unit, demand=replace(question.unit.demand, **fields)))


def _smaller(question: _Question) -> Iterator[Counterfactual]:
    demand = question.unit.demand
    for name, said in (("accelerators", "accelerators per rank"), ("ranks", "ranks")):
        now = getattr(demand, name)
        if now <= 1:
            continue

        def with_(amount: float, name: str = name) -> Outcome | None:
            return question.ask(_asking(question, **{name: int(amount)}))

        found = _greatest(with_, 1.0, float(now), whole=True)
        if found is not None:
            new = int(found[0])
            text = f"it asked for {new} {said} instead of {now}"
            yield _starts(question, name, now, new, "at most", text, _asking(question, **{name: new}))


def _wider(question: _Question) -> Iterator[Counterfactual]:
    demand, table = question.unit.demand, question.base.table
    tries: list[tuple[str, Any, Any, str, dict[str, Any]]] = []
    for domain in table.domain_ids:
        fields: dict[str, Any] = {}
        if demand.domains and domain not in demand.domains:
            fields["domains"] = demand.domains | {domain}
        if domain in demand.excluded_domains:
            fields["excluded_domains"] = demand.excluded_domains - {domain}
        for name, new in fields.items():
            old = sorted(getattr(demand, name))
            if len(fields) == 1:
                tries.append((name, old, sorted(new), f"domain {domain} were allowed", fields))
    if demand.accelerator_types:
        for model in dict.fromkeys(item.model for item in table.models if not item.matches(demand.accelerator_types)):
            types = (*demand.accelerator_types, model)
            said = f"it accepted {model} too"
            tries.append(
                ("accelerator_types", list(demand.accelerator_types), list(types), said, {"accelerator_types": types})
            )
    if demand.ranks > 1 and not demand.cross_domain:
        tries.append(("cross_domain", False, True, "its ranks might span domains", {"cross_domain": True}))
    if demand.topology_required:
        said = f"its ranks need not share a {demand.topology}"
        tries.append(("topology_required", True, False, said, {"topology_required": False}))
    shown: dict[str, int] = {}
    for name, old, new, said, fields in tries[: 2 * _TRIED]:
        change = _asking(question, **fields)
        if shown.get(name, 0) < _SHOWN and question.ask(change) is not None:
            shown[name] = shown.get(name, 0) + 1
            yield _starts(question, name, old, new, "exactly", said, change)


def _after_one(question: _Question) -> Iterator[Counterfactual]:
    """The running units whose end would let it start, those that are thought to end first."""
    shown = 0
    for key in _making_room(question):
        change = Change(ended=key)
        if question.ask(change) is None:
            continue
        tenant = question.base.running[key].unit.tenant_id
        if key.is_unit:
            yield _starts(question, f"units.{key}", "runs", "ended", "exactly", f"{key} ({tenant}) ended", change)
        else:
            said = f"the run {key.job_id} ({tenant}), which is told to stop, had ended"
            yield _starts(question, f"runs.{key.job_id}", "stops", "ended", "exactly", said, change)
        shown += 1
        if shown == _SHOWN:
            return


def _making_room(question: _Question) -> list[UnitKey]:
    """Running units without which there would be room; where there is room already (a limit), those of its tenant."""
    cluster = question.base.copy()
    group = cluster.candidates(question.unit.demand)
    running = sorted(cluster.running.values(), key=lambda item: (item.end_s(question.now_s, "expected"), item.unit.key))
    if best(group) is not None:
        mine = [item.unit.key for item in running if item.unit.tenant_id == question.unit.tenant_id]
        others = [item.unit.key for item in running if item.unit.tenant_id != question.unit.tenant_id]
        return mine[:_TRIED] + others[: _TRIED // 2]
    allowed = np.logical_or.reduce([item.allowed for item in group])
    near = [item for item in running if any(allowed[row] for row, _ in item.rows)]
    found = []
    view = cluster.view
    view.begin()
    for item in near[:_LOOKED_AT]:
        for row, devices in item.rows:
            view.give(row, item.unit.demand, devices)
        if best(group) is not None:
            found.append(item.unit.key)
        for row, devices in item.rows:
            view.occupy(row, item.unit.demand, devices)
        if len(found) == _TRIED:
            break
    view.rollback()
    return found


def _more_urgent(question: _Question) -> Iterator[Counterfactual]:
    base, own = question.base, question.unit.priority
    known: Iterable[int] = {unit.priority for unit in base.pending} | {
        item.unit.priority for item in base.running.values()
    }
    # With the same priority the older goes first.
    least = {value + more for value in known for more in (0, 1)}
    for priority in sorted(value for value in least if value > own)[: 2 * _TRIED]:
        change = Change(unit=replace(question.unit, priority=priority))
        if question.ask(change) is not None:
            said = f"its priority were {priority} instead of {own}"
            yield _starts(question, "priority", own, priority, "at least", said, change)
            return


def _shorter(question: _Question) -> Iterator[Counterfactual]:
    policy, unit = question.policy, question.unit
    if policy.discipline not in {"easy", "conservative"}:
        return
    use_limit = policy.estimate == "limit"
    now = unit.limit_s if use_limit else unit.expected_s
    if now == math.inf:
        now = unit.expected_s if use_limit else unit.limit_s

    def with_(left_s: float) -> Change:
        whole_s = unit.attained_s + left_s
        return Change(
            unit=replace(unit, expected_s=whole_s, limit_s=whole_s, low_s=min(unit.low_s, whole_s), high_s=whole_s)
        )

    left = 30 * 86_400.0 if now == math.inf else max(now - unit.attained_s, 1.0)
    found = _greatest(lambda left_s: question.ask(with_(left_s)), 1.0, left, whole=True)
    if found is not None:
        name = "limit_s" if use_limit else "expected_s"
        new = unit.attained_s + found[0]
        old = None if now == math.inf else now
        said = f"it were thought to run at most {found[0]:.0f} s more, so that it ends before what is reserved"
        yield _starts(question, name, old, new, "at most", said, with_(found[0]))


def _greatest(
    ask: Callable[[float], Outcome | None], least: float, now: float, *, whole: bool
) -> tuple[float, Outcome] | None:
    """The greatest value below ``now`` (a bound that does not do) with an outcome, by bisection between powers and then
    evenly; None when not even ``least`` has one. What is returned was asked."""
    found = ask(least)
    if found is None:
        return None
    low, high = least, now
    for _ in range(_STEPS):
        if high - low <= (1.0 if whole else 1e-3):
            break
        middle = math.sqrt(low * high) if low > 0 and high > 4 * low else (low + high) / 2
        middle = float(math.floor(middle)) if whole else middle
        if middle <= low:
            middle = low + 1.0
        if middle >= high:
            break
        answer = ask(middle)
        if answer is None:
            high = middle
        else:
            low, found = middle, answer
    return low, found
