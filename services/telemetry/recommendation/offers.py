"""Offers against a requirement: which fit, in which order, and why.

An offer fits when its chip is known, can compute at the precision asked for, has enough accelerators for the memory and
the rate needed, and is within the round trip and the price allowed. Those that fit stand before those that do not; among
them the score is a weighted sum of four shares between 0 and 1, each relative to the best offer that fits: speed (index x
accelerators used), price (cheapest per unit of work / this), distance (1 ms / (1 ms + round trip)), availability (share
of the type that is free). What is not known counts half, and says so; so do prices in another currency than most.
The price allowed is in the currency of most offers; a price in another one is not held against it, and says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meridian.hardware import Chip
from services.telemetry.index import features
from services.telemetry.index.served import Entry
from services.telemetry.recommendation.profiles import GIBI, TRAINED, Requirement

USABLE_MEMORY = 0.9
"""Share of a chip's memory that a program gets; the rest is the runtime's."""
SUSTAINED = 0.35
"""Share of peak that is reached in the long run; training reports of large models lie between 0.3 and 0.6."""
_UNKNOWN = 0.5
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Offer:
    """Accelerators of one type in one domain; ``chip`` and ``entry`` are None when the type is not known. ``memory_bytes`` is
    what each of them has at least, as the domain says; None: it does not, and the catalogue's counts."""

    domain_id: str
    accelerator: str
    chip: Chip | None
    entry: Entry | None
    available: int
    total: int
    price_per_accelerator_hour: float | None
    currency: str = ""
    round_trip_s: float | None = None
    reachable: bool = True
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Ranked:
    """An offer in its place; ``score`` is None when it does not fit, and ``reasons`` say why it stands where it does."""

    offer: Offer
    fits: bool
    accelerators: int | None
    score: float | None
    price_per_hour: float | None
    reasons: tuple[str, ...]

    def body(self) -> dict[str, Any]:
        """As JSON."""
        entry = self.offer.entry
        return {
            "domain_id": self.offer.domain_id,
            "accelerator": self.offer.accelerator,
            "chip_id": self.offer.chip.id if self.offer.chip else None,
            "fits": self.fits,
            "score": None if self.score is None else round(self.score, 4),
            "accelerators": self.accelerators,
            "price_per_hour": self.price_per_hour,
            "currency": self.offer.currency,
            "index": round(entry.index, 4) if entry else None,
            "index_low": round(entry.low, 4) if entry else None,
            "index_high": round(entry.high, 4) if entry else None,
            "reasons": list(self.reasons),
        }


def ranked(requirement: Requirement, offers: Sequence[Offer]) -> list[Ranked]:
    """All offers, best first; those that do not fit last, in the order of their domains."""
    fitting: list[tuple[Offer, int, list[str]]] = []
    others: list[Ranked] = []
    limited = _common_currency(offers)
    for offer in offers:
        count, reasons, obstacles = _examined(requirement, offer, limited)
        if obstacles or count is None:
            others.append(Ranked(offer, False, count, None, None, (*obstacles, *reasons)))
        else:
            fitting.append((offer, count, reasons))
    speeds = [_speed(offer, count) for offer, count, _ in fitting]
    currency = _common_currency([offer for offer, _, _ in fitting])
    costs = [_cost(offer) if offer.currency == currency else None for offer, _, _ in fitting]
    fastest = max((speed for speed in speeds if speed), default=None)
    cheapest = min((cost for cost in costs if cost is not None), default=None)
    placed = []
    for (offer, count, reasons), speed, cost in zip(fitting, speeds, costs, strict=True):
        shares = {
            "speed": speed / fastest if speed and fastest else _UNKNOWN,
            "price": _UNKNOWN if cost is None or cheapest is None else 1.0 if cost == 0 else cheapest / cost,
            "distance": _UNKNOWN if offer.round_trip_s is None else 1e-3 / (1e-3 + offer.round_trip_s),
            "availability": offer.available / offer.total if offer.total else 0.0,
        }
        score = sum(requirement.weights[name] * share for name, share in shares.items())
        said = ", ".join(f"{name} {share:.2f} x {requirement.weights[name]:g}" for name, share in shares.items())
        price = None if offer.price_per_accelerator_hour is None else count * offer.price_per_accelerator_hour
        if price is not None and offer.currency != currency:
            reasons.append(f"its price in {offer.currency or 'no currency'} cannot be compared, which counts half")
        placed.append(Ranked(offer, True, count, score, price, (*reasons, f"score {score:.3f} = {said}")))
    placed.sort(key=lambda each: (-(each.score or 0.0), each.offer.domain_id, each.offer.accelerator))
    others.sort(key=lambda each: (each.offer.domain_id, each.offer.accelerator))
    return [*placed, *others]


def _sized(offer: Offer, chip: Chip, memory: float) -> str:
    """What is to be said of the memory that was counted with."""
    if offer.memory_bytes is not None:
        return f" of {memory / GIBI:.4g} GiB" if chip.members else ""
    return f", which may have {memory / GIBI:g} GiB only" if memory < 0.99 * (chip.memory_bytes or memory) else ""


def _examined(requirement: Requirement, offer: Offer, currency: str) -> tuple[int | None, list[str], list[str]]:
    """How many accelerators are needed, what speaks for the offer, and what stands against it. ``currency``: of the limit."""
    reasons: list[str] = []
    obstacles: list[str] = []
    chip, entry = offer.chip, offer.entry
    if not offer.reachable:
        obstacles.append("the domain is not reachable")
    if chip is None:
        return None, reasons, [*obstacles, f"{offer.accelerator!r} is not in the catalogue, so nothing is known of it"]
    count = max(1, requirement.accelerators or 1)
    if requirement.memory_bytes is not None:
        memory = offer.memory_bytes or chip.least_memory_bytes
        if memory is None:
            return None, reasons, [*obstacles, f"the memory of {chip.name} is not known"]
        needed = _whole(requirement.memory_bytes / (USABLE_MEMORY * memory))
        reasons.append(
            f"{requirement.memory_bytes / GIBI:.1f} GiB fit on {needed} x {chip.name}{_sized(offer, chip, memory)}"
        )
        count = max(count, needed)
    # Elsewhere narrow numbers are kept, and widened before they are multiplied.
    own = requirement.precision == "fp64" or (requirement.precision == "fp8" and requirement.kind in TRAINED)
    peak = chip.peak_flops(requirement.precision) if own else features.peak_flops(chip, requirement.precision)
    if peak is None:
        obstacles.append(f"no rate at {requirement.precision} is known of {chip.name}")
    elif requirement.flops is not None:
        needed = _whole(requirement.flops / (SUSTAINED * peak))
        reasons.append(f"{requirement.flops:.3g} FLOP/s need {needed} at {SUSTAINED:.0%} of peak")
        count = max(count, needed)
    if count > offer.total:
        obstacles.append(f"{count} accelerators are needed, the domain has {offer.total}")
    elif count > offer.available:
        obstacles.append(f"{count} accelerators are needed, {offer.available} of {offer.total} are free now")
    limit = requirement.max_round_trip_s
    if limit is not None and offer.round_trip_s is not None and offer.round_trip_s > limit:
        obstacles.append(f"its round trip of {offer.round_trip_s * 1e3:.1f} ms is above {limit * 1e3:g} ms")
    price, most = offer.price_per_accelerator_hour, requirement.max_price_per_hour
    if most is not None and price is not None and offer.currency != currency:
        named = offer.currency or "of no currency"
        limit_in = currency or "no currency"
        reasons.append(f"{count * price:g} {named} an hour cannot be compared with the limit, which is in {limit_in}")
    elif most is not None and price is not None and count * price > most:
        obstacles.append(f"{count * price:g} an hour is above {most:g}")
    if entry is not None:
        reasons.append(
            f"{entry.index:.2f} x the reference at {entry.task} in {entry.precision} "
            f"({entry.low:.2f} to {entry.high:.2f}; {entry.basis})"
        )
    reasons += [
        f"its {name} is not known, which counts half"
        for name, value in (("price", price), ("round trip", offer.round_trip_s))
        if value is None
    ]
    return count, reasons, obstacles


def _whole(amount: float) -> int:
    """So many accelerators; a quotient misses a whole number by its rounding."""
    return math.ceil(amount * (1 - _ROUNDING))


def _speed(offer: Offer, count: int) -> float | None:
    return offer.entry.index * count if offer.entry else None


def _common_currency(offers: Sequence[Offer]) -> str:
    """The currency of most prices, as the scheduler compares them; of several the first by name."""
    counts = Counter(offer.currency for offer in offers if offer.price_per_accelerator_hour is not None)
    return min(counts, key=lambda name: (-counts[name], name), default="")


def _cost(offer: Offer) -> float | None:
    """Price per unit of work."""
    if offer.price_per_accelerator_hour is None or offer.entry is None:
        return None
    return offer.price_per_accelerator_hour / offer.entry.index
