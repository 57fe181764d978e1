"""The policy: which plugins judge, with which weights, and the rules of restarts. A value, recorded in every decision."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from services.scheduler.core.errors import PolicyError


@dataclass(frozen=True, slots=True)
class RestartRules:
    """When a unit is tried again. Program failures wait ``backoff_s * 2^n``; lost runs do not wait but are counted.

    A planner neither moves nor resizes a run before it has had its nodes for ``least_run_s``. ``restart_cost_s`` is what it thinks
    that stopping a run and starting it elsewhere costs, where the unit says nothing (nothing is measured).
    """

    backoff_s: float = 1.0
    backoff_max_s: float = 30.0
    max_recoveries: int = 50
    recovery_fallback_s: float = 10.0
    stop_grace_s: float = 5.0
    stop_timeout_s: float = 15.0
    exclusion_s: float = 60.0
    steady_after_s: float = 60.0
    least_run_s: float = 30.0
    restart_cost_s: float = 30.0

    def backoff(self, failures: int) -> float:
        """Seconds to wait before the attempt after ``failures`` >= 1 failures."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(failures - 1, 30))


DISCIPLINES = ("greedy", "strict", "easy", "conservative")
ESTIMATES = ("expected", "high", "limit")
NOT_FOR_PLANNERS = (
    "preemptions",
    "discipline",
    "reservation_depth",
    "estimate",
    "backfill_estimate",
    "backfill_order",
)
"""Fields that a policy with a ``planner`` leaves as they are: who runs, who is taken off and who may overtake is the planner's. (Limits
are refused beside it on their own.)"""


@dataclass(frozen=True, slots=True)
class Policy:
    """Plugins by name (see filters.py, scores.py, queue.py, admission.py, preemption.py, planning.py), weights and options.

    Scores are in 0-1, weights of any size. ``discipline`` says what a unit without room does to those behind it:
      greedy        nothing: whatever fits goes
      strict        they wait too, unless they may only use other domains
      easy          the first ``reservation_depth`` (1) get a reservation; others go if they disturb none
      conservative  every one gets a reservation, and never a later one while runs end when they are thought to or before
    ``estimate`` is the run time that reservations rest on: "expected" (predicted), "high" (the upper end of the prediction's
    band) or "limit" (declared by the user). ``backfill_estimate`` is how long a unit that would overtake one with a
    reservation is thought to run, if that differs; ``backfill_order`` is the order in which units are asked whether they
    would: "" (the queue's) or "shortest" (by that estimate: EASY-SJBF, Tsafrir, Etsion and Feitelson, TPDS 2007).
    ``planner`` decides in rounds of ``interval_s``, in place of `NOT_FOR_PLANNERS`; ``unlike_planner`` in every cycle, but only while the rates of most units differ
    by accelerator (unlike.py).
    ``interval_s`` > 0 asks for a cycle at least so often. ``domain_node_scores`` are weights of domains that order their
    nodes in their own way. ``options`` are those of plugins, by plugin name.
    """

    name: str = "balanced"
    filters: tuple[str, ...] = (
        "up",
        "excluded_node",
        "domain",
        "security",
        "accelerator",
        "real_accelerator",
        "port",
        "runs_there",
        "anti_affinity",
        "capacity",
    )
    scores: tuple[tuple[str, float], ...] = (
        ("throughput", 2.0),
        ("price", 1.0),
        ("carbon", 0.5),
        ("spread", 1.0),
        ("locality", 2.0),
        ("expected_demand", 0.25),
        ("rtt", 1.0),
        ("pack", 1.0),
        ("health", 0.5),
    )
    order: tuple[str, ...] = ("priority", "fair_share", "age")
    limits: tuple[str, ...] = ()
    discipline: str = "greedy"
    reservation_depth: int = 1
    estimate: str = "expected"
    backfill_estimate: str = ""
    backfill_order: str = ""
    preemptions: tuple[str, ...] = ()
    planner: str = ""
    unlike_planner: str = ""
    interval_s: float = 0.0
    domain_node_scores: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = ()
    options: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()
    tenant_weights: tuple[tuple[str, float], ...] = ()
    one_accelerator_model_per_gang: bool = True
    shown_candidates: int = 5
    shown_nodes: int = 8
    restarts: RestartRules = field(default_factory=RestartRules)

    @property
    def unread(self) -> tuple[str, ...]:
        """Fields that are set to something other than the default though the planner, which decides in their place, does not read them."""
        if not self.planner:
            return ()
        return tuple([name for name in NOT_FOR_PLANNERS if getattr(self, name) != getattr(_DEFAULT, name)])

    def without_unread(self) -> Policy:
        """The same without what is `unread`, and without options of plugins that nothing else names."""
        unread = self.unread
        if not unread:
            return self
        named = {*self.filters, *dict(self.scores), *self.order, self.planner}
        gone = set(self.preemptions) - named
        options = tuple([item for item in self.options if item[0] not in gone])
        return replace(self, options=options, **{name: getattr(_DEFAULT, name) for name in unread})

    @property
    def version(self) -> str:
        """``name-`` and a digest of the content: equal versions decide equally."""
        return _version(self)

    def options_of(self, plugin: str) -> dict[str, Any]:
        """The options of a plugin."""
        return dict(dict(self.options).get(plugin, ()))

    def as_json(self) -> dict[str, Any]:
        """The policy as an object, with its version."""
        body = asdict(self)
        body["scores"] = dict(self.scores)
        body["tenant_weights"] = dict(self.tenant_weights)
        body["domain_node_scores"] = {name: dict(weights) for name, weights in self.domain_node_scores}
        body["options"] = {name: dict(values) for name, values in self.options}
        body["version"] = self.version
        return body


_DEFAULT = Policy()


@lru_cache(maxsize=256)
def _version(policy: Policy) -> str:
    content = json.dumps(asdict(policy), sort_keys=True)
    return f"{policy.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def policy_from_json(body: Mapping[str, Any]) -> Policy:
    """A policy from an object with any of the fields of `Policy`; PolicyError names the one that is wrong."""
    known = {item.name for item in fields(Policy)}
    unknown = set(body) - known - {"version", "follows"}
    if unknown:
        raise PolicyError(f"unknown field {min(unknown)!r}")
    changes: dict[str, Any] = {name: value for name, value in body.items() if name in known}
    for name in ("filters", "order", "limits", "preemptions"):
        if name in changes:
            changes[name] = _names(name, changes[name])
    for name in ("scores", "tenant_weights"):
        if name in changes:
            changes[name] = _weights(name, changes[name])
    if "domain_node_scores" in changes:
        changes["domain_node_scores"] = tuple(
            (name, _weights(f"domain_node_scores.{name}", weights))
            for name, weights in _mapping("domain_node_scores", changes["domain_node_scores"]).items()
        )
    if "options" in changes:
        changes["options"] = tuple(
            (name, tuple((key, _frozen(value)) for key, value in _mapping(f"options.{name}", values).items()))
            for name, values in _mapping("options", changes["options"]).items()
        )
    if "restarts" in changes:
        rules = _mapping("restarts", changes["restarts"])
        strange = set(rules) - {item.name for item in fields(RestartRules)}
        if strange:
            raise PolicyError(f"restarts.{min(strange)}: there is no such rule")
        changes["restarts"] = RestartRules(**rules)
    policy = replace(Policy(), **changes)
    check_numbers(policy)
    return policy


def _mapping(path: str, value: Any) -> dict[str, Any]:
    """A mapping, or the pairs of one."""
    try:
        if not isinstance(value, str):
            return {str(name): item for name, item in dict(value).items()}
    except (TypeError, ValueError):
        pass
    raise PolicyError(f"{path}: a mapping is wanted, not {value!r}")


def _names(path: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise PolicyError(f"{path}: a list of names is wanted, not {value!r}")
    return tuple(str(item) for item in value)


def _weights(path: str, value: Any) -> tuple[tuple[str, float], ...]:
    return tuple((name, _number(f"{path}.{name}", weight)) for name, weight in _mapping(path, value).items())


def _number(path: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(f"{path}: a number is wanted, not {value!r}")
    return float(value)


def _frozen(value: Any) -> Any:
    """Lists and mappings as tuples, so that a policy can be hashed."""
    if isinstance(value, Mapping):
        return tuple((str(key), _frozen(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return value


def check_numbers(policy: Policy) -> None:
    """PolicyError, naming the field, when a value has a wrong type, a weight is not a finite number, a tenant's weight is not
    positive, or a choice does not exist."""
    for name in ("name", "planner", "unlike_planner"):
        if not isinstance(getattr(policy, name), str):
            raise PolicyError(f"{name}: a text is wanted, not {getattr(policy, name)!r}")
    if not isinstance(policy.one_accelerator_model_per_gang, bool):
        where = "one_accelerator_model_per_gang"
        raise PolicyError(f"{where}: true or false is wanted, not {policy.one_accelerator_model_per_gang!r}")
    _check_choices(policy)
    _check_unlike(policy)
    for name in ("reservation_depth", "shown_candidates", "shown_nodes"):
        _check_whole(name, getattr(policy, name))
    _check_amount("interval_s", policy.interval_s)
    for rule in fields(RestartRules):
        check_rule = _check_whole if rule.name == "max_recoveries" else _check_amount
        check_rule(f"restarts.{rule.name}", getattr(policy.restarts, rule.name))
    own = [(f"domain_node_scores.{name}.", weights) for name, weights in policy.domain_node_scores]
    for prefix, weights in [("scores.", policy.scores), *own]:
        for name, weight in weights:
            if not (math.isfinite(weight) and weight >= 0):
                raise PolicyError(f"{prefix}{name}: the weight must be a finite number of at least 0, not {weight!r}")
    for tenant, weight in policy.tenant_weights:
        if not (math.isfinite(weight) and weight > 0):
            raise PolicyError(f"tenant_weights.{tenant}: the weight must be positive")


def _check_choices(policy: Policy) -> None:
    if policy.discipline not in DISCIPLINES:
        raise PolicyError(f"discipline: {policy.discipline!r} is none of {', '.join(DISCIPLINES)}")
    if policy.estimate not in ESTIMATES:
        raise PolicyError(f"estimate: {policy.estimate!r} is none of {', '.join(ESTIMATES)}")
    if policy.backfill_estimate not in ("", *ESTIMATES):
        raise PolicyError(f"backfill_estimate: {policy.backfill_estimate!r} is none of {', '.join(ESTIMATES)}")
    if policy.backfill_order not in ("", "shortest"):
        raise PolicyError(f"backfill_order: {policy.backfill_order!r} is neither empty nor shortest")


def _check_unlike(policy: Policy) -> None:
    if not policy.unlike_planner:
        return
    if policy.planner:
        raise PolicyError(f"unlike_planner: the planner {policy.planner} decides already, whatever the rates")
    if policy.limits:
        raise PolicyError(f"unlike_planner: planners read no limits, and this policy has {policy.limits[0]}")
    if policy.discipline != "greedy":
        raise PolicyError(f"unlike_planner: wants the discipline greedy, not {policy.discipline}")


def _check_whole(path: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PolicyError(f"{path}: must be a whole number of at least 0, not {value!r}")


def _check_amount(path: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise PolicyError(f"{path}: must be a finite number of at least 0, not {value!r}")
