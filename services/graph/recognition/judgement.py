"""Rule and model together decide the state of a node. Pure: what both say and what was decided before in, a decision out.

1. Facts decide alone: what failover declared, a silent domain, a declared sleep, health 0, bad or old readings.
2. Where no model answers, or it is unsure, the rule decides. It is unsure below the confidence `Limits.sure`, and to raise an
   alarm that no rule raises below `Limits.certain`: false alarms cost more than late ones.
3. Where both name the same state, the rule decides, and its reason says that the model agrees.
4. Otherwise the model decides, once it has said the same thing often enough: to raise an alarm once, to end one `Limits.calm`
   times in a row (whatever else it names), else twice. Until then what was decided stands, also against an unsure word.
5. The model alone takes no node out of service: unreachable and asleep it cannot give (failover and the declaration do), and
   failing counts as degraded unless the node itself reports poor health.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.graph.node_state import Assessment, NodeState, Rule

FACTS = frozenset(
    {
        Rule.DECLARED_DEAD,
        Rule.SUSPECTED,
        Rule.DOMAIN_SILENT,
        Rule.ASLEEP,
        Rule.HEALTH_FAILED,
        Rule.BAD_READINGS,
        Rule.OLD_READINGS,
    }
)
BY_MODEL = {
    NodeState.HEALTHY: Rule.MODEL_HEALTHY,
    NodeState.BUSY: Rule.MODEL_BUSY,
    NodeState.DEGRADED: Rule.MODEL_DEGRADED,
    NodeState.FAILING: Rule.MODEL_FAILING,
}
_STATE_BY_RULE = {rule: state for state, rule in BY_MODEL.items()}
ALARMS = frozenset({NodeState.DEGRADED, NodeState.FAILING})


@dataclass(frozen=True, slots=True)
class Limits:
    """Confidence from which the model is heard, that from which it may raise an alarm alone, how often one must be called off."""

    sure: float = 0.6
    certain: float = 0.9
    calm: int = 3


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the model says of a node now: the likeliest state with its probability, and the load one interval later, 0-1."""

    state: NodeState
    confidence: float
    load: float


@dataclass(frozen=True, slots=True)
class Leaning:
    """What the model has said last, and how often in a row; ``calm``: how often in a row it surely named no alarm, or was unsure."""

    state: NodeState = NodeState.UNSPECIFIED
    times: int = 0
    calm: int = field(default=0, compare=False)

    def then(self, opinion: Opinion, limits: Limits | None = None) -> Leaning:
        """After one more opinion; an unsure one counts as no state."""
        sure = opinion.confidence >= (limits or Limits()).sure
        state = opinion.state if sure else NodeState.UNSPECIFIED
        return Leaning(state, self.times + 1 if state is self.state else 1, 0 if state in ALARMS else self.calm + 1)


def judged(
    rule: Assessment,
    opinion: Opinion | None,
    leaning: Leaning,
    before: Rule | None,
    name: str = "model",
    limits: Limits | None = None,
) -> Assessment:
    """The decision. ``leaning`` counts ``opinion`` already; ``before``: the rule in force; ``name`` of the model."""
    limits = limits or Limits()
    if rule.rule in FACTS or opinion is None:
        return rule
    said = f"{name} says {opinion.state.name.lower()} with confidence {opinion.confidence:.2f}"
    wanted = _permitted(rule, opinion)
    alone = wanted in ALARMS and rule.state not in ALARMS
    if opinion.confidence < (limits.certain if alone else limits.sure):
        decision = _with(rule, f"{said}: unsure, so the rule decides")
    elif wanted is None:
        decision = _with(rule, f"{said}: that is for failover to say, so the rule decides")
    elif wanted is rule.state:
        decision = _with(rule, f"{said}, as the rule")
    else:
        doubt = "" if wanted is opinion.state else "; not confirmed by failover or by the node's own health"
        reason = f"{said}{doubt}; the rule {rule.rule} says {rule.state.name.lower()}"
        decision = Assessment(wanted, BY_MODEL[wanted], reason)
    standing = _STATE_BY_RULE.get(before) if before is not None else None
    present = standing or rule.state
    # A load that comes and goes calls an alarm off with other words each time.
    ended = present in ALARMS and decision.state not in ALARMS and leaning.calm >= limits.calm
    if decision.state is present or ended or leaning.times >= _needed(decision.state, present, limits):
        return decision
    return rule if standing is None else Assessment(standing, BY_MODEL[standing], said)


def _permitted(rule: Assessment, opinion: Opinion) -> NodeState | None:
    if opinion.state not in BY_MODEL:
        return None
    if opinion.state is NodeState.FAILING and rule.rule is not Rule.HEALTH_POOR:
        return NodeState.DEGRADED
    # Poor health that the node itself reports is not talked away.
    if rule.rule is Rule.HEALTH_POOR and opinion.state not in ALARMS:
        return NodeState.DEGRADED
    return opinion.state


def _needed(wanted: NodeState, present: NodeState, limits: Limits) -> int:
    if wanted in ALARMS and present not in ALARMS:
        return 1
    return limits.calm if present in ALARMS else 2


def _with(rule: Assessment, more: str) -> Assessment:
    return Assessment(rule.state, rule.rule, f"{rule.reason}; {more}" if rule.reason else more)
