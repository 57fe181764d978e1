"""Share contracts over shards: each tells what domains give to its tenants, and sees the sum when it chooses a domain.

What a shard tells holds until it tells anew: what its units hold goes on being given, up to what they were thought to give in
the window. A shard that has not told since the window before the last is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from services.scheduler.core.contracts.account import ShareAccount
from services.scheduler.core.contracts.plan import PER_WINDOW, PLUGIN, plan_of
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import Policy
from services.scheduler.core.table import Floats


@dataclass(frozen=True, slots=True)
class DomainShare:
    """What a domain gives to a shard's tenants: accelerator-seconds ``given`` so far in the window, accelerators ``held``, and
    accelerator-seconds that what runs is thought to take from now to the end of the window (``projected``) and in the
    ``following`` one."""

    given: float
    held: float
    projected: float
    following: float


@dataclass(frozen=True, slots=True)
class ShardShares:
    """The account of a shard at ``at_s``, in the window of this number and length."""

    shard: str
    at_s: float
    window_s: float
    window: int
    domains: Mapping[str, DomainShare]


def check_shares(policy: Policy, shards: int) -> None:
    """PolicyError for what two levels do not do: plans per window with several shards (one must issue them for all, and none sees what
    all domains hold at the begin of a window), and moves for them."""
    plan = plan_of(policy)
    if plan is not None and plan.move_every_s:
        raise PolicyError(f"options.{PLUGIN}.move_every_s: two levels take no running units off; leave it out")
    if plan is not None and plan.plan == PER_WINDOW and shards > 1:
        raise PolicyError(
            f"options.{PLUGIN}.plan: {PER_WINDOW} needs one who issues the plans for all; {shards} shards would issue one each"
        )


def shares_of(account: ShareAccount, shard: str) -> ShardShares:
    """What a shard tells of its account, as it is now."""
    this, following = account.projections()
    given = account.given
    rows = zip(given.tolist(), account.held.tolist(), (this - given).tolist(), following.tolist(), strict=True)
    domains = {name: DomainShare(*row) for name, row in zip(account.domain_ids, rows, strict=True) if any(row)}
    return ShardShares(shard, account.now_s, account.plan.window_s, account.number, domains)


def whole(
    account: ShareAccount, others: Iterable[ShardShares], domain_ids: Sequence[str], accelerators: Floats
) -> ShareAccount:
    """A copy of a shard's account for these domains, with ``accelerators`` (D) up, that counts the other shards too."""
    copy = account.snapshot()
    copy.fit(domain_ids, accelerators)
    index = {name: place for place, name in enumerate(copy.domain_ids)}
    given, held, left, following = (np.zeros(len(index)) for _ in range(4))
    for told in others:
        begun_s = _counts_from(told, copy)
        if begun_s is None:
            continue
        same = told.window == copy.number
        for name, item in told.domains.items():
            place = index.get(name)
            if place is None:
                continue
            passed = item.held * max(copy.now_s - begun_s, 0.0)
            thought = item.projected if same else item.following
            given[place] += passed + (item.given if same else 0.0)
            held[place] += item.held
            left[place] += max(thought - passed, 0.0)
            following[place] += item.following
    copy.join(given, held, given + left, following)
    return copy


def _counts_from(told: ShardShares, account: ShareAccount) -> float | None:
    """From when on what is held counts in the account's window; None when what was told does not count."""
    if told.window_s != account.plan.window_s or told.window not in {account.number, account.number - 1}:
        return None
    return max(told.at_s, account.end_s - account.plan.window_s)
