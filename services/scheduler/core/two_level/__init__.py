"""Scheduling on two levels: the network chooses domains from summaries, each domain chooses its nodes itself.

Steps of one cycle (`coordinate`):
1. Every domain keeps a summary of itself: room per class of demands, free blocks of accelerators, totals. The network sees
   nothing else, so what it does grows with domains times classes, never with nodes (`InterDomain`).
2. In the policy's order each unit is given the best domain that has room, or a split over several. What it takes is counted
   off: of its own class exactly; of other classes it may take no more than a bound, so their room lies between two numbers.
   When the best domain of a unit hangs on that difference, the round ends before it.
3. Each domain places what it was given, in that order, by its own nodes (`LocalDomain`), all ranks of a part or none, and
   tells its new summary; the next round goes on. After ``most_rounds`` the network stops asking and goes by an estimate.
   A domain with a scheduler of its own gets `Constraints` instead, and says later whether it takes them.
4. What a domain could not place comes back with the reason, once: it is dispatched again, not to that domain. What fails
   again waits for the next cycle.

Summaries may be old. An old one leads to refusals, never to more than a domain has: only the domain gives its nodes away.

Preemption, reservations and planners look at all nodes at once; a policy with them is refused here (PolicyError).
"""

from __future__ import annotations

from services.scheduler.core.two_level.bounds import greatest_drop
from services.scheduler.core.two_level.coordination import MOST_ROUNDS, Coordinated, coordinate
from services.scheduler.core.two_level.domain import HandingDomain, LocalDomain, place_in_domain
from services.scheduler.core.two_level.messages import (
    ANY,
    Answer,
    Assignment,
    Constraints,
    DomainSummary,
    IntraDomain,
    Ranks,
)
from services.scheduler.core.two_level.network import Dispatch, InterDomain, check_policy, dispatch
from services.scheduler.core.two_level.summary import summarise
from services.scheduler.core.two_level.tally import Tally

__all__ = [
    "ANY",
    "MOST_ROUNDS",
    "Answer",
    "Assignment",
    "Constraints",
    "Coordinated",
    "Dispatch",
    "DomainSummary",
    "HandingDomain",
    "InterDomain",
    "IntraDomain",
    "LocalDomain",
    "Ranks",
    "Tally",
    "check_policy",
    "coordinate",
    "dispatch",
    "greatest_drop",
    "place_in_domain",
    "summarise",
]
