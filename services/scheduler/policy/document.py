"""A policy's document, as it was read with its lines, into the fields of `Policy`: section by section, each value checked in its
place (`file.py` says what may stand there)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any

from services.scheduler import boosted_priority
from services.scheduler.core import builtin as _plugins  # noqa: F401 - makes the built-in plugins known
from services.scheduler.core.admission import LIMITS
from services.scheduler.core.contracts.plan import PLUGIN
from services.scheduler.core.contracts.promises import SERVICE_LEVELS
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.filters import FILTERS
from services.scheduler.core.idle_nodes import IDLE_NODES
from services.scheduler.core.planning import PLANNERS
from services.scheduler.core.policy import DISCIPLINES, ESTIMATES, NOT_FOR_PLANNERS, Policy, RestartRules
from services.scheduler.core.preemption import PREEMPTIONS
from services.scheduler.core.queue import ORDERS
from services.scheduler.core.scores import SCORES, NodeScore
from services.scheduler.policy.marked_yaml import Marked, Problems
from services.scheduler.policy.promises import SECTIONS, places, read_service_levels, read_shares
from services.scheduler.policy.queues import BOOSTS, QUOTA, read_queues
from services.scheduler.policy.values import LARGEST, ValueReader, unknown

BOOSTED = boosted_priority.BoostedPriorityOrder.name
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RESERVATIONS = {
    "depth": "reservation_depth",
    "estimate": "estimate",
    "backfill_estimate": "backfill_estimate",
    "backfill_order": "backfill_order",
}
"""Settings under selection.reservations, and the fields of `Policy` that they set."""
_GOES_WITH_PLANNER = frozenset(
    {
        "name",
        "unlike_planner",
        "options",
        "tenant_weights",
        "restarts",
        "shown_candidates",
        "shown_nodes",
        "domain_node_scores",
    }
)
"""Fields that a policy may set and still inherit what it follows while rates differ."""
_WHOLE_RULES = {"max_recoveries"}


class Document(ValueReader):
    """Reads a document into the fields of `Policy` (``flat``) and remembers where each came from."""

    def __init__(self, root: Marked, problems: Problems, shipped: Callable[[str], Policy]) -> None:
        """``shipped`` gives the policy of a name that another extends; PolicyError when there is none."""
        super().__init__(problems)
        self._shipped = shipped
        self.root = root
        self.flat: dict[str, Any] = {}
        self._places: dict[str, Marked] = {}
        self._flat_readers: dict[str, Callable[[str, Marked], None]] = {
            **{item.name: self._any for item in fields(Policy)},
            "discipline": self._choice(DISCIPLINES),
            "planner": self._planner,
            "unlike_planner": self._planner,
            "interval_s": self._number,
            "options": self._options,
            "tenant_weights": self._weights,
            "one_accelerator_model_per_gang": self._flag,
            "shown_candidates": self._whole,
            "shown_nodes": self._whole,
            "restarts": self._restarts,
            "name": self._policy_name,
            "filters": self._listed("filter", FILTERS),
            "scores": self._scores,
            "order": self._listed("order", ORDERS),
            "limits": self._listed("limit", LIMITS),
            "reservation_depth": self._whole,
            "estimate": self._choice(ESTIMATES),
            "backfill_estimate": self._choice(("", *ESTIMATES)),
            "backfill_order": self._choice(("", "shortest")),
            "preemptions": self._listed("preemption", PREEMPTIONS),
            "domain_node_scores": lambda field, at: self._domains(field, at, nested=False),
        }

    def read(self) -> None:
        """Fill ``flat``."""
        sections = {
            "version": None,
            "follows": None,
            "extends": None,
            "queues": None,
            "shares": None,
            "service_levels": None,
            IDLE_NODES: None,
            "selection": self._selection,
            "allocation": self._allocation,
        }
        top = self.mapping(self.root, {*self._flat_readers, *sections})
        base = self._base(top.get("extends"))
        for name, at in top.items():
            if name in self._flat_readers:
                self._flat_readers[name](name, at)
            elif (section := sections[name]) is not None:
                section(at)
        if "queues" in top:
            self._queues(top["queues"], base)
        if "shares" in top:
            self._promised("shares", read_shares(top["shares"], self.problems))
            if PLUGIN not in self.flat.get("scores", dict(base.scores)):
                text = f"planned shares have no effect: name {PLUGIN} in allocation.scores (weight 0: they are only counted)"
                self.problems.add(top["shares"], text)
        if "service_levels" in top:
            self._promised("service_levels", read_service_levels(top["service_levels"], self.problems))
        if IDLE_NODES in top:
            self._promised(IDLE_NODES, top[IDLE_NODES])
        if not self.problems.found:
            self._complete(base)

    def place(self, detail: str) -> tuple[Marked, str]:
        """Where an error of the core belongs, and what remains of its text."""
        path, colon, rest = detail.partition(": ")
        known = path
        while colon and known:
            if known in self._places:
                return self._places[known], rest if known == path else detail
            known = known.rpartition(".")[0]
        return self.root, detail

    # -- the whole ---------------------------------------------------------------------------------------------------

    def _base(self, at: Marked | None) -> Policy:
        name = self.text(at) if at is not None else ""
        if at is None or not name:
            return Policy()
        try:
            return self._shipped(name)
        except PolicyError as error:
            self.problems.add(at, error.detail)
            return Policy()

    def _complete(self, base: Policy) -> None:
        """Add what the document does not say. Options of plugins that are no longer used do not come along."""
        inherited = base.as_json()
        del inherited["version"]
        if not self.flat.keys() <= _GOES_WITH_PLANNER:
            # Whoever says how to select or where to place wants that, whatever the rates.
            inherited["unlike_planner"] = ""
        if self.flat.get("planner"):
            # A planner does in its own way what the other policy does by these.
            default = Policy().as_json()
            inherited |= {name: default[name] for name in NOT_FOR_PLANNERS}
        own_options, own_weights = self.flat.get("options", {}), self.flat.get("tenant_weights", {})
        rules = {**inherited["restarts"], **self.flat.get("restarts", {})}
        self.flat = {**inherited, **self.flat, "restarts": rules}
        used = {name for field in ("filters", "order", "limits", "preemptions") for name in self.flat[field]}
        used |= {*self.flat["scores"], self.flat["planner"], self.flat["unlike_planner"], SERVICE_LEVELS, IDLE_NODES}
        kept = {name: options for name, options in inherited["options"].items() if name in used}
        self.flat["options"] = {**kept, **own_options}
        self.flat["tenant_weights"] = {**inherited["tenant_weights"], **own_weights}

    def _selection(self, at: Marked) -> None:
        readers = self._flat_readers
        for name, item in self.mapping(at, {"order", "limits", "discipline", "reservations", "preemption"}).items():
            if name == "reservations":
                for part, inner in self.mapping(item, set(_RESERVATIONS)).items():
                    field = _RESERVATIONS[part]
                    readers[field](field, inner)
            else:
                field = "preemptions" if name == "preemption" else name
                readers[field](field, item)

    def _allocation(self, at: Marked) -> None:
        for name, item in self.mapping(at, {"filters", "scores", "domains", "one_accelerator_model_per_gang"}).items():
            if name == "domains":
                self._domains("domain_node_scores", item, nested=True)
            else:
                self._flat_readers[name](name, item)

    def _put(self, field: str, value: Any, at: Marked) -> None:
        if field in self._places:
            before = self._places[field]
            self.problems.add(at, f"this is given already as {before.path} in line {before.line}")
            return
        self.flat[field] = value
        self._places[field] = at

    # -- values ------------------------------------------------------------------------------------------------------

    def _number(self, field: str, at: Marked) -> None:
        self._put(field, self.finite(at), at)

    def _whole(self, field: str, at: Marked) -> None:
        self._put(field, self.integer(at), at)

    def _any(self, field: str, at: Marked) -> None:
        """A field that has no reader of its own; the core checks it."""
        self._put(field, at.plain(), at)

    def _flag(self, field: str, at: Marked) -> None:
        if not isinstance(at.value, bool):
            self.wrong(at, "true or false")
        self._put(field, at.value, at)

    def _choice(self, choices: Collection[str]) -> Callable[[str, Marked], None]:
        def choose(field: str, at: Marked) -> None:
            if at.value not in choices:
                self.wrong(at, f"one of {', '.join(choices)}")
            self._put(field, at.value, at)

        return choose

    def _policy_name(self, field: str, at: Marked) -> None:
        name = self.text(at)
        if name and not _NAME.fullmatch(name):
            self.problems.add(at, f"letters, digits, '.', '_' and '-' (at most 64) are wanted, not {name!r}")
        self._put(field, name, at)

    # -- plugins -----------------------------------------------------------------------------------------------------

    def _names(self, field: str, at: Marked, kind: str, known: Mapping[str, object]) -> None:
        if not isinstance(at.value, list):
            self.wrong(at, f"a list of names ({kind})")
            return
        names: list[str] = []
        for item in at.value:
            name, options = item, None
            if isinstance(item.value, dict) and len(item.value) == 1:
                label, options = next(iter(item.value.items()))
                name = Marked(label, item.path, item.pointer, item.line, item.column)
            text = self.text(name)
            if text and text not in known:
                self.problems.add(name, unknown(kind, text, known))
            elif text in names:
                self.problems.add(name, f"{text!r} is named twice")
            elif text:
                names.append(text)
                if options is not None:
                    self._options_of(text, options)
                self._places.setdefault(f"options.{text}", name)
        self._put(field, names, at)

    def _listed(self, kind: str, known: Mapping[str, object]) -> Callable[[str, Marked], None]:
        return lambda field, at: self._names(field, at, kind, known)

    def _planner(self, field: str, at: Marked) -> None:
        if at.value and self.text(at) and at.value not in PLANNERS:
            self.problems.add(at, unknown("planner", at.value, PLANNERS))
        elif not at.value and at.value != "" and at.value is not None:
            self.wrong(at, "a name")
        self._put(field, at.value or "", at)

    def _scores(self, field: str, at: Marked) -> None:
        weights: dict[str, float] = {}
        for name, item in self.mapping(at).items():
            if name not in SCORES:
                self.problems.add(item, unknown("score", name, SCORES))
            weight: Marked | None = item
            if isinstance(item.value, dict):
                parts = self.mapping(item, {"weight", "options"})
                weight = parts.get("weight")
                if weight is None:
                    self.problems.add(item, "a weight is wanted")
                if "options" in parts:
                    self._options_of(name, parts["options"])
            weights[name] = self.finite(weight) if weight is not None else 0.0
            self._places[f"{field}.{name}"] = item
        self._put(field, weights, at)

    def _domains(self, field: str, at: Marked, *, nested: bool) -> None:
        found: dict[str, dict[str, float]] = {}
        for domain, item in self.mapping(at).items():
            inner: Marked | None = item
            if nested:
                inner = self.mapping(item, {"scores"}).get("scores")
            found[domain] = {}
            for name, weight in (self.mapping(inner) if inner is not None else {}).items():
                if name not in SCORES:
                    self.problems.add(weight, unknown("score", name, SCORES))
                elif not isinstance(SCORES[name], NodeScore):
                    known = ", ".join(sorted(key for key, plugin in SCORES.items() if isinstance(plugin, NodeScore)))
                    self.problems.add(
                        weight, f"a domain orders its nodes by scores of nodes ({known}), not by {name!r}"
                    )
                found[domain][name] = self.finite(weight)
                self._places[f"{field}.{domain}.{name}"] = weight
        self._put(field, found, at)

    def _options(self, _field: str, at: Marked) -> None:
        self._places["options"] = at
        for name, item in self.mapping(at).items():
            self._options_of(name, item)

    def _options_of(self, plugin: str, at: Marked) -> None:
        options = self.flat.setdefault("options", {}).setdefault(plugin, {})
        self._places.setdefault(f"options.{plugin}", at)
        for name, item in self.mapping(at).items():
            place = f"options.{plugin}.{name}"
            if name in options:
                before = self._places[place]
                self.problems.add(item, f"this is given already as {before.path} in line {before.line}")
                continue
            options[name] = self._option(item)
            self._places.update(places(place, item))

    def _option(self, at: Marked) -> Any:
        """A plain value; whole numbers as int, so that 1 and 1.0 make the same version."""
        if isinstance(at.value, dict):
            return {name: self._option(item) for name, item in at.value.items()}
        if isinstance(at.value, list):
            return [self._option(item) for item in at.value]
        if isinstance(at.value, int | float) and not isinstance(at.value, bool):
            value = self.finite(at, least=-LARGEST)
            return int(value) if value == int(value) else value
        return at.value

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _weights(self, field: str, at: Marked) -> None:
        found = {}
        for name, item in self.mapping(at).items():
            found[name] = self.finite(item, above=0.0)
            self._places[f"{field}.{name}"] = item
        self._put(field, found, at)

    def _restarts(self, field: str, at: Marked) -> None:
        known = [item.name for item in fields(RestartRules)]
        rules: dict[str, float] = {}
        for name, item in self.mapping(at, known).items():
            rules[name] = self.integer(item) if name in _WHOLE_RULES else self.finite(item)
        self._put(field, rules, at)

    def _queues(self, at: Marked, base: Policy) -> None:
        before = len(self.problems.found)
        found = read_queues(at, self.problems)
        if len(self.problems.found) > before:
            return
        if found.quotas is not None:
            if "quota" in self.flat.get("limits", base.limits):
                self._given("quota", QUOTA, found.specs, at)
            else:
                self.problems.add(found.quotas, "quotas have no effect: name quota in selection.limits")
        if found.boost is not None:
            if planner := self.flat.get("planner", base.planner):
                self.problems.add(found.boost, f"a boost has no effect: the planner {planner} reads no order")
            elif BOOSTED in self.flat.get("order", base.order):
                self._given(BOOSTED, BOOSTS, found.boosts, at)
            else:
                text = f"a boost has no effect: name {BOOSTED} (in place of priority) in selection.order"
                self.problems.add(found.boost, text)
        weights = self.flat.setdefault("tenant_weights", {})
        for name, (weight, place) in found.weights.items():
            if name in weights:
                self.problems.add(place, f"this is given already as {self._places['tenant_weights'].path}.{name}")
            weights[name] = weight
            self._places.setdefault(f"tenant_weights.{name}", place)

    def _promised(self, section: str, at: Marked) -> None:
        plugin = SECTIONS[section]
        self._options_of(plugin, at)
        for option, item in at.value.items() if isinstance(at.value, dict) else ():
            self._places.update(places(f"options.{plugin}.{option}", item))

    def _given(self, plugin: str, option: str, value: Any, at: Marked) -> None:
        options = self.flat.setdefault("options", {}).setdefault(plugin, {})
        if option in options:
            before = self._places[f"options.{plugin}.{option}"]
            self.problems.add(at, f"this is given already as {before.path} in line {before.line}")
        options[option] = value
        place = f"options.{plugin}.{option}"
        self._places[f"options.{plugin}"] = self._places[place] = at
        for number, item in enumerate(at.value):
            self._places[f"{place}[{number}]"] = item
            for name, part in item.value.items():
                self._places[f"{place}[{number}].{name}"] = part
