"""Explanations: why here, why not there, why waiting. Values first; JSON only when somebody reads them.

What is shown suffices to make the choice again (`rederive`): the chosen place and the best one that was not chosen always
stand in it, with the value of each plugin, its weight and the room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.scheduler.core.table import Floats, Ints

_DIGITS = 9
_TIE = 1e-6
"""Scores that differ by less are equal: what is shown is rounded, and sums of fractions are not exact."""

MOVED = "moved to other nodes"
"""How reasons begin of units that lose their nodes and are given others at once."""

STAGES = {
    "plan": "the planner",
    "scores": "the scores",
    "preemption": "room made by taking others off",
    "fleet": "no node is known",
    "filters": "no node qualifies",
    "size": "it is larger than what there is",
    "capacity": "there is no room",
    "reservation": "what is free is reserved",
    "limit": "a limit or quota",
    "order": "its place in the order",
}


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
            "score": round(self.score, _DIGITS),
            "ranks_that_fit": self.ranks_that_fit,
            "parts": {name: round(value, _DIGITS) for name, value in self.parts},
        }


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Scores as they stood when the decision was made: ``parts`` (one array of places per plugin), ``totals`` and ``fits`` (places).
    ``ranks`` are those wanted."""

    places: Sequence[str]
    plugins: Sequence[str]
    parts: Sequence[Floats] | Floats
    totals: Floats
    fits: Ints
    ranks: int = 1

    @property
    def feasible(self) -> int:
        """Number of places with room for all ranks."""
        return int(np.count_nonzero(self.fits >= self.ranks))

    def top(self, limit: int, first: Iterable[int] = ()) -> tuple[Candidate, ...]:
        """Places with room: those of ``first`` as they come, then with room for all ranks before others, best first.

        At least one that is not in ``first`` is there if any has room.
        """
        order = list(first)
        order += self._best(max(limit - len(order), 1), order)
        return tuple([self._candidate(place) for place in order])

    def _best(self, count: int, but: Sequence[int]) -> list[int]:
        """So many places with room; of equal ones the first."""
        room = self.fits > 0
        room[but] = False
        places = room.nonzero()[0]
        enough = places[self.fits[places] >= self.ranks]
        if len(enough) >= count:
            # The best of them alone are sorted, with all that are as good as the last.
            totals = self.totals[enough]
            least = np.partition(totals, len(enough) - count)[len(enough) - count]
            places = enough[totals >= least]
        order = np.lexsort((-self.totals[places], self.fits[places] < self.ranks))
        found: list[int] = places[order[:count]].tolist()
        return found

    def _candidate(self, place: int) -> Candidate:
        parts = tuple(zip(self.plugins, [part.item(place) for part in self.parts], strict=True))
        return Candidate(self.places[place], self.totals.item(place), self.fits.item(place), parts)


NO_RANKING = Ranking((), (), (), np.zeros(0), np.zeros(0, np.int64))
"""Of an explanation for which nobody judged places."""


def best_of(rankings: Sequence[Ranking]) -> Ranking:
    """One ranking of the same places out of several (one per accelerator model): each place as it looks at its best,
    that is with room for all ranks before some before none, then by score."""
    first = rankings[0]
    if len(rankings) == 1:
        return first
    totals = np.stack([item.totals for item in rankings])
    fits = np.stack([item.fits for item in rankings])
    room = (fits > 0).astype(np.int64) + (fits >= first.ranks)
    chosen = np.where(room == room.max(axis=0), totals, -np.inf).argmax(axis=0)
    places = np.arange(len(first.places))
    parts = [np.stack(values)[chosen, places] for values in zip(*[item.parts for item in rankings], strict=True)]
    return Ranking(first.places, first.plugins, parts, totals[chosen, places], fits[chosen, places], first.ranks)


@dataclass(frozen=True, slots=True, eq=False)
class NodeChoice:
    """The nodes of one domain: ``chosen`` are (place in the ranking, ranks) in the order in which they were taken, ``weights``
    those of the ranking's plugins in this domain. Places that were out of the question have no room in the ranking."""

    domain: str
    ranking: Ranking
    chosen: tuple[tuple[int, int], ...]
    weights: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """One decision about one class of units, on one state of the fleet. ``weights`` are those of all score plugins.

    ``everywhere`` are values that count for every domain alike, ``sets`` the sets of domains that were compared when no
    domain has room for all ranks. ``found`` is what was found about room: when ``blocked`` is something else, it came from
    a limit. ``stage`` is one of `STAGES`.
    """

    policy_version: str
    considered: int
    rejections: tuple[Rejection, ...]
    weights: Sequence[tuple[str, float]]
    domains: Ranking
    nodes: tuple[NodeChoice, ...] = ()
    chosen: str = ""
    score: float = 0.0
    blocked: str = ""
    shown: int = 5
    everywhere: tuple[tuple[str, float], ...] = ()
    sets: tuple[Candidate, ...] = ()
    found: str = ""
    found_stage: str = ""

    @property
    def reason(self) -> str:
        """One sentence."""
        if self.blocked:
            return self.blocked
        if self.sets:
            return f"{self.chosen}: score {self.score:.2f}, no domain alone has room for {self.domains.ranks} ranks"
        others = self.domains.feasible - 1
        against = f"best of {others + 1} domains with room" if others > 0 else "the only domain with room"
        return f"{self.chosen}: score {self.score:.2f}, {against}"

    @property
    def stage(self) -> str:
        """What decided."""
        if not self.blocked:
            return "scores"
        decided_by_others = self.found_stage in {"order", "plan"}
        return self.found_stage if decided_by_others or self.blocked == self.found else "limit"

    def as_json(self) -> dict[str, Any]:
        """The explanation as an object; filters that rejected nothing are left out."""
        domains = self.domains
        at = [domains.places.index(self.chosen)] if self.chosen in domains.places else []
        body: dict[str, Any] = {
            "reason": self.reason,
            "stage": self.stage,
            "policy_version": self.policy_version,
            "ranks": domains.ranks,
            "nodes_considered": self.considered,
            "filters": [rejection.as_json() for rejection in self.rejections if rejection.rejected],
            "weights": dict(self.weights),
            "domains": [candidate.as_json() for candidate in domains.top(self.shown, at)],
        }
        if self.blocked and self.blocked != self.found and self.found:
            body["room"] = self.found
        if self.everywhere:
            body["everywhere"] = {name: round(value, _DIGITS) for name, value in self.everywhere}
        if self.sets:
            body["sets"] = [candidate.as_json() for candidate in self.sets]
        if self.nodes:
            self._add_nodes(body)
        if self.chosen:
            body["chosen"] = {"place": self.chosen, "score": round(self.score, _DIGITS)} | body.get("chosen", {})
        return body

    def _add_nodes(self, body: dict[str, Any]) -> None:
        """Nodes of each domain: the first that were taken, then the best others."""
        weights = dict(self.weights)
        shown: list[dict[str, Any]] = []
        taken: dict[str, int] = {}
        for item in self.nodes:
            first = item.chosen[: self.shown]
            for candidate in item.ranking.top(max(self.shown, len(first) + 1), [place for place, _ in first]):
                entry = candidate.as_json()
                if len(self.nodes) > 1:
                    entry["domain"] = item.domain
                shown.append(entry)
            taken.update({item.ranking.places[place]: ranks for place, ranks in first})
            own = dict(zip(item.ranking.plugins, item.weights.tolist(), strict=True))
            if any(weights.get(name) != weight for name, weight in own.items()):
                body.setdefault("node_weights", {})[item.domain] = own
        body["nodes"] = shown
        body["chosen"] = {
            "nodes": taken,
            "nodes_taken": sum(len(item.chosen) for item in self.nodes),
            "ranks": {item.domain: item.ranking.ranks for item in self.nodes},
        }


def with_cause(body: dict[str, Any], plan: str, preempted: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A printed explanation of a placement with what led to it: a planner's reason (empty: no planner), and the units, each
    with the reason, that were taken off for it."""
    if preempted:
        body["stage"] = "preemption"
        body["preempted"] = [{"unit": unit, "reason": reason} for unit, reason in preempted]
    if plan:
        body["stage"], body["plan"] = "plan", plan
    return body


@dataclass(frozen=True, slots=True)
class Rederived:
    """What `rederive` found: the place, and (node, ranks) in the order in which they are taken (the first of many)."""

    place: str
    nodes: tuple[tuple[str, int], ...]


def rederive(body: Mapping[str, Any]) -> Rederived:
    """Make the choice again out of nothing but a printed explanation of a placement.

    Steps:
    1. Among the domains shown with room for all ranks, the greatest weighted sum of the parts; where sets of domains are
       shown, the fewest domains, then the greatest sum.
    2. In each chosen domain, until all ranks have a node: the best node that holds all that are left, else the best of those
       that hold most. Only as many nodes are taken as are shown as taken.
    Of equal ones the first shown. ValueError when nothing shown has room.
    """
    weights, wanted = body["weights"], body["ranks"]
    if "sets" in body:
        least = min(item["place"].count("+") for item in body["sets"])
        places = [item for item in body["sets"] if item["place"].count("+") == least]
    else:
        places = [item for item in body["domains"] if item["ranks_that_fit"] >= wanted]
    place = _best(places, weights)["place"]
    taken: list[tuple[str, int]] = []
    chosen = body.get("chosen", {})
    for domain, ranks in chosen.get("ranks", {}).items():
        nodes = [item for item in body["nodes"] if item.get("domain", domain) == domain]
        names = {item["place"] for item in nodes}
        left, steps = ranks, sum(name in names for name in chosen["nodes"])
        while left and steps:
            enough = [item for item in nodes if item["ranks_that_fit"] >= left]
            most = max((item["ranks_that_fit"] for item in nodes), default=0)
            room = enough or [item for item in nodes if item["ranks_that_fit"] == most]
            best = _best(room, body.get("node_weights", {}).get(domain, weights))
            count = min(best["ranks_that_fit"], left)
            taken.append((best["place"], count))
            nodes = [item for item in nodes if item is not best]
            left -= count
            steps -= 1
    return Rederived(place, tuple(taken))


def _best(places: Sequence[Mapping[str, Any]], weights: Mapping[str, float]) -> Mapping[str, Any]:
    if not places:
        raise ValueError("the explanation shows no place with room")
    sums = [weighed(item, weights) for item in places]
    most = max(sums)
    return next(item for item, total in zip(places, sums, strict=True) if total >= most - _TIE)


def weighed(place: Mapping[str, Any], weights: Mapping[str, float]) -> float:
    """The weighted sum of the parts of a place that is shown."""
    return sum(float(weights.get(name, 0.0)) * float(value) for name, value in place["parts"].items())


def sentences(body: Mapping[str, Any]) -> list[str]:
    """A printed explanation in plain words, most important first; every number in them stands in ``body`` too."""
    out = [_upper(body["reason"]) + "."]
    out += [f"{item['rejected']} nodes: {_filter_said(item)}." for item in body.get("filters", [])]
    chosen = body.get("chosen")
    compared = body.get("sets") or body.get("domains", [])
    if chosen and compared:
        best = next((item for item in compared if item["place"] == chosen["place"]), None)
        rest = [item for item in compared if item is not best]
        rival = next((item for item in rest if "sets" in body or item["ranks_that_fit"] >= body["ranks"]), None)
        if best is not None and rival is not None:
            out.append(_versus(best, rival, body["weights"]))
        short = [item for item in rest if "sets" not in body and item["ranks_that_fit"] < body["ranks"]]
        better = [item for item in short if best is not None and item["score"] > best["score"]]
        out += [
            f"{item['place']} scores more ({item['score']:.2f}) but has room for {item['ranks_that_fit']} of "
            f"{body['ranks']} ranks."
            for item in better[:2]
        ]
    if body.get("room"):
        out.append(f"Room: {body['room']}.")
    for victim in body.get("preempted", ()):
        what = MOVED if victim["reason"].startswith(MOVED) else "taken off"
        out.append(f"For it {victim['unit']} was {what}.")
    if body.get("woken"):
        woken = body["woken"]
        out.append(
            f"It fits only where nodes sleep: {', '.join(woken['nodes'])} woken, in about {woken['wake_s']:g} s."
        )
    out += [f"{item['field']} is passed over: {item['why']}." for item in body.get("passed_over", ())]
    if body.get("plan"):
        out.append(f"The plan says: {body['plan']}.")
    out.append(f"Decided by {STAGES.get(body['stage'], body['stage'])}, policy {body['policy_version']}.")
    return out


def _versus(best: Mapping[str, Any], rival: Mapping[str, Any], weights: Mapping[str, float]) -> str:
    gains = {
        name: float(weights.get(name, 0.0)) * (value - rival["parts"].get(name, 0.0))
        for name, value in best["parts"].items()
    }
    up = sorted((name for name in gains if gains[name] > _TIE), key=lambda name: -gains[name])
    down = sorted((name for name in gains if gains[name] < -_TIE), key=lambda name: gains[name])
    text = f"{best['place']} {best['score']:.2f} against {rival['place']} {rival['score']:.2f}"
    if up:
        text += ": ahead by " + ", ".join(f"{name} (+{gains[name]:.2f})" for name in up[:3])
    if down:
        text += ("; " if up else ": ") + "behind by " + ", ".join(f"{name} ({gains[name]:.2f})" for name in down[:3])
    return text + ("." if up or down else ": equal, the first in order is taken.")


def _filter_said(item: Mapping[str, Any]) -> str:
    reasons = list(dict.fromkeys(node["reason"] for node in item["nodes"]))
    return f"filter {item['filter']}" + (f" ({'; '.join(reasons[:2])})" if reasons else "")


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:] if text else text
