"""Explanations: why here, why not there, why waiting. Values first; JSON only when somebody reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.scheduler.core.table import Floats, Ints


@dataclass(frozen=True, slots=True)
class Rejection:
    """What a filter did to the nodes that earlier filters had left; ``examples`` gives reasons for some of them."""

    filter: str
    rejected: int
    examples: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, Any]:
        nodes = [{"node_id": node_id, "reason": reason} for node_id, reason in self.examples]
        return {"filter": self.filter, "rejected": self.rejected, "nodes": nodes}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place that was considered: ``parts`` are the plugins' values in 0-1; the score is their weighted sum."""

    place: str
    score: float
    ranks_that_fit: int
    parts: tuple[tuple[str, float], ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "place": self.place,
            "score": round(self.score, 4),
            "ranks_that_fit": self.ranks_that_fit,
            "parts": {name: round(value, 4) for name, value in self.parts},
        }


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Scores as they stood when the decision was made: ``parts`` (plugins, places), ``totals`` and ``fits`` (places)."""

    places: Sequence[str]
    plugins: Sequence[str]
    parts: Floats
    totals: Floats
    fits: Ints

    @property
    def feasible(self) -> int:
        """Number of places with room for at least one rank."""
        return int(np.count_nonzero(self.fits))

    def top(self, limit: int) -> tuple[Candidate, ...]:
        """The best places with room, best first."""
        totals, fits, parts = self.totals.tolist(), self.fits.tolist(), self.parts.T.tolist()
        order = sorted((place for place, fit in enumerate(fits) if fit > 0), key=lambda place: -totals[place])
        return tuple(
            Candidate(
                self.places[place], totals[place], fits[place], tuple(zip(self.plugins, parts[place], strict=True))
            )
            for place in order[:limit]
        )


def best_of(rankings: Sequence[Ranking]) -> Ranking:
    """One ranking of the same places out of several (one per accelerator model): each place as it looks at its best,
    that is with room before without, then by score."""
    first = rankings[0]
    if len(rankings) == 1:
        return first
    totals = np.stack([item.totals for item in rankings])
    fits = np.stack([item.fits for item in rankings])
    chosen = np.where(fits > 0, totals, -np.inf).argmax(axis=0)
    places = np.arange(len(first.places))
    parts = np.stack([item.parts for item in rankings])[chosen, :, places].T
    return Ranking(first.places, first.plugins, parts, totals[chosen, places], fits[chosen, places])


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """One decision about one class of units, on one state of the fleet. ``weights`` are those of all score plugins."""

    policy_version: str
    considered: int
    rejections: tuple[Rejection, ...]
    weights: Sequence[tuple[str, float]]
    domains: Ranking
    nodes: Ranking | None = None
    chosen: str = ""
    score: float = 0.0
    blocked: str = ""
    shown: int = 5

    @property
    def reason(self) -> str:
        """One sentence."""
        if self.blocked:
            return self.blocked
        others = self.domains.feasible - 1
        against = f"best of {others + 1} domains with room" if others > 0 else "the only domain with room"
        return f"{self.chosen}: score {self.score:.2f}, {against}"

    def as_json(self) -> dict[str, Any]:
        """The explanation as an object; filters that rejected nothing are left out."""
        body: dict[str, Any] = {
            "reason": self.reason,
            "policy_version": self.policy_version,
            "nodes_considered": self.considered,
            "filters": [rejection.as_json() for rejection in self.rejections if rejection.rejected],
            "weights": dict(self.weights),
            "domains": [candidate.as_json() for candidate in self.domains.top(self.shown)],
        }
        if self.nodes is not None:
            body["nodes"] = [candidate.as_json() for candidate in self.nodes.top(self.shown)]
        if self.chosen:
            body["chosen"] = {"place": self.chosen, "score": round(self.score, 4)}
        return body
