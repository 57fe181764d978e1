"""The ``queues`` of a policy file: a tree of quotas, and what belongs to a queue besides.

Per queue: ``name``, ``parent``; ``nominal``, ``borrowing_limit``, ``lending_limit`` (amounts by resource), ``max_running``
(see core/entitlement/queues.py); ``weight`` (of its tenant in fair shares, and of the queue among borrowers);
``priority_boost`` (added to the priority of its units; inherited by the queues below).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from services.scheduler.core.entitlement.queues import QueueSpec
from services.scheduler.core.entitlement.quota import QuotaTree
from services.scheduler.core.errors import PolicyError
from services.scheduler.policy.marked_yaml import Marked, Problems

QUOTA = "queues"
"""The option of the limit ``quota`` that takes the specifications."""
BOOSTS = "boosts"
_AMOUNTS = ("nominal", "borrowing_limit", "lending_limit")
_COUNTS = ("max_running",)
_KEYS = ("name", "parent", *_AMOUNTS, *_COUNTS, "weight", "priority_boost")
_LARGEST = 2**53
_COMPLAINT = re.compile(r"queue (?P<quote>['\"])(?P<name>.*?)(?P=quote): (?P<field>\w+)(?:\.(?P<resource>[\w.-]+))?")


@dataclass(slots=True)
class Queues:
    """What the section says. ``specs`` are the fields of `QueueSpec` that were given, for the limit ``quota``; ``quotas``
    and ``boost`` show the first place where a quota or a boost is given, None without any."""

    specs: list[dict[str, Any]] = field(default_factory=list)
    boosts: dict[str, float] = field(default_factory=dict)
    weights: dict[str, tuple[float, Marked]] = field(default_factory=dict)
    quotas: Marked | None = None
    boost: Marked | None = None


def read_queues(at: Marked, problems: Problems) -> Queues:
    """Read the section; what is wrong goes to ``problems``."""
    found, before = Queues(), len(problems.found)
    if not isinstance(at.value, list):
        problems.add(at, "a list of queues is wanted")
        return found
    places: dict[str, Marked] = {}
    own_boosts: dict[str, float] = {}
    for item in at.value:
        spec = _spec(item, problems)
        if not spec:
            continue
        name = spec["name"]
        if name in places:
            problems.add(item, f"queue {name!r} is given already in line {places[name].line}")
        places[name] = item
        if (boost := item.get("priority_boost")) is not None:
            own_boosts[name] = spec.pop("priority_boost")
            found.boost = found.boost or boost
        if found.quotas is None:
            found.quotas = next((part for key in (*_AMOUNTS, *_COUNTS) if (part := item.get(key)) is not None), None)
        found.specs.append(spec)
    if len(problems.found) > before:
        return found
    _check_tree(found, places, at, problems)
    if len(problems.found) > before:
        return found
    parents = {spec["name"]: spec.get("parent", "") for spec in found.specs}
    for name in parents:
        above = name
        while above and above not in own_boosts:
            above = parents[above]
        if above:
            found.boosts[name] = own_boosts[above]
    inner = set(parents.values())
    for spec in found.specs:
        weight = places[spec["name"]].get("weight")
        if weight is not None and spec["name"] not in inner:
            found.weights[spec["name"]] = (spec["weight"], weight)
    return found


def _spec(item: Marked, problems: Problems) -> dict[str, Any]:
    if not isinstance(item.value, dict):
        problems.add(item, "a mapping with the name of a queue is wanted")
        return {}
    spec: dict[str, Any] = {}
    for key, at in item.value.items():
        if key not in _KEYS:
            problems.add(at, f"unknown key; known are {', '.join(_KEYS)}")
        elif (value := _value(key, at, problems)) != "":
            spec[key] = value
    if not isinstance(spec.get("name"), str):
        if "name" not in item.value:
            problems.add(item, "the queue has no name")
        return {}
    return spec


def _value(key: str, at: Marked, problems: Problems) -> Any:
    value = at.value
    if key in {"name", "parent"}:
        if not isinstance(value, str) or (not value and key == "name"):
            problems.add(at, f"a text is wanted, not {at.plain()!r}")
        return value
    if key in _AMOUNTS:
        if isinstance(value, dict):
            return {name: _number(amount, problems, least=0.0) for name, amount in value.items()}
        problems.add(at, f"amounts by resource are wanted, not {at.plain()!r}")
        return ""
    if key in _COUNTS:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
            problems.add(at, f"a whole number of at least 0 is wanted, not {at.plain()!r}")
        return value
    number = _number(at, problems, least=0.0 if key == "weight" else -math.inf)
    if key == "weight" and number == 0:
        problems.add(at, "must be above 0")
    return number


def _number(at: Marked, problems: Problems, least: float) -> float:
    value = at.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        problems.add(at, f"a number is wanted, not {at.plain()!r}")
    elif isinstance(value, float) and not math.isfinite(value):
        problems.add(at, f"a finite number is wanted, not {value!r}")
    elif abs(value) > _LARGEST:
        problems.add(at, f"must be at most {_LARGEST:g}, not {value!r}")
    elif value < least:
        problems.add(at, f"must be at least {least:g}, not {value!r}")
    else:
        # Whole numbers as int, so that 1 and 1.0 make the same version.
        return int(value) if value == int(value) else value
    return 1.0


def _check_tree(found: Queues, places: dict[str, Marked], at: Marked, problems: Problems) -> None:
    specs = [QueueSpec(**spec) for spec in found.specs]
    if found.quotas is None:
        # Without quotas several queues may stand side by side.
        root = "".join(places) + "root"
        specs = [QueueSpec(**{**spec, "parent": spec.get("parent") or root}) for spec in found.specs]
        specs.append(QueueSpec(root))
    try:
        QuotaTree(specs)
    except PolicyError as error:
        match = _COMPLAINT.match(error.detail)
        place: Marked | None = places.get(match["name"]) if match else None
        if match and place is not None:
            place = place.get(match["field"]) or place
            place = (match["resource"] and place.get(match["resource"])) or place
        problems.add(place or at, error.detail)
