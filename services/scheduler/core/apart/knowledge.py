"""What a shard knows of all domains when a unit waits: what they told of themselves, how they stand, why they refused it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.scheduler.core.apart.rounds import Link
from services.scheduler.core.state import Demand
from services.scheduler.core.two_level import DomainSummary, InterDomain

_DIGITS = 9
SILENT = "it has not answered in time and counts as full until it tells something"
UNSPOKEN = "it has not been spoken to yet"


@dataclass(frozen=True, slots=True)
class KnownDomain:
    """A domain for one class of units. ``ranks_that_fit`` is by its last summary, less what was given away since; ``score`` and
    ``parts`` are those of domains (0-1 each). ``rejected`` names the filter that keeps the class out, ``refused`` says why it
    refused this unit when it was asked last, ``state`` why it is not asked now; each is empty where nothing is."""

    domain_id: str
    summary: DomainSummary
    ranks_that_fit: int
    score: float
    parts: Mapping[str, float]
    rejected: str = ""
    refused: str = ""
    state: str = ""

    def as_json(self) -> dict[str, Any]:
        """As a row of an explanation."""
        told = self.summary
        return {
            "place": self.domain_id,
            "score": round(self.score, _DIGITS),
            "ranks_that_fit": self.ranks_that_fit,
            "parts": {name: round(value, _DIGITS) for name, value in self.parts.items()},
            "told": {
                "accelerators_free": sum(told.free_devices.values()),
                "accelerators": sum(told.total_devices.values()),
                "largest_block": told.largest_block,
                "cpus_free": told.free_cpus,
                "cpus": told.total_cpus,
                "memory_bytes_free": told.free_memory_bytes,
                "running": told.running,
                "own_scheduler": told.own_scheduler,
            },
            "rejected": self.rejected,
            "refused": self.refused,
            "state": self.state,
        }


def known_of(
    inter: InterDomain, links: Mapping[str, Link], demand: Demand, refusals: Mapping[str, str]
) -> list[KnownDomain]:
    """All domains for a class, those with most to offer first: with room for all ranks, with some, by score."""
    explanation = inter.explain(demand)
    domains = explanation.domains
    rejected = {
        domain_id: f"{item.filter}: {reason}" for item in explanation.rejections for domain_id, reason in item.examples
    }
    rows = []
    for place, name in enumerate(domains.places):
        link = links.get(name)
        state = UNSPOKEN if link is None or not link.begun else SILENT if link.silent else ""
        rows.append(
            KnownDomain(
                name,
                inter.summaries[name],
                int(domains.fits[place]),
                float(domains.totals[place]),
                dict(zip(domains.plugins, [part.item(place) for part in domains.parts], strict=True)),
                rejected.get(name, ""),
                refusals.get(name, ""),
                state,
            )
        )
    wanted = demand.ranks
    rows.sort(key=lambda row: (-min(row.ranks_that_fit, wanted), -row.score, row.domain_id))
    return rows
