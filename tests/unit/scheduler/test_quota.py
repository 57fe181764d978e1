"""Quotas: examples of Kueue's documentation, cases reckoned by hand, and invariants on random trees."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meridian.errors import ConflictError, InvalidArgumentError
from services.scheduler.core.entitlement.amounts import ACCELERATORS, CPUS, MEMORY_BYTES, natural, quantity, request
from services.scheduler.core.entitlement.queues import QueueSpec
from services.scheduler.core.entitlement.quota import QuotaTree, Reclaim, Verdict
from services.scheduler.core.errors import PolicyError

GIB = 2**30
LIMITS = {"borrow": "borrowing_limit", "lend": "lending_limit"}


def cpus(value: float) -> dict[str, int]:
    return {CPUS: quantity(CPUS, value)}


def queue(name: str, parent: str = "", nominal: float = 0, **options: object) -> QueueSpec:
    """A queue with quotas on cpus; ``borrow`` and ``lend`` are its limits."""
    limits = {key: {CPUS: options.pop(word)} for word, key in LIMITS.items() if options.get(word) is not None}
    options = {key: value for key, value in options.items() if key not in LIMITS}
    return QueueSpec(name, parent, {CPUS: nominal}, **limits, **options)  # type: ignore[arg-type]


def free(tree: QuotaTree, name: str) -> float:
    return natural(CPUS, tree.available(name)[CPUS])


# -- published: kueue.sigs.k8s.io/docs/concepts/cluster_queue and /cohort, KEP-79 -------------------------------------


def test_kueue_borrowing_example_team_a_may_use_21_cpus_and_84_gib() -> None:
    tree = QuotaTree(
        [
            QueueSpec("team-ab"),
            QueueSpec("team-a", "team-ab", {CPUS: 9, MEMORY_BYTES: 36 * GIB}),
            QueueSpec("team-b", "team-ab", {CPUS: 12, MEMORY_BYTES: 48 * GIB}),
        ]
    )
    assert tree.available("team-a") == {CPUS: 21_000, MEMORY_BYTES: 84 * GIB}
    assert tree.admits("team-a", request({}, 21, 84 * GIB)).ok
    assert not tree.admits("team-a", request({}, 21.001)).ok
    assert not tree.admits("team-a", request({}, 1, 84 * GIB + 1)).ok


def test_kueue_borrowing_limit_example_9_plus_1_cpus() -> None:
    tree = QuotaTree([queue("team-ab"), queue("team-a", "team-ab", 9, borrow=1), queue("team-b", "team-ab", 12)])
    assert (free(tree, "team-a"), free(tree, "team-b")) == (10, 21)
    assert tree.admits("team-a", cpus(10)) == Verdict(ok=True, borrowing=True, covered_by="team-ab")
    expected = Verdict(ok=False, blocked_at="team-a", resource=CPUS, available=10_000)
    assert tree.admits("team-a", cpus(11)) == expected


def test_kueue_lending_limit_keeps_the_rest_at_home() -> None:
    # The borrowing example with lendingLimit 1 on team-b, by hand from its definition: 9 + 1 for team-a, 21 for team-b.
    tree = QuotaTree([queue("team-ab"), queue("team-a", "team-ab", 9), queue("team-b", "team-ab", 12, lend=1)])
    assert (free(tree, "team-a"), free(tree, "team-b")) == (10, 21)
    tree.charge("team-a", cpus(10))
    assert free(tree, "team-b") == 11
    tree.refund("team-a", cpus(10))
    tree.charge("team-b", cpus(12))
    assert free(tree, "team-a") == 9


def test_kueue_cohort_example_a_pool_of_12_shared_by_a_queue_without_quota() -> None:
    tree = QuotaTree([queue("hello-cohort", nominal=12), queue("my-cluster-queue", "hello-cohort", 0)])
    assert free(tree, "my-cluster-queue") == 12
    assert tree.admits("my-cluster-queue", cpus(12)).borrowing


@pytest.mark.parametrize("by", ["research borrows nothing", "production lends nothing"])
def test_kep_79_story_1_production_borrows_from_research_but_not_back(by: str) -> None:
    limits = by == "research borrows nothing"
    tree = QuotaTree(
        [
            queue("company"),
            queue("research", "company", borrow=0 if limits else None),
            queue("production", "company", lend=None if limits else 0),
            *(queue(f"r{n}", "research", 10) for n in (1, 2)),
            *(queue(f"p{n}", "production", 10) for n in (1, 2)),
        ]
    )
    assert (free(tree, "r1"), free(tree, "p1")) == (20, 40)
    assert tree.admits("p1", cpus(40)) == Verdict(ok=True, borrowing=True, covered_by="company")
    assert tree.admits("p1", cpus(20)).covered_by == "production"
    assert tree.admits("r1", cpus(21)).blocked_at == ("research" if limits else "company")


def test_kep_79_story_2_organisations_apart_and_a_special_queue_that_takes_what_is_left() -> None:
    tree = QuotaTree(
        [
            queue("top"),
            queue("special", "top"),
            *(queue(f"org-{n}", "top", borrow=0) for n in "ab"),
            *(queue(f"{n}1", f"org-{n}", 8) for n in "ab"),
        ]
    )
    assert [free(tree, name) for name in ("a1", "b1", "special")] == [8, 8, 16]
    tree.charge("special", cpus(12))
    assert [free(tree, name) for name in ("a1", "b1", "special")] == [4, 4, 4]


# -- by hand ----------------------------------------------------------------------------------------------------------


def an_organisation() -> QuotaTree:
    """10 for team a, 10 for team b, 4 of the organisation's own for anybody."""
    return QuotaTree(
        [
            queue("org", nominal=4),
            queue("a", "org"),
            queue("b", "org", lend=4),
            queue("a1", "a", 6),
            queue("a2", "a", 4, borrow=3),
            queue("b1", "b", 10),
        ]
    )


def test_limits_at_several_levels_by_hand() -> None:
    tree = an_organisation()
    # org owns 4 + 10 of a + the 4 that b lends; b keeps 6 to itself.
    assert tree.quota("org") == {CPUS: 18_000}
    assert [free(tree, name) for name in ("a1", "a2", "b1", "org")] == [18, 7, 24, 18]
    tree.charge("b1", cpus(7))
    # 6 of the 7 are covered at home; 1 of the 4 that b lends is used.
    assert [free(tree, name) for name in ("a1", "a2", "b1", "org")] == [17, 7, 17, 17]
    tree.charge("a1", cpus(16))
    assert [free(tree, name) for name in ("a1", "a2", "b1", "org")] == [1, 1, 1, 1]
    assert tree.borrowed("a1") == {CPUS: 10_000}
    assert tree.borrowed("a") == {CPUS: 6_000}
    assert tree.borrowed("org") == {CPUS: 0}
    assert tree.usage("org") == {CPUS: 23_000}
    assert tree.path("a1") == ("a1", "a", "org")


def test_usage_of_an_interior_queue_counts_against_it() -> None:
    tree = an_organisation()
    tree.charge("a", cpus(3), units=0)
    assert [free(tree, name) for name in ("a1", "a2", "b1", "a")] == [15, 7, 21, 15]
    assert tree.running("a") == 0


def test_counts_of_running_units_hold_for_all_below() -> None:
    tree = QuotaTree([queue("org", max_running=3), queue("a", "org", 9, max_running=2), queue("b", "org")])
    tree.charge("a", cpus(1))
    tree.charge("a", cpus(1))
    assert tree.admits("a", cpus(1)) == Verdict(ok=False, blocked_at="a", resource="running")
    tree.charge("b", cpus(1))
    assert tree.admits("b", {}).blocked_at == "org"
    assert tree.running("org") == 3


def test_the_queue_that_covers_a_request_is_the_highest_that_one_of_its_resources_needs() -> None:
    tree = QuotaTree(
        [
            QueueSpec("org", nominal={"cpus": 8.0, "memory_bytes": 100.0}),
            QueueSpec("team", "org", nominal={"cpus": 8.0, "memory_bytes": 100.0}),
            QueueSpec("lab", "team", nominal={"cpus": 2.0, "memory_bytes": 100.0}),
        ]
    )

    def covered_by(cpus: int, memory_bytes: int) -> str:
        return tree.admits("lab", {"cpus": cpus * 1000, "memory_bytes": memory_bytes}).covered_by

    # By hand: lab owns 2 cpus and 100 bytes, team 10 and 200 with it, org 18 and 300.
    assert [covered_by(2, 100), covered_by(3, 100), covered_by(11, 100)] == ["lab", "team", "org"]
    assert [covered_by(2, 101), covered_by(2, 201), covered_by(11, 101)] == ["team", "org", "org"]


def test_accelerators_count_by_their_index() -> None:
    weights = {"big": 2.0, "small": 0.3}
    amounts = request({"big": 3, "small": 2, "other": 1}, 1.5, 7, {"licence": 2}, weights)
    assert amounts == {ACCELERATORS: 7600, CPUS: 1500, MEMORY_BYTES: 7, "licence": 2000}
    with pytest.raises(InvalidArgumentError, match="'big'"):
        request({"big": 1}, weights={"big": float("nan")})
    with pytest.raises(InvalidArgumentError, match="licence"):
        request({}, resources={"licence": -1})


def test_a_resource_that_no_queue_names_is_not_limited() -> None:
    tree = QuotaTree([queue("org", nominal=1)])
    assert tree.admits("org", {"licence": 10**9}).ok


def test_the_first_resource_that_lacks_is_named() -> None:
    tree = QuotaTree([QueueSpec("org", nominal={ACCELERATORS: 4, CPUS: 8})])
    verdict = tree.admits("org", request({"x": 5}, 9))
    assert (verdict.resource, verdict.available) == (ACCELERATORS, 4000)


def test_thousandths_do_not_drift() -> None:
    tree = QuotaTree([queue("org", nominal=0.3)])
    for _ in range(3):
        assert tree.admits("org", cpus(0.1)).ok  # 0.1 + 0.1 + 0.1 > 0.3 in floating point
        tree.charge("org", cpus(0.1))
    assert not tree.admits("org", cpus(0.001)).ok
    for _ in range(3):
        tree.refund("org", cpus(0.1))
    assert tree.available("org") == {CPUS: 300}


# -- taking back ------------------------------------------------------------------------------------------------------


def test_who_is_most_over_its_share_gives_back_first() -> None:
    tree = QuotaTree([queue("org"), *(queue(name, "org", 10) for name in ("me", "x", "y", "z"))])
    tree.charge("x", cpus(15))
    tree.charge("y", cpus(17))
    tree.charge("z", cpus(8))
    # All 40 are used; x is over by 5, y by 7, z within its own.
    assert not tree.admits("me", cpus(9)).ok
    assert tree.reclaimable("me", cpus(9)) == (Reclaim("y", CPUS, 7000), Reclaim("x", CPUS, 2000))
    assert tree.reclaimable("me", cpus(11)) == ()  # more than its own
    assert tree.usage("y") == {CPUS: 17_000}  # asking changed nothing


def test_a_weight_of_four_makes_a_loan_count_a_quarter() -> None:
    tree = QuotaTree([queue("org"), queue("me", "org", 10), queue("x", "org", 10), queue("y", "org", 10, weight=4)])
    tree.charge("x", cpus(13))
    tree.charge("y", cpus(17))
    # over: x 3/30/1 = 0.1, y 7/30/4 = 0.058
    assert [item.queue for item in tree.reclaimable("me", cpus(10))] == ["x", "y"]


def test_what_a_branch_owns_is_safe_from_those_outside_it() -> None:
    specs = [queue("org"), queue("a", "org"), queue("b", "org")]
    specs += [queue("a1", "a", 5), queue("a2", "a", 5), queue("b1", "b", 5), queue("b2", "b", 5)]
    tree = QuotaTree(specs)
    tree.charge("a1", cpus(10))  # over its own 5, team a within its 10
    tree.charge("b1", cpus(10))
    # a2 takes back what a1 borrowed from it, and nothing from team b, which holds its own 10.
    assert tree.reclaimable("a2", cpus(5)) == (Reclaim("a1", CPUS, 5000),)
    tree.refund("a1", cpus(4))
    tree.charge("b1", cpus(4))
    # Now a1 holds 6, b1 holds 14: team b owes 4 to team a, and it pays before a1 does.
    assert tree.reclaimable("a2", cpus(5)) == (Reclaim("b1", CPUS, 4000), Reclaim("a1", CPUS, 1000))
    assert tree.reclaimable("a2", cpus(4)) == (Reclaim("b1", CPUS, 4000),)


def test_several_outside_pay_together_no_more_than_the_branch_has_a_claim_to() -> None:
    specs = [queue("org", nominal=3), queue("team", "org"), queue("one", "org"), queue("two", "org")]
    tree = QuotaTree([*specs, queue("me", "team", 4), queue("next", "team")])
    for name, amount in (("next", 2), ("one", 2), ("two", 3)):
        tree.charge(name, cpus(amount))
    # All 7 are used. The team owns 4 and holds 2, so 2 is its claim to what is outside; two owes most and pays all of it,
    # one, which owes 2 as well, pays nothing: the rest is with the neighbour in the team.
    assert tree.reclaimable("me", cpus(4)) == (Reclaim("two", CPUS, 2000), Reclaim("next", CPUS, 2000))


def test_a_branch_takes_from_outside_no_more_than_its_own_quota_lacks() -> None:
    tree = QuotaTree(
        [
            queue("org"),
            *(queue(name, "org") for name in "abc"),
            *(queue(name, name[0], 5) for name in ("a1", "a2")),
            *(queue(name, name[0], 10) for name in ("b1", "c1")),
        ]
    )
    tree.charge("a1", cpus(9))
    tree.charge("b1", cpus(21))
    # b owes 10 to the idle c and 1 to a; the other 4 that a2 lacks are with a1.
    assert tree.reclaimable("a2", cpus(5)) == (Reclaim("b1", CPUS, 1000), Reclaim("a1", CPUS, 4000))


def test_who_would_borrow_takes_nothing_back() -> None:
    tree = QuotaTree([queue("org", nominal=5), queue("me", "org", 10), queue("x", "org", 10)])
    tree.charge("x", cpus(16))
    assert not tree.admits("me", cpus(11)).ok
    assert tree.reclaimable("me", cpus(11)) == ()
    assert tree.reclaimable("me", cpus(10)) == (Reclaim("x", CPUS, 1000),)


def test_what_a_queue_keeps_to_itself_counts_first_when_its_team_takes_back() -> None:
    # me keeps 4 to itself; team a owns a pool of 2 besides, which b has borrowed.
    tree = QuotaTree([queue("org"), queue("a", "org", 2), queue("me", "a", 4, lend=0), queue("b", "org", 10)])
    tree.charge("b", cpus(12))
    assert free(tree, "me") == 4
    assert tree.reclaimable("me", cpus(6)) == (Reclaim("b", CPUS, 2000),)
    assert tree.reclaimable("me", cpus(7)) == ()


def test_nobody_is_stopped_in_vain() -> None:
    tree = QuotaTree([queue("org"), queue("me", "org", 10, max_running=0), queue("x", "org", 10)])
    tree.charge("x", cpus(20))
    assert tree.reclaimable("me", cpus(1)) == ()
    other = QuotaTree([queue("org"), queue("me", "org", 10), queue("x", "org", 10)])
    other.charge("x", cpus(10))
    assert other.reclaimable("me", cpus(10)) == ()  # it fits
    two = QuotaTree(
        [QueueSpec("org"), QueueSpec("me", "org", {CPUS: 4, "licence": 1}), QueueSpec("x", "org", {CPUS: 4})]
    )
    two.charge("x", cpus(8))
    two.charge("x", {"licence": 1000})
    two.charge("me", {"licence": 1000})
    assert two.reclaimable("me", cpus(4)) == (Reclaim("x", CPUS, 4000),)
    assert two.reclaimable("me", {**cpus(4), "licence": 1000}) == ()


# -- refused ----------------------------------------------------------------------------------------------------------

NAN = float("nan")


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ([], "no queue"),
        ([queue("")], "no name"),
        ([queue("a"), queue("a")], "'a': name"),
        ([queue("a"), queue("b")], "'b': parent.*only one"),
        ([queue("a"), queue("b", "zoo")], "'b': parent 'zoo'"),
        ([queue("a", "b"), queue("b", "a")], "cycle: a -> b -> a"),
        ([queue("r"), queue("a", "b"), queue("b", "c"), queue("c", "b")], "'b': parent.*cycle: b -> c -> b"),
        ([queue("a", "a")], "cycle: a -> a"),
        ([queue("a", nominal=-1)], r"'a': nominal\.cpus"),
        ([queue("a", nominal=NAN)], r"'a': nominal\.cpus"),
        ([queue("a", nominal=float("inf"))], r"'a': nominal\.cpus"),
        ([queue("r"), queue("a", "r", borrow=-1)], r"'a': borrowing_limit\.cpus"),
        ([queue("r"), queue("a", "r", lend=NAN)], r"'a': lending_limit\.cpus"),
        ([queue("a", borrow=1)], "'a': borrowing_limit.*root"),
        ([queue("a", lend=1)], "'a': lending_limit.*root"),
        ([queue("a", weight=0)], "'a': weight"),
        ([queue("a", weight=NAN)], "'a': weight"),
        ([queue("a", max_running=-1)], "'a': max_running"),
        ([queue("a", max_running=1.5)], "'a': max_running"),
        ([QueueSpec("a", nominal={"running": 3})], "max_running"),
    ],
)
def test_a_wrong_tree_is_refused_with_queue_and_field(specs: list[QueueSpec], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        QuotaTree(specs)


def test_a_wrong_change_is_refused_whole() -> None:
    tree = QuotaTree([QueueSpec("org", nominal={CPUS: 4, "licence": 2}), queue("a", "org")])
    tree.charge("a", {CPUS: 1000, "licence": 1000})
    before = state(tree)
    changes: list[Callable[[], None]] = [
        lambda: tree.refund("a", {CPUS: 500, "licence": 1001}),
        lambda: tree.refund("org", {CPUS: 1}),
        lambda: tree.refund("a", {CPUS: 500}, units=2),
        lambda: tree.charge("a", {CPUS: 500, "licence": -1}),
        lambda: tree.charge("a", {CPUS: 500}, units=-1),
        lambda: tree.charge("a", {CPUS: 0.5}),  # type: ignore[dict-item]
        lambda: tree.charge("nowhere", {CPUS: 500}),
    ]
    for wrong in changes:
        with pytest.raises((ConflictError, InvalidArgumentError)):
            wrong()
        assert state(tree) == before


# -- invariants -------------------------------------------------------------------------------------------------------


def state(tree: QuotaTree) -> list[object]:
    return [(tree.usage(name), tree.available(name), tree.borrowed(name), tree.running(name)) for name in tree.queues]


@st.composite
def trees(draw: st.DrawFn) -> list[QueueSpec]:
    count = draw(st.integers(1, 8))
    limit = st.none() | st.integers(0, 6)
    specs = [queue("q0", nominal=draw(st.integers(0, 5)))]
    for number in range(1, count):
        parent = f"q{draw(st.integers(0, number - 1))}"
        nominal = draw(st.integers(0, 8))
        specs.append(queue(f"q{number}", parent, nominal, borrow=draw(limit), lend=draw(limit)))
    return specs


def balances(specs: list[QueueSpec], held: dict[str, int]) -> dict[str, float]:
    """T(x, r) of KEP-79, from its definition: what the subtree can give, negative when it borrows."""
    out: dict[str, float] = {}
    for spec in reversed(specs):
        below = [child for child in specs if child.parent == spec.name]
        lent = sum(min(child.lending_limit.get(CPUS, float("inf")), out[child.name]) for child in below)
        out[spec.name] = spec.nominal[CPUS] - held.get(spec.name, 0) + lent
    return out


def within(specs: list[QueueSpec], held: dict[str, int]) -> bool:
    """KEP-79: admission is right if and only if T(x) >= -borrowingLimit(x) everywhere, with 0 at the root."""
    found = balances(specs, held)
    return all(
        found[spec.name] >= (-spec.borrowing_limit.get(CPUS, float("inf")) if spec.parent else 0) for spec in specs
    )


def subtree(specs: list[QueueSpec], top: str) -> set[str]:
    inside = {top}
    for spec in specs:
        if spec.parent in inside:
            inside.add(spec.name)
    return inside


steps = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 9), st.booleans()), max_size=25)


@settings(max_examples=150, deadline=None)
@given(trees(), steps)
def test_admission_agrees_with_the_definition_and_the_limits_hold(
    specs: list[QueueSpec], todo: list[tuple[int, int, bool]]
) -> None:
    tree = QuotaTree(specs)
    held: dict[str, int] = {}
    for number, amount, back in todo:
        name = f"q{number % len(specs)}"
        if back and held.get(name, 0) >= amount:
            tree.refund(name, cpus(amount), units=0)
            held[name] -= amount
            continue
        after = {**held, name: held.get(name, 0) + amount}
        verdict = tree.admits(name, cpus(amount))
        assert verdict.ok == within(specs, after)
        assert verdict.ok == (free(tree, name) >= amount)
        if verdict.ok:
            tree.charge(name, cpus(amount), units=0)
            held = after
    total = sum(held.values())
    assert total <= sum(spec.nominal[CPUS] for spec in specs)
    for spec in specs:
        inside = subtree(specs, spec.name)
        used = sum(held.get(name, 0) for name in inside)
        owned = sum(other.nominal[CPUS] for other in specs if other.name in inside)
        assert tree.usage(spec.name) == {CPUS: used * 1000}
        # No subtree holds more than it owns and may borrow; the others hold no more than they own and it lends.
        assert used <= owned + spec.borrowing_limit.get(CPUS, float("inf"))
        others = sum(other.nominal[CPUS] for other in specs if other.name not in inside)
        assert total - used <= others + spec.lending_limit.get(CPUS, float("inf"))


@settings(max_examples=100, deadline=None)
@given(trees(), steps)
def test_refunds_in_any_order_restore_the_very_state(specs: list[QueueSpec], todo: list[tuple[int, int, bool]]) -> None:
    tree = QuotaTree(specs)
    states = [state(tree)]
    charged = []
    for number, amount, _ in todo:
        charged.append((f"q{number % len(specs)}", cpus(amount)))
        tree.charge(*charged[-1])
        states.append(state(tree))
    for item in reversed(charged):
        assert state(tree) == states.pop()
        tree.refund(*item)
    assert state(tree) == states.pop()
    for item in charged:
        tree.charge(*item)
    for item in charged:
        tree.refund(*item)
    assert state(tree) == state(QuotaTree(specs))


@settings(max_examples=150, deadline=None)
@given(trees(), steps, st.integers(0, 7), st.integers(1, 8))
def test_what_is_taken_back_makes_room_and_comes_only_from_borrowers(
    specs: list[QueueSpec], todo: list[tuple[int, int, bool]], number: int, amount: int
) -> None:
    tree = QuotaTree(specs)
    for at, size, _ in todo:
        if tree.admits(name := f"q{at % len(specs)}", cpus(size)).ok:
            tree.charge(name, cpus(size), units=0)
    me = f"q{number % len(specs)}"
    before = state(tree)
    plan = tree.reclaimable(me, cpus(amount))
    assert state(tree) == before
    if tree.admits(me, cpus(amount)).ok:
        assert plan == ()
    for item in plan:
        own = next(spec.nominal[CPUS] for spec in specs if spec.name == item.queue)
        mine = tree.usage(item.queue)[CPUS] - sum(
            tree.usage(spec.name)[CPUS] for spec in specs if spec.parent == item.queue
        )
        assert item.amount <= mine - own * 1000
        tree.refund(item.queue, {CPUS: item.amount}, units=0)
    if plan:
        assert tree.admits(me, cpus(amount)).ok


@settings(max_examples=200, deadline=None)
@given(trees(), steps, st.integers(0, 7))
def test_a_queue_can_always_have_its_own_quota_back(
    specs: list[QueueSpec], todo: list[tuple[int, int, bool]], number: int
) -> None:
    tree = QuotaTree(specs)
    for at, size, _ in todo:
        if tree.admits(name := f"q{at % len(specs)}", cpus(size)).ok:
            tree.charge(name, cpus(size), units=0)
    me = specs[number % len(specs)]
    if any(spec.parent == me.name for spec in specs):
        return  # an interior queue's quota is also used by those below it
    unused = quantity(CPUS, me.nominal[CPUS]) - tree.usage(me.name)[CPUS]
    if unused > 0:
        assert tree.admits(me.name, {CPUS: unused}).ok or tree.reclaimable(me.name, {CPUS: unused})
