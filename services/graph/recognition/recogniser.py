"""Keeps the windows of the domains that this process follows, and asks the model after each observation.

The model may be missing, slow or fail: then nobody has an opinion, and the rules serve. A model that took longer than it
may is left alone for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meridian.clock import Clock
from meridian.contracts.resource.v1 import resource_pb2
from services.graph.facts import POWER_STATE_LABEL, DomainFacts, Figures
from services.graph.node_state import Incident
from services.graph.recognition.features import sample_numbers
from services.graph.recognition.judgement import Leaning, Opinion
from services.graph.recognition.model import NodeStateModel
from services.graph.recognition.neighbourhood import SITE_LINKS_LABEL, SWITCH_LABEL, Place, neighbourhood_of
from services.graph.recognition.windows import Windows

_log = logging.getLogger(__name__)
# The network never saw a shorter window in training.
LEAST_SAMPLES = 3
PAUSE_S = 60.0


@dataclass(slots=True)
class Followed:
    """One domain: its windows, what the model says of its nodes and has said before."""

    windows: Windows = field(default_factory=Windows)
    opinions: Mapping[str, Opinion] = field(default_factory=dict)
    leanings: Mapping[str, Leaning] = field(default_factory=dict)
    # Of each node its sample, and what that was made of: figures are replaced when a reading changes.
    samples: dict[str, tuple[Figures, tuple[float, bool, bool], list[float]]] = field(default_factory=dict)

    @property
    def begins(self) -> bool:
        """The window is shorter than the model may be asked about."""
        return self.windows.count < LEAST_SAMPLES

    def samples_of(self, facts: DomainFacts, nodes: Sequence[resource_pb2.NodeInventory]) -> dict[str, list[float]]:
        """The sample of each node now; that of the observation before where nothing of it changed."""
        self.samples = {node.node_id: self._sampled(facts, node) for node in nodes}
        return {node_id: found for node_id, (_, _, found) in self.samples.items()}

    def _sampled(
        self, facts: DomainFacts, node: resource_pb2.NodeInventory
    ) -> tuple[Figures, tuple[float, bool, bool], list[float]]:
        node_id = node.node_id
        peaks = [item.peak_flops for item in node.accelerators]
        incident = facts.incidents.get(node_id)
        figures = facts.figures(node_id)
        beside = (
            sum(peaks) / len(peaks) if peaks else 0.0,
            node.labels.get(POWER_STATE_LABEL, "") == "asleep",
            incident is not None and incident.incident is not Incident.NONE,
        )
        known = self.samples.get(node_id)
        if known is not None and known[0] is figures and known[1] == beside:
            return known
        peak_flops, asleep, suspected = beside
        readings = facts.readings.get(node_id, {})
        return figures, beside, sample_numbers(readings, peak_flops, asleep=asleep, suspected=suspected)


class Recogniser:
    """``model`` None: no opinions, only rules."""

    def __init__(self, model: NodeStateModel | None, clock: Clock, slowest_s: float) -> None:
        self._model = model
        self._clock = clock
        self._slowest_s = slowest_s
        self._paused_until_s = 0.0
        self._domains: dict[str, Followed] = {}
        self.took_s = 0.0

    @property
    def name(self) -> str:
        """Of the model; empty without one."""
        return self._model.card.name if self._model is not None else ""

    def look(self, facts: DomainFacts) -> Followed | None:
        """Opinions on the domain as of its newest observation; None without a model. Repeating it changes nothing."""
        if self._model is None or facts.inventory is None:
            return None
        followed = self._domains.setdefault(facts.domain_id, Followed())
        nodes = list(facts.inventory.nodes)
        if not followed.windows.add(facts.observed_at_s, followed.samples_of(facts, nodes)):
            return followed
        followed.opinions = {}
        now_s = self._clock.monotonic_s()
        if nodes and not followed.begins and now_s >= self._paused_until_s:
            followed.opinions = self._ask(self._model, followed.windows, nodes)
            followed.leanings = {
                node_id: followed.leanings.get(node_id, Leaning()).then(opinion)
                for node_id, opinion in followed.opinions.items()
            }
        return followed

    def opinion(self, domain_id: str, node_id: str) -> Opinion | None:
        """What the model said last of a node; None where this process does not follow its domain, or nothing was said yet."""
        followed = self._domains.get(domain_id)
        return followed.opinions.get(node_id) if followed is not None else None

    def _ask(
        self, model: NodeStateModel, windows: Windows, nodes: list[resource_pb2.NodeInventory]
    ) -> dict[str, Opinion]:
        node_ids = [node.node_id for node in nodes]
        began_s = self._clock.monotonic_s()
        answer = model.answer(windows.of(node_ids), neighbourhood_of([place_of(node) for node in nodes]))
        self.took_s = self._clock.monotonic_s() - began_s
        if self.took_s > self._slowest_s:
            self._paused_until_s = self._clock.monotonic_s() + PAUSE_S
            _log.warning("the model of node states took %.3f s for %d nodes; rules serve", self.took_s, len(nodes))
        likeliest = answer.probabilities.argmax(axis=1)
        return {
            node_id: Opinion(model.card.classes[best], float(row[best]), float(load))
            for node_id, best, row, load in zip(
                node_ids, likeliest.tolist(), answer.probabilities, answer.load, strict=True
            )
        }


def place_of(node: resource_pb2.NodeInventory) -> Place:
    """Where the node stands, by its site and its labels ``switch`` and ``site_links`` (names of sites, by commas)."""
    links = node.labels.get(SITE_LINKS_LABEL, "")
    names = tuple(name.strip() for name in links.split(",") if name.strip())
    return Place(node.site, node.labels.get(SWITCH_LABEL, ""), names)
