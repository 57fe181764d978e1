"""What is stored of the readings of a node is what was known, and figures follow every change of the readings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.graph.facts import DomainFacts, Readings, node_metrics
from services.graph.readings_row import packed, unpacked

numbers = st.floats(allow_nan=False)
series = st.dictionaries(st.integers(-1, 40), st.tuples(numbers, numbers), min_size=1, max_size=4)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), series, max_size=5))
def test_what_is_stored_is_what_was_known(found: Readings) -> None:
    assert unpacked(*packed(found)) == found


def test_the_form_of_a_row() -> None:
    names, values = packed({"hw.power": {0: (310.0, 5.0), 1: (290.0, 6.0)}, "cpn.health": {-1: (1.0, 5.0)}})
    assert names == '[["hw.power", [0, 1]], ["cpn.health", [-1]]]'
    assert len(values) == 3 * 16


def test_figures_are_those_of_the_readings_that_are_left() -> None:
    facts = DomainFacts("d", readings={"a": {"hw.temperature": {0: (50.0, 10.0), 1: (70.0, 20.0)}}})
    before = facts.figures("a")
    assert (before.metrics, before.hottest_celsius) == ({"hw.temperature": 60.0}, 70.0)
    assert facts.oldest_reading_s() == 10.0
    facts.forget_readings_before(5.0)
    assert facts.figures("a") is before
    facts.forget_readings_before(15.0)
    assert facts.figures("a").metrics == node_metrics(facts.readings["a"]) == {"hw.temperature": 70.0}
    assert facts.oldest_reading_s() == 20.0
    facts.forget_readings_before(25.0)
    assert (facts.figures("a").metrics, facts.figures("a").hottest_celsius) == ({}, None)
