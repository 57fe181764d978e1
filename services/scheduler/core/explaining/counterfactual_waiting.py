"""The least changes with which a waiting unit would start; for counterfactual.py."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from services.scheduler.core.errors import GivenUpError
from services.scheduler.core.explaining.decided_again import (
    SHOWN,
    TRIED,
    Change,
    Counterfactual,
    Outcome,
    Question,
    Remedy,
    greatest,
)
from services.scheduler.core.placement import best
from services.scheduler.core.state import Demand, UnitKey

_LOOKED_AT = 300
"""Running units whose end is thought through for one decision."""
_MIB = 1 << 20
_BITS = 14
"""To how many digits memory is looked for."""
_RESOURCE = "user_resources."


def for_waiting(question: Question) -> Iterator[Remedy]:
    """Step 3 of counterfactual.py."""
    amounts = list(_amounts(question.unit.demand))
    for number, amount in enumerate(amounts, 1):
        yield Remedy((amount.name,), 0.4 * number / len(amounts), partial(_smaller, question, amount))
    tries = _wider(question)
    names = tuple(dict.fromkeys(tried.field for tried in tries))
    yield Remedy(names, 0.55, partial(_widened, question, tries))
    yield Remedy(("units.",), 0.7, partial(_after_one, question))
    yield Remedy(("priority",), 0.85, partial(_more_urgent, question))
    if question.policy.discipline in {"easy", "conservative"}:
        name = "limit_s" if question.policy.estimate == "limit" else "expected_s"
        yield Remedy((name,), 1.0, partial(_shorter, question, name))


def _starts(field: str, old: Any, new: Any, bound: str, said: str, change: Change, outcome: Outcome) -> Counterfactual:
    whom = f", taking {', '.join(str(key) for key in outcome.preempted[:3])} off" if outcome.preempted else ""
    text = f"It would start now in {outcome.place}{whom} if {said}"
    return Counterfactual(field, old, new, bound, outcome, text, change)


def _asking(question: Question, **fields: Any) -> Change:
    return Change(unit=replace(question.unit, demand=replace(question.unit.demand, **fields)))


@dataclass(frozen=True, slots=True)
class _Amount:
    """What there may be less of: in words, how much there is, the least that is tried, and what an amount of 1 stands for."""

    name: str
    said: str
    now: float
    least: float
    unit: int = 1


def _smaller(question: Question, amount: _Amount) -> Iterator[Counterfactual]:
    demand, name = question.unit.demand, amount.name

    def less(value: float) -> Change:
        return _asking(question, **_with(demand, name, int(value) * amount.unit))

    found = greatest(
        lambda value: question.ask(less(value)), amount.least, amount.now, whole=amount.now == int(amount.now)
    )
    if found is None:
        return
    change = less(found.value)
    assert change.unit is not None
    old, new = _of(demand, name), _of(change.unit.demand, name)
    text = f"it asked for {_shown(new)} {amount.said} instead of {_shown(old)}"
    yield _starts(name, old, new, "at most", text, change, found.outcome)
    if found.over:
        raise GivenUpError


def _amounts(demand: Demand) -> Iterator[_Amount]:
    for name, said in (("accelerators", "accelerators per rank"), ("ranks", "ranks"), ("cpus", "cpus per rank")):
        if getattr(demand, name) > 1:
            yield _Amount(name, said, float(getattr(demand, name)), 1.0)
    block = max(_MIB, 1 << max(demand.memory_bytes.bit_length() - _BITS, 0))
    if demand.memory_bytes > block:
        blocks = float(math.ceil(demand.memory_bytes / block))
        yield _Amount("memory_bytes", "bytes of memory per rank", blocks, 1.0, block)
    for name, held in demand.resources:
        if held > 0:
            yield _Amount(f"{_RESOURCE}{name}", f"{name} per rank", held, 0.0)


def _of(demand: Demand, name: str) -> float:
    found: float = (
        dict(demand.resources).get(name.removeprefix(_RESOURCE), 0.0)
        if name.startswith(_RESOURCE)
        else getattr(demand, name)
    )
    return int(found) if found == int(found) else found


def _with(demand: Demand, name: str, amount: float) -> dict[str, Any]:
    """The fields of a demand in which there is so much of it."""
    if not name.startswith(_RESOURCE):
        return {name: amount}
    resource = name.removeprefix(_RESOURCE)
    return {"resources": tuple((each, amount if each == resource else held) for each, held in demand.resources)}


def _shown(amount: float) -> str:
    return str(amount) if isinstance(amount, int) else f"{amount:g}"


@dataclass(frozen=True, slots=True)
class _Try:
    """A field of the demand that would allow more; ``said`` in words, ``fields`` are those of the demand in which it does."""

    field: str
    old: Any
    new: Any
    said: str
    fields: dict[str, Any]


def _wider(question: Question) -> list[_Try]:
    demand, table = question.unit.demand, question.base.table
    tries: list[_Try] = []
    for domain in table.domain_ids:
        fields: dict[str, Any] = {}
        if demand.domains and domain not in demand.domains:
            fields["domains"] = demand.domains | {domain}
        if domain in demand.excluded_domains:
            fields["excluded_domains"] = demand.excluded_domains - {domain}
        for name, new in fields.items():
            old = sorted(getattr(demand, name))
            if len(fields) == 1:
                tries.append(_Try(name, old, sorted(new), f"domain {domain} were allowed", fields))
    if demand.accelerator_types:
        for model in dict.fromkeys(item.model for item in table.models if not item.matches(demand.accelerator_types)):
            types = (*demand.accelerator_types, model)
            old, said = list(demand.accelerator_types), f"it accepted {model} too"
            tries.append(_Try("accelerator_types", old, list(types), said, {"accelerator_types": types}))
    if demand.ranks > 1 and not demand.cross_domain:
        tries.append(_Try("cross_domain", False, True, "its ranks might span domains", {"cross_domain": True}))
    if demand.topology_required:
        said = f"its ranks need not share a {demand.topology}"
        tries.append(_Try("topology_required", True, False, said, {"topology_required": False}))
    return tries[: 2 * TRIED]


def _widened(question: Question, tries: Iterable[_Try]) -> Iterator[Counterfactual]:
    shown: dict[str, int] = {}
    for item in tries:
        change = _asking(question, **item.fields)
        if shown.get(item.field, 0) < SHOWN and (outcome := question.ask(change)) is not None:
            shown[item.field] = shown.get(item.field, 0) + 1
            yield _starts(item.field, item.old, item.new, "exactly", item.said, change, outcome)


def _after_one(question: Question) -> Iterator[Counterfactual]:
    """The running units whose end would let it start, those that are thought to end first."""
    shown = 0
    for key in _making_room(question):
        change = Change(ended=key)
        outcome = question.ask(change)
        if outcome is None:
            continue
        tenant = question.base.running[key].unit.tenant_id
        if key.is_unit:
            yield _starts(f"units.{key}", "runs", "ended", "exactly", f"{key} ({tenant}) ended", change, outcome)
        else:
            said = f"the run {key.job_id} ({tenant}), which is told to stop, had ended"
            yield _starts(f"runs.{key.job_id}", "stops", "ended", "exactly", said, change, outcome)
        shown += 1
        if shown == SHOWN:
            return


def _making_room(question: Question) -> list[UnitKey]:
    """Running units without which there would be room; where there is room already (a limit), those of its tenant."""
    cluster = question.base.copy()
    group = cluster.candidates(question.unit.demand)
    running = sorted(cluster.running.values(), key=lambda item: (item.end_s(question.now_s, "expected"), item.unit.key))
    if best(group) is not None:
        mine = [item.unit.key for item in running if item.unit.tenant_id == question.unit.tenant_id]
        others = [item.unit.key for item in running if item.unit.tenant_id != question.unit.tenant_id]
        return mine[:TRIED] + others[: TRIED // 2]
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
        if len(found) == TRIED:
            break
    view.rollback()
    return found


def _more_urgent(question: Question) -> Iterator[Counterfactual]:
    base, own = question.base, question.unit.priority
    known: Iterable[int] = {unit.priority for unit in base.pending} | {
        item.unit.priority for item in base.running.values()
    }
    # With the same priority the older goes first.
    least = {value + more for value in known for more in (0, 1)}
    for priority in sorted(value for value in least if value > own)[: 2 * TRIED]:
        change = Change(unit=replace(question.unit, priority=priority))
        outcome = question.ask(change)
        if outcome is not None:
            said = f"its priority were {priority} instead of {own}"
            yield _starts("priority", own, priority, "at least", said, change, outcome)
            return


def _shorter(question: Question, name: str) -> Iterator[Counterfactual]:
    unit, use_limit = question.unit, name == "limit_s"
    now = unit.limit_s if use_limit else unit.expected_s
    if now == math.inf:
        now = unit.expected_s if use_limit else unit.limit_s

    def with_(left_s: float) -> Change:
        whole_s = unit.attained_s + left_s
        return Change(
            unit=replace(unit, expected_s=whole_s, limit_s=whole_s, low_s=min(unit.low_s, whole_s), high_s=whole_s)
        )

    left = 30 * 86_400.0 if now == math.inf else max(now - unit.attained_s, 1.0)
    found = greatest(lambda left_s: question.ask(with_(left_s)), 1.0, left, whole=True)
    if found is None:
        return
    new = unit.attained_s + found.value
    old = None if now == math.inf else now
    said = f"it were thought to run at most {found.value:.0f} s more, so that it ends before what is reserved"
    yield _starts(name, old, new, "at most", said, with_(found.value), found.outcome)
    if found.over:
        raise GivenUpError
