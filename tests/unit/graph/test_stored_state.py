"""What a process remembers of domains it stored: when it may be used, and which nodes must be written again."""

from __future__ import annotations

from services.graph.facts import DomainFacts
from services.graph.store import Recent
from services.graph.update_plan import TrackedDomain
from tests.unit.graph.build import NOW_S, node, observation
from tests.unit.graph.test_updates import told

POWER = "hw.power"


def shown(at_s: float = NOW_S) -> TrackedDomain:
    domain = TrackedDomain(DomainFacts("beijing"))
    read = {("a", None, POWER): 1.0, ("b", None, POWER): 1.0}
    told(domain, at_s, observation([node("a"), node("b")], read, at_s=at_s))
    return domain


def test_all_is_unsaved_at_first_and_nothing_after() -> None:
    domain = shown()
    assert domain.unsaved() == ["a", "b"]
    domain.saved(NOW_S)
    assert domain.unsaved() == []


def test_only_what_was_read_or_decided_anew_is_unsaved() -> None:
    domain = shown()
    domain.saved(NOW_S)
    told(domain, NOW_S + 1, observation([node("a"), node("b")], {("b", None, POWER): 1.0}, at_s=NOW_S + 1))
    assert domain.unsaved() == ["b"]
    domain.saved(NOW_S + 1)
    told(domain, NOW_S + 2, observation([node("a", 2), node("b")], {("b", 0, "cpn.health"): 0.0}, at_s=NOW_S + 2))
    assert domain.unsaved() == ["a", "b"]
    domain.saved(NOW_S + 2)
    # The value of a is older than a minute now, so it must go; those of b are not.
    told(domain, NOW_S + 61, observation([node("a", 2), node("b")], at_s=NOW_S + 61))
    assert domain.unsaved() == ["a"]


def test_a_domain_is_good_only_as_it_was_stored_and_once() -> None:
    domain, recent = shown(), Recent()
    domain.saved(5.0)
    recent.keep([domain])
    assert recent.take("beijing", 5.0) is domain
    # Taken: until it is stored again nobody may rely on it.
    assert recent.take("beijing", 5.0) is None
    recent.keep([domain])
    assert recent.take("beijing", 5.0) is None
    domain.saved(6.0)
    recent.keep([domain])
    # Another process stored it, or our transaction failed.
    assert recent.take("beijing", 5.0) is None
    assert recent.take("elsewhere", 5.0) is None
