"""Fairness: the examples of the papers and of Slurm's documentation, and cases reckoned by hand."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from services.scheduler.core.entitlement import fair_share, fairness
from services.scheduler.core.entitlement.drf import HierarchicalDrf, dominant_share
from services.scheduler.core.entitlement.fair_share import DecayedUsage
from services.scheduler.core.entitlement.share_tree import ShareNode
from services.scheduler.core.errors import PolicyError

NAN = float("nan")

# -- DRF --------------------------------------------------------------------------------------------------------------


def test_dominant_shares_count_accelerators_cpus_and_memory() -> None:
    usage = [[4.0, 100.0, 0.0], [1.0, 500.0, 2.0], [0.0, 0.0, 9.0]]
    assert dominant_share(usage, [40, 1000, 10]).tolist() == [0.1, 0.5, 0.9]
    assert dominant_share(usage, [40, 1000, 10], [1, 5, 3]).tolist() == pytest.approx([0.1, 0.1, 0.3])
    assert dominant_share([5.0, 1.0], [0, 10]) == pytest.approx(0.1)


# -- hierarchical DRF -------------------------------------------------------------------------------------------------


def filled(drf: HierarchicalDrf, demands: dict[str, list[float]], names: list[str]) -> list[list[float]]:
    for name, demand in demands.items():
        drf.want(name, demand)
    held = {name: np.zeros(2) for name in names}
    while (leaf := drf.next()) is not None:
        drf.charge(leaf, demands[leaf])
        held[leaf] += demands[leaf]
    return [held[name].tolist() for name in names]


RESCALING = [ShareNode("n1"), ShareNode("n2"), ShareNode("n2.1", "n2"), ShareNode("n2.2", "n2")]


def test_complementary_siblings_do_not_starve_each_other() -> None:
    # Figure of the H-DRF paper as tested in Volcano ("rescaling test"): 10 + 10; all get 5.
    demands = {"n1": [1.0, 1.0], "n2.1": [1.0, 0.0], "n2.2": [0.0, 1.0]}
    found = filled(HierarchicalDrf(RESCALING, [10, 10]), demands, list(demands))
    assert found == [[5, 5], [5, 0], [0, 5]]


def test_blocked_nodes_do_not_hide_what_their_siblings_hold() -> None:
    # Volcano's "blocking nodes test", after the paper: 30 + 30; cpu 10 each for three, memory 15 each for two.
    nodes = [*(ShareNode(name) for name in ("n1", "n2", "n3")), ShareNode("n3.1", "n3"), ShareNode("n3.2", "n3")]
    nodes.append(ShareNode("n4"))
    cpu, memory = [1.0, 0.0], [0.0, 1.0]
    demands = {"n1": cpu, "n2": cpu, "n3.1": cpu, "n3.2": memory, "n4": memory}
    found = filled(HierarchicalDrf(nodes, [30, 30]), demands, list(demands))
    assert found == [[10, 0], [10, 0], [10, 0], [0, 15], [0, 15]]


def test_naive_hierarchical_drf_would_starve_the_leaf_that_h_drf_serves() -> None:
    # The paper's starvation: n2.1 holds all cpu; one memory task of n1 ends. Naive: share(n2) = 1 > share(n1), so n1 gets
    # memory back for ever. H-DRF: share(n2) = that of its poorest child.
    drf = HierarchicalDrf(RESCALING, [10, 10])
    drf.charge("n2.1", [10, 0])
    drf.charge("n1", [0, 6])
    drf.charge("n2.2", [0, 3])
    drf.want("n1", [0, 1])
    drf.want("n2.1", [1, 0])
    drf.want("n2.2", [0, 1])
    assert dominant_share([10, 3], [10, 10]) == 1.0
    assert drf.next() == "n2.2"
    drf.want("n2.2", None)
    assert drf.next() == "n1"
    drf.want("n1", None)
    assert drf.next() is None


def test_children_are_rescaled_to_the_poorest_that_can_still_grow() -> None:
    drf = HierarchicalDrf(RESCALING, [10, 10])
    drf.charge("n1", [0, 6])
    drf.charge("n2.1", [8, 0])
    drf.charge("n2.2", [0, 3])
    drf.want("n1", [0, 1])
    drf.want("n2.1", [1, 0])
    drf.want("n2.2", [0, 1])
    # No resource is full. n2: (8, 0) x 0.3 / 0.8 + (0, 3) = (3, 3).
    assert (drf.share("n1"), drf.share("n2")) == pytest.approx((0.6, 0.3))
    assert drf.next() == "n2.2"
    # n2.1 wants nothing more: its vector stays whole, (8, 0) + (0, 3).
    drf.want("n2.1", None)
    assert drf.share("n2") == pytest.approx(0.8)
    assert drf.next() == "n1"


def test_weights_hold_at_every_level() -> None:
    nodes = [ShareNode("a", "", 3), ShareNode("b"), ShareNode("a1", "a", 2), ShareNode("a2", "a")]
    demands = {"a1": [1.0, 0.0], "a2": [1.0, 0.0], "b": [1.0, 0.0]}
    found = filled(HierarchicalDrf(nodes, [36, 1]), demands, ["a1", "a2", "b"])
    assert [row[0] for row in found] == [18, 9, 9]


def test_a_refund_opens_what_was_blocked() -> None:
    drf = HierarchicalDrf([ShareNode("a"), ShareNode("b")], [2.0])
    drf.want("a", [1.0])
    drf.charge("b", [2.0])
    assert (drf.next(), drf.share("a")) == (None, math.inf)
    drf.refund("b", [1.0])
    assert (drf.next(), drf.share("a")) == ("a", 0.0)
    with pytest.raises(InvalidArgumentError, match="'b'"):
        drf.refund("b", [1.5])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["n1", "n2.1", "n2.2"]), st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_shares_kept_step_by_step_are_those_of_a_fresh_tree(charges: list[tuple[str, int, int]]) -> None:
    def wanting() -> HierarchicalDrf:
        drf = HierarchicalDrf(RESCALING, [20, 20])
        for name, demand in (("n1", [1, 1]), ("n2.1", [2, 0]), ("n2.2", [0, 1])):
            drf.want(name, demand)
        return drf

    kept = wanting()
    kept.next()
    for name, cpu, memory in charges:
        kept.charge(name, [cpu, memory])
    fresh = wanting()
    for name, cpu, memory in charges:
        fresh.charge(name, [cpu, memory])
    assert [kept.share(node.name) for node in RESCALING] == [fresh.share(node.name) for node in RESCALING]
    assert kept.next() == fresh.next()


# -- decayed usage ----------------------------------------------------------------------------------------------------


def test_usage_halves_every_half_life() -> None:
    usage = DecayedUsage(100.0)
    usage.add("a", 80.0, 0.0)
    assert usage.value("a", 0.0) == 80.0
    assert usage.value("a", 100.0) == pytest.approx(40.0)
    usage.add("a", 10.0, 100.0)
    assert usage.value("a", 300.0) == pytest.approx(12.5)
    assert usage.value("nobody", 0.0) == 0.0
    usage.add("b", 8.0, 100.0)
    usage.add("b", 16.0, 0.0)  # told late
    assert usage.values(200.0) == pytest.approx({"a": 25.0, "b": 8.0})


def test_a_run_is_charged_by_the_integral() -> None:
    usage, in_steps = DecayedUsage(50.0), DecayedUsage(50.0)
    usage.add_run("a", 4.0, 10.0, 110.0)
    for step in range(10_000):
        in_steps.add("a", 4.0 * 0.01, 10.0 + step * 0.01 + 0.005)
    # By hand: 4 x 50 / ln 2 x (1 - 2^-2) = 216.40
    assert usage.value("a", 110.0) == pytest.approx(216.404256)
    assert in_steps.value("a", 110.0) == pytest.approx(usage.value("a", 110.0), rel=1e-5)


def test_half_life_zero_means_no_decay_and_wrong_values_are_named() -> None:
    usage = DecayedUsage(0.0)
    usage.add("a", 3.0, 0.0)
    usage.add_run("a", 2.0, 0.0, 10.0)
    assert usage.value("a", 1e9) == 23.0
    with pytest.raises(PolicyError, match="half_life_s"):
        DecayedUsage(NAN)
    for action, word in (
        (lambda: usage.add("a", -1.0, 0.0), "device_seconds"),
        (lambda: usage.add("a", 1.0, NAN), "at_s"),
        (lambda: usage.add_run("a", 1.0, 5.0, 4.0), "end_s"),
        (lambda: usage.value("a", 1.0), "now_s"),
    ):
        with pytest.raises(InvalidArgumentError, match=word):
            action()


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e5)), max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_charges_does_not_matter(charges: list[tuple[float, float]], random: object) -> None:
    one, other = DecayedUsage(3600.0), DecayedUsage(3600.0)
    for amount, at_s in charges:
        one.add("a", amount, at_s)
    random.shuffle(charges)  # type: ignore[attr-defined]
    for amount, at_s in charges:
        other.add("a", amount, at_s)
    assert one.value("a", 1e5) == pytest.approx(other.value("a", 1e5), rel=1e-9, abs=1e-9)


# -- Slurm ------------------------------------------------------------------------------------------------------------


def test_the_factor_is_a_half_at_the_share() -> None:
    assert fair_share.fair_share_factor([0.0, 0.25, 0.5, 0.1], [0.25, 0.25, 0.25, 0.0]).tolist() == [1, 0.5, 0.25, 0]
    assert fair_share.fair_share_factor(0.5, 0.25, dampening=2.0) == 0.5
    with pytest.raises(PolicyError, match="dampening"):
        fair_share.fair_share_factor(0.5, 0.25, dampening=0.0)


FAIR_TREE = [
    ShareNode("x", "", 60), ShareNode("y", "", 40),
    ShareNode("x1", "x", 1), ShareNode("x2", "x", 2), ShareNode("x3", "x", 1),
    ShareNode("y1", "y", 1), ShareNode("y2", "y", 1),
]  # fmt: skip


def test_fair_tree_by_hand() -> None:
    usage = {"x1": 10.0, "x2": 60.0, "y1": 20.0, "y2": 10.0}
    # Levels: x: 0.6 / 0.7; y: 0.4 / 0.3; x1: (1/4) / (1/7); x2: (2/4) / (6/7); x3 unused; y1: 0.5 / (2/3); y2: 0.5 / (1/3)
    # Falling: y (y2, y1), then x (x3, x1, x2): every leaf of y comes before any of x.
    expected = {"y2": 1.0, "y1": 0.8, "x3": 0.6, "x1": 0.4, "x2": 0.2}
    assert fair_share.fair_tree(FAIR_TREE, usage) == pytest.approx(expected)


def test_ties_of_the_fair_tree() -> None:
    # Sibling users with equal levels have one rank; the next rank counts them.
    flat = [ShareNode("a"), ShareNode("b"), ShareNode("c")]
    assert fair_share.fair_tree(flat, {"a": 1, "b": 1, "c": 2}) == pytest.approx({"a": 1, "b": 1, "c": 1 / 3})
    # Equal accounts: their children are merged. x1 (level 2) and y1 (1), x2 (2/3), y2 (1).
    merged = [ShareNode("x"), ShareNode("y"), *(ShareNode(f"{n}{i}", n) for n in "xy" for i in (1, 2))]
    found = fair_share.fair_tree(merged, {"x1": 1, "x2": 3, "y1": 2, "y2": 2})
    assert found == {"x1": 1.0, "y1": 0.75, "y2": 0.75, "x2": 0.25}
    # A user with the level of a sibling account has the rank of that account's best user.
    mixed = [ShareNode("u"), ShareNode("x"), ShareNode("x1", "x"), ShareNode("x2", "x")]
    assert fair_share.fair_tree(mixed, {"u": 4, "x1": 3, "x2": 1}) == pytest.approx({"u": 1, "x2": 1, "x1": 1 / 3})
    deep = [ShareNode("u"), ShareNode("x"), ShareNode("x1", "x"), ShareNode("p", "x1"), ShareNode("q", "x1")]
    assert fair_share.fair_tree(deep, {"u": 4, "p": 3, "q": 1}) == pytest.approx({"u": 1, "q": 1, "p": 1 / 3})
    assert fair_share.fair_tree(flat, {}) == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_wrong_trees_and_usage_are_named() -> None:
    for nodes, words in (
        ([ShareNode("a"), ShareNode("a")], "names"),
        ([ShareNode("a", "zoo")], "'a': parent"),
        ([ShareNode("a", "b"), ShareNode("b", "a")], "'a': parent.*cycle"),
        ([ShareNode("a", "", -1.0)], "'a': shares"),
        ([ShareNode("a", "", NAN)], "'a': shares"),
    ):
        with pytest.raises(PolicyError, match=words):
            fair_share.fair_tree(nodes, {})
        with pytest.raises(PolicyError, match=words):
            HierarchicalDrf(nodes, [1.0])
    for usage in ({"x1": NAN}, {"x": 1.0}, {"zoo": 1.0}):
        with pytest.raises(InvalidArgumentError, match=next(iter(usage))):
            fair_share.fair_tree(FAIR_TREE, usage)


# -- indices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "index"),
    [([3, 3, 3], 1.0), ([1, 0, 0, 0], 0.25), ([1, 2, 3], 36 / 42), ([0, 0], 1.0), ([1e-200, 1e-200], 1.0)],
)
def test_jain_index(values: npt.ArrayLike, index: float) -> None:
    assert fairness.jain_index(values) == pytest.approx(index)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: fairness.jain_index([]), "values"),
        (lambda: fairness.jain_index([1, NAN]), "values"),
    ],
)
def test_wrong_values_are_named(call: object, word: str) -> None:
    with pytest.raises(InvalidArgumentError, match=word):
        call()  # type: ignore[operator]
