"""Which quotas hold exactly when tenants are split over shards, each of which counts its own tenants only.

Tenants of one organisation lie in one shard (``organisation_of`` in meridian/sharding.py), so the quotas of an organisation and of all
below it are counted in one place. Above that, at a queue under which several shards meet, nobody counts all: its parts must
have nothing to do with each other. They have not when they neither borrow from it nor lend to it, and when no number of running
units is common to them; then what one of them may take depends on its own usage alone (core/entitlement/quota.py: counted(x) <=
subtree(x) holds at such a queue whenever it holds at each child).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from services.scheduler.core.entitlement.queues import QueueSpec
from services.scheduler.core.entitlement.quota import QuotaTree
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import Policy
from services.scheduler.core.selection.quotas import QUOTA, queue_specs

_WHERE = f"options.{QUOTA}"


def check_shards(policy: Policy, shards: int, shard_of: Callable[[str, int], int]) -> None:
    """PolicyError names the first quota of a policy that would not be exact over so many shards; ``shard_of`` tells that of a
    tenant of so many."""
    if shards == 1 or QUOTA not in policy.limits:
        return
    options = policy.options_of(QUOTA)
    if options.get("others"):
        raise PolicyError(
            f"{_WHERE}.others: tenants of all {shards} shards would count for the queue {options['others']!r}, "
            "and each shard counts its own tenants only"
        )
    specs = queue_specs(f"{_WHERE}.queues", options.get("queues", ()))
    resources = QuotaTree(specs).resources
    children: dict[str, list[QueueSpec]] = {}
    for spec in specs:
        children.setdefault(spec.parent, []).append(spec)
    for spec in specs:
        meeting = _below(spec, children, lambda name: shard_of(name, shards))
        if len(meeting) > 1:
            _check_apart(spec, children[spec.name], resources, sorted(meeting))


def _below(spec: QueueSpec, children: Mapping[str, Sequence[QueueSpec]], shard_of: Callable[[str], int]) -> set[int]:
    """The shards of the tenants of a queue and of all below it: a queue may be a tenant's, whose name it has."""
    found = {shard_of(spec.name)}
    for child in children.get(spec.name, ()):
        found |= _below(child, children, shard_of)
    return found


def _check_apart(
    spec: QueueSpec, children: Sequence[QueueSpec], resources: Sequence[str], meeting: Sequence[int]
) -> None:
    why = (
        f"tenants of the shards {', '.join(map(str, meeting))} meet at {spec.name!r}, and each shard counts its own only "
        "(tenants named ORGANISATION.TEAM lie in one shard)"
    )
    if spec.max_running is not None:
        raise PolicyError(f"{_WHERE}.queues.{spec.name}.max_running: {why}")
    for child in children:
        for name in ("borrowing_limit", "lending_limit"):
            limit = getattr(child, name)
            for resource in resources:
                if limit.get(resource) != 0:
                    raise PolicyError(f"{_WHERE}.queues.{child.name}.{name}.{resource}: must be 0: {why}")
