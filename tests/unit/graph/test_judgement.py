"""Rule and model together: who decides, when, and what the model may not say."""

from __future__ import annotations

import pytest

from services.graph.facts import Decided
from services.graph.image import DomainImage
from services.graph.node_state import Assessment, NodeState, Rule
from services.graph.recognition.judgement import FACTS, Leaning, Limits, Opinion, judged
from services.graph.recognition.judges import Standing

FIT = Assessment(NodeState.HEALTHY, Rule.FIT, "")
HOT = Assessment(NodeState.DEGRADED, Rule.HOT, "an accelerator has 93 Cel")
POOR = Assessment(NodeState.DEGRADED, Rule.HEALTH_POOR, "health 0.5 is reported")


def said(state: NodeState, confidence: float) -> Opinion:
    return Opinion(state, confidence, 0.5)


def times(state: NodeState, count: int) -> Leaning:
    leaning = Leaning()
    for _ in range(count):
        leaning = leaning.then(said(state, 0.9))
    return leaning


def decided(
    rule: Assessment, state: NodeState, confidence: float, count: int = 1, before: Rule | None = None
) -> Assessment:
    return judged(rule, said(state, confidence), times(state, count), before, "m")


def test_counting_starts_again_with_another_state() -> None:
    leaning = times(NodeState.BUSY, 3)
    assert leaning == Leaning(NodeState.BUSY, 3)
    assert leaning.then(said(NodeState.HEALTHY, 0.9)) == Leaning(NodeState.HEALTHY, 1)
    assert leaning.then(said(NodeState.BUSY, 0.5)) == Leaning(NodeState.UNSPECIFIED, 1)


@pytest.mark.parametrize("rule", sorted(FACTS))
def test_facts_decide_whatever_the_model_says(rule: Rule) -> None:
    fact = Assessment(NodeState.UNREACHABLE, rule, "why")
    assert decided(fact, NodeState.HEALTHY, 0.99, 9, Rule.MODEL_HEALTHY) == fact


def test_without_an_opinion_the_rule_decides() -> None:
    assert judged(HOT, None, Leaning(), Rule.MODEL_BUSY, "m") == HOT


def test_an_unsure_model_is_mentioned_and_not_heard() -> None:
    found = decided(FIT, NodeState.DEGRADED, 0.59, 9)
    assert (found.state, found.rule) == (NodeState.HEALTHY, Rule.FIT)
    assert found.reason == "m says degraded with confidence 0.59: unsure, so the rule decides"


def test_agreement_keeps_the_rule() -> None:
    found = decided(HOT, NodeState.DEGRADED, 0.8)
    assert (found.state, found.rule) == (NodeState.DEGRADED, Rule.HOT)
    assert found.reason == "an accelerator has 93 Cel; m says degraded with confidence 0.80, as the rule"


def test_only_a_certain_alarm_is_raised_and_at_once() -> None:
    certain = decided(FIT, NodeState.DEGRADED, 0.95)
    assert (certain.state, certain.rule) == (NodeState.DEGRADED, Rule.MODEL_DEGRADED)
    assert certain.reason == "m says degraded with confidence 0.95; the rule fit says healthy"
    fair = decided(FIT, NodeState.DEGRADED, 0.89, 9)
    assert (fair.rule, "unsure" in fair.reason) == (Rule.FIT, True)


def test_busy_or_healthy_needs_the_second_time() -> None:
    assert decided(FIT, NodeState.BUSY, 0.7).rule is Rule.FIT
    assert decided(FIT, NodeState.BUSY, 0.7, 2).rule is Rule.MODEL_BUSY


def test_an_alarm_stands_until_it_is_called_off_three_times() -> None:
    for count in (1, 2):
        found = decided(HOT, NodeState.BUSY, 0.99, count, Rule.HOT)
        assert (found.state, found.rule) == (NodeState.DEGRADED, Rule.HOT)
    found = decided(HOT, NodeState.BUSY, 0.99, 3, Rule.HOT)
    assert (found.state, found.rule) == (NodeState.BUSY, Rule.MODEL_BUSY)


def test_what_the_model_decided_stands_while_it_wavers() -> None:
    busy = Assessment(NodeState.BUSY, Rule.ALLOCATED, "every accelerator is allocated")
    for count in (1, 2):
        found = decided(busy, NodeState.HEALTHY, 0.99, count, Rule.MODEL_DEGRADED)
        assert (found.state, found.rule) == (NodeState.DEGRADED, Rule.MODEL_DEGRADED)
    assert decided(busy, NodeState.HEALTHY, 0.99, 3, Rule.MODEL_DEGRADED).rule is Rule.MODEL_HEALTHY


def test_an_unsure_word_or_agreement_does_not_end_an_alarm_at_once() -> None:
    unsure = said(NodeState.HEALTHY, 0.5)
    for count in (1, 2):
        leaning = Leaning(NodeState.UNSPECIFIED, count)
        assert judged(FIT, unsure, leaning, Rule.MODEL_DEGRADED).rule is Rule.MODEL_DEGRADED
        assert decided(FIT, NodeState.HEALTHY, 0.99, count, Rule.MODEL_DEGRADED).rule is Rule.MODEL_DEGRADED
    assert judged(FIT, unsure, Leaning(NodeState.UNSPECIFIED, 3), Rule.MODEL_DEGRADED).rule is Rule.FIT
    assert decided(FIT, NodeState.HEALTHY, 0.99, 3, Rule.MODEL_DEGRADED).rule is Rule.FIT


@pytest.mark.parametrize(
    "words",
    [
        [(NodeState.HEALTHY, 0.9), (NodeState.BUSY, 0.9)],
        [(NodeState.HEALTHY, 0.9), (NodeState.HEALTHY, 0.5)],
        [(NodeState.BUSY, 0.9), (NodeState.DEGRADED, 0.5)],
    ],
)
def test_an_alarm_ends_though_what_calls_it_off_changes(words: list[tuple[NodeState, float]]) -> None:
    # A node whose load comes and goes is told busy and healthy in turn, and never three times the same.
    leaning, rule = Leaning(NodeState.DEGRADED, 4), Rule.MODEL_DEGRADED
    states = []
    for state, confidence in [*words, *words]:
        opinion = said(state, confidence)
        leaning = leaning.then(opinion)
        found = judged(FIT, opinion, leaning, rule)
        rule = found.rule
        states.append(found.state is NodeState.DEGRADED)
    assert states == [True, True, False, False]
    # One more alarm in between, and it is counted anew.
    again = leaning.then(said(NodeState.DEGRADED, 0.9)).then(said(NodeState.HEALTHY, 0.9))
    assert judged(FIT, said(NodeState.HEALTHY, 0.9), again, Rule.MODEL_DEGRADED).state is NodeState.DEGRADED


@pytest.mark.parametrize("state", [NodeState.UNREACHABLE, NodeState.ASLEEP])
def test_the_model_alone_takes_no_node_away(state: NodeState) -> None:
    found = decided(FIT, state, 0.99, 9)
    assert (found.state, found.rule) == (NodeState.HEALTHY, Rule.FIT)
    assert "failover" in found.reason


def test_failing_needs_the_nodes_own_word() -> None:
    alone = decided(FIT, NodeState.FAILING, 0.99)
    assert (alone.state, alone.rule) == (NodeState.DEGRADED, Rule.MODEL_DEGRADED)
    assert "not confirmed" in alone.reason
    together = decided(POOR, NodeState.FAILING, 0.99, 2, Rule.HEALTH_POOR)
    assert decided(POOR, NodeState.FAILING, 0.99, 3, Rule.HEALTH_POOR).rule is Rule.MODEL_FAILING
    assert together.state is NodeState.DEGRADED


def test_poor_health_is_not_talked_away() -> None:
    assert decided(POOR, NodeState.HEALTHY, 0.99, 9, Rule.HEALTH_POOR).state is NodeState.DEGRADED


def test_limits_are_settable() -> None:
    opinion, leaning = said(NodeState.DEGRADED, 0.7), Leaning(NodeState.DEGRADED, 1)
    assert judged(FIT, opinion, leaning, None, "m", Limits(certain=0.8)).rule is Rule.FIT
    assert judged(FIT, opinion, leaning, None, "m", Limits(certain=0.7)).rule is Rule.MODEL_DEGRADED


@pytest.mark.parametrize(
    ("rule", "before", "expected"),
    [
        (FIT, Rule.MODEL_BUSY, Rule.MODEL_BUSY),
        (HOT, Rule.MODEL_HEALTHY, Rule.MODEL_HEALTHY),
        (POOR, Rule.MODEL_HEALTHY, Rule.HEALTH_POOR),
        (POOR, Rule.MODEL_FAILING, Rule.MODEL_FAILING),
        (Assessment(NodeState.UNREACHABLE, Rule.SUSPECTED, "late"), Rule.MODEL_BUSY, Rule.SUSPECTED),
        (HOT, Rule.FIT, Rule.HOT),
    ],
)
def test_what_stands_while_the_model_is_not_heard(rule: Assessment, before: Rule, expected: Rule) -> None:
    standing = Standing({}, DomainImage())
    found = standing.decide("a", rule, Decided(before, "as it was", 0.0))
    assert found.rule is expected
    assert found.reason == ("as it was" if expected is before else rule.reason)
    assert standing.decide("a", rule, None) == rule
