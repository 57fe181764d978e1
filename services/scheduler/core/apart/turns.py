"""What a shard does with its book and its dispatcher at once, the same live and in a replay.

1. `turn`: it hears what domains and other shards told everybody, begins runs whose nodes are awake by now, gives up nodes for which
   runs were to be taken off on one level, and steps.
2. `take_answers`: what domains granted becomes runs, what is not wanted any more is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from services.scheduler.core import binding, nominations, shares
from services.scheduler.core.apart.carrying import carry_out
from services.scheduler.core.apart.dispatching import Dispatcher
from services.scheduler.core.apart.messages import Reply, Request
from services.scheduler.core.apart.rounds import Step
from services.scheduler.core.apart.shares import ShardShares
from services.scheduler.core.apart.waking import kept_grant
from services.scheduler.core.book import Draft
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Run, UnitKey, UnitState, run_id_of
from services.scheduler.core.two_level import DomainSummary


@dataclass(slots=True)
class Turn:
    """What a turn led to. ``given_up`` are units whose nodes are not kept any more, ``begun`` runs whose nodes were woken; nothing else is
    done in such a turn, so that what follows sees them wait or run."""

    given_up: list[UnitKey] = field(default_factory=list)
    begun: list[Run] = field(default_factory=list)
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
    told: Iterable[ShardShares],
    now_s: float,
    port_range: range = binding.PORTS,
) -> Turn:
    """One turn at ``now_s`` on an empty draft; see the module. ``told`` are share contracts of other shards,
    ``port_range`` the ports of runs that begin."""
    book = draft.book
    for item in told:
        dispatcher.hear_shares(item)
    for summary in summaries:
        dispatcher.hear(summary)
    book.advance(now_s)
    turned = Turn()
    for key in list(book.nominated):
        kept = kept_grant(book, key)
        if kept is None:
            nominations.give_up_nomination(draft, key)
        elif dispatcher.waking.awake(kept[0], [rank.domain_id for rank in kept[1].ranks]):
            # Its domains keep the nodes for it, so nobody else has them.
            run = nominations.carry_out_nomination(draft, key, now_s, room=True, port_range=port_range)
            if run is not None:
                turned.begun.append(run)
        elif now_s >= kept[1].until_s:
            # Its nodes may be awake, but a domain does not say so.
            nominations.give_up_nomination(draft, key)
        unit = draft.units.get(key)
        if unit is not None and unit.state is UnitState.QUEUED:
            turned.given_up.append(key)
    if not draft.changed:
        turned.step = dispatcher.step(book, now_s)
    return turned


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
        for name, milli in heard.parts:
            run_id = run_id_of(name.key, name.epoch)
            draft.book.replicas.got(run_id, milli)
            shares.adjust(draft, run_id, milli, now_s)
        taken.runs += carry_out(draft, heard.carried, policy, now_s, new_id, port_range)
        taken.requests += heard.requests
    return taken
