"""The judges of `services.graph.image`: one that has heard the model, and one for moments at which it has not."""

from __future__ import annotations

from collections.abc import Mapping

from services.graph.facts import Decided
from services.graph.image import DomainImage
from services.graph.node_state import Assessment, NodeState, Rule
from services.graph.recognition.judgement import ALARMS, BY_MODEL, FACTS, Leaning, judged
from services.graph.recognition.recogniser import Followed

_STATES = {rule: state for state, rule in BY_MODEL.items()}


class Heard:
    """Decides by rule and model after an observation."""

    def __init__(self, followed: Followed, name: str) -> None:
        self._followed = followed
        self._name = name

    def decide(self, node_id: str, rule: Assessment, before: Decided | None) -> Assessment:
        """See `judged`."""
        opinion = self._followed.opinions.get(node_id)
        leaning = self._followed.leanings.get(node_id, Leaning())
        return judged(rule, opinion, leaning, before.rule if before is not None else None, self._name)

    def expected_load(self, node_id: str) -> float | None:
        """What the model expects."""
        opinion = self._followed.opinions.get(node_id)
        return round(opinion.load, 4) if opinion is not None else None


class Standing:
    """What the model decided stands until it is heard again, unless a fact or the node's own poor health contradicts."""

    def __init__(self, decided: Mapping[str, Decided], published: DomainImage) -> None:
        self._decided = decided
        self._published = published

    def decide(self, node_id: str, rule: Assessment, before: Decided | None) -> Assessment:
        """The state before, or what contradicts it."""
        state: NodeState | None = _STATES.get(before.rule) if before is not None else None
        if before is None or state is None or rule.rule in FACTS:
            return rule
        if rule.rule is Rule.HEALTH_POOR and state not in ALARMS:
            return rule
        return Assessment(state, before.rule, before.reason)

    def expected_load(self, node_id: str) -> float | None:
        """As it was published."""
        node = self._published.nodes.get(node_id)
        return node.expected_load if node is not None and node.HasField("expected_load") else None
