"""What a shard does with its book and its dispatcher at once, the same live and in a replay.

1. `turn`: it hears what domains and other shards told everybody, gives up nodes that were kept on one level, and steps.
2. `take_answers`: what domains granted becomes runs, what is not wanted any more is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from services.scheduler.core.apart.carrying import carry_out
from services.scheduler.core.apart.dispatching import Dispatcher
from services.scheduler.core.apart.messages import Reply, Request
from services.scheduler.core.apart.rounds import Step
from services.scheduler.core.apart.shares import ShardShares
from services.scheduler.core.book import Draft
from services.scheduler.core.lifecycle import give_up_nomination
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Run, UnitKey
from services.scheduler.core.two_level import DomainSummary


@dataclass(slots=True)
class Turn:
    """What a turn led to. ``given_up`` are units whose nodes are not kept any more; nothing else is done in such a turn, so
    that what follows sees them wait."""

    given_up: list[UnitKey] = field(default_factory=list)
    step: Step = field(default_factory=Step)


@dataclass(slots=True)
class Taken:
    """What answers led to: runs that began, and requests that give grants back."""

    runs: list[Run] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)


def turn(
    draft: Draft,
    dispatcher: Dispatcher,
    summaries: Iterable[DomainSummary],
    shares: Iterable[ShardShares],
    now_s: float,
) -> Turn:
    """One turn at ``now_s`` on an empty draft; see the module. ``shares`` are of other shards."""
    book = draft.book
    for item in shares:
        dispatcher.hear_shares(item)
    for summary in summaries:
        dispatcher.hear(summary)
    book.advance(now_s)
    kept = list(book.nominated)
    for key in kept:
        give_up_nomination(draft, key)
    return Turn(kept) if draft.changed else Turn(step=dispatcher.step(book, now_s))


def take_answers(
    draft: Draft,
    dispatcher: Dispatcher,
    replies: Iterable[Reply],
    policy: Policy,
    now_s: float,
    new_id: Callable[[], str],
    port_range: range,
) -> Taken:
    """Handle answers in order; ``new_id`` gives names for decisions, ``port_range`` the ports of runs that begin."""
    taken = Taken()
    for reply in replies:
        heard = dispatcher.answer(reply, draft)
        taken.runs += carry_out(draft, heard.carried, policy, now_s, new_id, port_range)
        taken.requests += heard.requests
    return taken
