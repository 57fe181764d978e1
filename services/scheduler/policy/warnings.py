"""What in a policy may be a mistake and need not be one: names of domains that the network does not have now.

Domains join and leave while a network runs, so a policy may name one that is not there yet; it has no effect until it is.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

from services.scheduler.core.contracts.plan import PLUGIN, SharePlan
from services.scheduler.core.policy import Policy

Warnings = list[dict[str, str]]


def warnings_of(policy: Policy, domains: Collection[str]) -> Warnings:
    """``{"field", "detail"}`` of each place that names a domain which is none of ``domains``, those that the network has."""
    return [
        {"field": f"{where}.{name}", "detail": _unknown(name, effect, domains)}
        for where, name, effect in _named(policy)
        if name not in domains
    ]


def _named(policy: Policy) -> list[tuple[str, str, str]]:
    """Places, domains, and what has no effect without them."""
    found = [("allocation.domains", name, "these scores") for name, _ in policy.domain_node_scores]
    options = policy.options_of(PLUGIN)
    if options.get("shares"):
        rows = SharePlan.of(options).shares
        names = dict.fromkeys(name for row in rows for name, _ in row)
        found += [("shares.planned", name, "this share") for name in names]
    return found


def _unknown(name: str, effect: str, domains: Collection[str]) -> str:
    near = difflib.get_close_matches(name, domains, n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    else:
        hint = f"known are {', '.join(sorted(domains)[:10])}" if domains else "none has joined"
    return f"the network has no domain {name!r} now ({hint}); {effect} will hold once it joins"
