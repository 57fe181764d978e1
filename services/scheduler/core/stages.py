"""The plugins of a policy that act on whole units: limits, preemptions, the planner; resolved by name, with their options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from services.scheduler.core.admission import Limit, limits
from services.scheduler.core.contracts.promises import SERVICE_LEVELS, service_levels_of
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.idle_nodes import IDLE_NODES, idle_rules_of
from services.scheduler.core.options import configured
from services.scheduler.core.planning import Planner, Rounds, planner
from services.scheduler.core.plugins import plugins_of
from services.scheduler.core.policy import Policy
from services.scheduler.core.preemption import Preemption, preemptions
from services.scheduler.core.ranking import can_be_kept
from services.scheduler.core.waiting_unit import Order


@dataclass(frozen=True, slots=True)
class Stages:
    """See the module. ``follows``: the planner is that of unlike rates (unlike.py), which decides about accelerators alone."""

    limits: tuple[Limit, ...]
    preemptions: tuple[Preemption, ...]
    planner: Planner | None
    promises: Promises
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Promises:
    """What the plugins of a policy promise together; each is said where it is defined.

    ``steady`` and ``settled`` are about preemptions (with none they hold) and about the order; ``bounded``: all preemptions say
    who is ``out_of_reach``; ``kept``: running units can be kept in order (ranking.py).
    """

    steady: bool
    settled: bool
    bounded: bool
    kept: bool


def _promises(preemptions: tuple[Preemption, ...], order: tuple[Order, ...]) -> Promises:
    return Promises(
        steady=all(getattr(plugin, "steady", False) for plugin in (*preemptions, *order)),
        settled=all(_is_settled(plugin, order) for plugin in preemptions)
        and all(plugin.per == "unit" for plugin in order),
        bounded=all(hasattr(plugin, "out_of_reach") for plugin in preemptions),
        kept=can_be_kept(order),
    )


def _is_settled(plugin: Preemption, order: tuple[Order, ...]) -> bool:
    first = getattr(plugin, "settled_by", "")
    return bool(getattr(plugin, "settled", False)) and (not first or [item.name for item in order[:1]] == [first])


@lru_cache(maxsize=256)
def stages_of(policy: Policy) -> Stages:
    """Resolve a policy's names; PolicyError when one does not exist or an option is wrong."""
    found = planner(policy.planner)
    taking_off = tuple(configured(item, policy.options_of(item.name)) for item in preemptions(policy.preemptions))
    stages = Stages(
        tuple(configured(item, policy.options_of(item.name)) for item in limits(policy.limits)),
        taking_off,
        None if found is None else _in_rounds(configured(found, policy.options_of(found.name)), policy),
        _promises(taking_off, plugins_of(policy).order),
    )
    _ask((*stages.limits, *stages.preemptions), policy)
    return stages


@lru_cache(maxsize=256)
def unlike_stages_of(policy: Policy) -> Stages:
    """The stages while a policy follows its ``unlike_planner``; PolicyError as from `stages_of`."""
    found = planner(policy.unlike_planner)
    assert found is not None
    plain = stages_of(policy)
    settled = Promises(steady=True, settled=True, bounded=True, kept=plain.promises.kept)
    return Stages((), (), configured(found, policy.options_of(found.name)), settled, follows=True)


def _in_rounds(found: Planner, policy: Policy) -> Planner:
    return Rounds(found, policy.interval_s) if policy.interval_s > 0 else found


def _ask(plugins: Iterable[Any], policy: Policy) -> None:
    """A plugin may have ``requires(policy)``: a PolicyError when it lacks something beside its own options."""
    for item in plugins:
        requires = getattr(item, "requires", None)
        if requires is not None:
            requires(policy)


def check(policy: Policy) -> None:
    """PolicyError when anything in the policy is wrong; it names the field. (A policy that decided once is still read, however it is
    judged now: only what is to apply is checked.)"""
    plugins = plugins_of(policy)
    if policy.planner and policy.limits:
        raise PolicyError(f"planner: planners read no limits, and this policy has {policy.limits[0]}")
    for name in policy.unread:
        why = f"{policy.planner} says who runs and who is taken off"
        raise PolicyError(f"{name}: has no effect beside a planner: {why}")
    stages = stages_of(policy)
    _ask((*plugins.filters, *plugins.order), policy)
    used = {
        item.name for group in (plugins.filters, plugins.order, stages.limits, stages.preemptions) for item in group
    }
    used |= {name for name, _ in policy.scores}
    used |= {name for _, weights in policy.domain_node_scores for name, _ in weights}
    if policy.unlike_planner:
        unlike_stages_of(policy)
    used |= {policy.planner, policy.unlike_planner}
    service_levels_of(policy)
    idle_rules_of(policy)
    used |= {SERVICE_LEVELS, IDLE_NODES}
    for name, _ in policy.options:
        if name not in used:
            raise PolicyError(f"options.{name}: the policy uses no plugin of this name")
    scored = {name for name, _ in policy.scores}
    for domain, weights in policy.domain_node_scores:
        for name, _ in weights:
            if name not in scored:
                raise PolicyError(f"domain_node_scores.{domain}.{name}: name it in scores too (weight 0 elsewhere)")
