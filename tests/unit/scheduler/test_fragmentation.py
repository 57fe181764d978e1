"""Fragmentation and the packing rules, against values worked out by hand and against the definition taken literally."""

from __future__ import annotations

import numpy as np
import pytest

from meridian.errors import InvalidArgumentError
from services.scheduler.core.errors import MalformedJobError
from services.scheduler.core.fragmentation import (
    ABSENT,
    IncrementalScores,
    Rule,
    ShareDemand,
    SharedNodes,
    TypicalClasses,
    best,
    best_fit,
    dot_product,
    fits,
    fragmentation,
    fragmentation_deltas,
    fragmentation_rule,
    gpu_clustering,
    gpu_packing,
    random_place,
    tightest_device,
)
from services.scheduler.core.table import Floats

HALF = ShareDemand(cpu_milli=1000, devices=1, device_milli=500)
WHOLE_BIG = ShareDemand(cpu_milli=8000, devices=1, device_milli=1000)
CPU_ONLY = ShareDemand(cpu_milli=1000)


def nodes_of(*free: list[int], cpu: list[int] | None = None, model: list[int] | None = None) -> SharedNodes:
    """Nodes with these milli left per device; 4 processors each unless said otherwise."""
    nodes = SharedNodes.idle(
        cpu or [4000] * len(free), [0] * len(free), [len(row) for row in free], model or [0] * len(free)
    )
    for index, row in enumerate(free):
        nodes.device_free_milli[index, : len(row)] = row
    return nodes


def classes_of(*weighted: tuple[ShareDemand, int], models: int = 1) -> TypicalClasses:
    return TypicalClasses.of([demand for demand, count in weighted for _ in range(count)], models, coverage=1.0)


MIXED = classes_of((HALF, 5), (WHOLE_BIG, 3), (CPU_ONLY, 2))


def test_fragmentation_is_the_expected_unusable_part() -> None:
    nodes = nodes_of([1000, 400], [500, 500], [], [1000, 400], cpu=[4000, 4000, 4000, 500])
    # Node 0: a half cannot use the 400; nobody has 8 processors; without devices all 1400 are useless:
    # 0.5 * 400 + 0.3 * 1400 + 0.2 * 1400 = 900. Node 1: 0.5 * 0 + 0.5 * 1000. Node 3: no processors for anyone: all.
    np.testing.assert_allclose(fragmentation(nodes, MIXED), [900, 500, 0, 1400])


def test_more_than_one_device_and_models() -> None:
    pair = ShareDemand(cpu_milli=0, devices=2, device_milli=1000)
    picky = ShareDemand(cpu_milli=0, devices=1, device_milli=200, models=(1,))
    nodes = nodes_of([1000, 1000], [1000, 400], [1000, 1000, 700], [100, 300], model=[0, 0, 1, 1])
    # The pair: 0, 1400 (one whole device only), 700, 400. The picky one: 2000 and 1400 on model 0, then 0 and 100.
    classes = classes_of((pair, 1), (picky, 1), models=2)
    np.testing.assert_allclose(fragmentation(nodes, classes), [1000, 1400, 350, 250])


def test_typical_classes_cover_the_popular_ones() -> None:
    demands = [HALF] * 6 + [WHOLE_BIG] * 3 + [CPU_ONLY]
    classes = TypicalClasses.of(demands, models=1, coverage=0.9)
    assert classes.cpu_milli.tolist() == [1000, 8000]
    assert classes.device_milli.tolist() == [500, 1000]
    np.testing.assert_allclose(classes.popularity, [2 / 3, 1 / 3])
    assert len(TypicalClasses.of(demands, models=1, coverage=0.91).popularity) == 3


def test_delta_by_device() -> None:
    nodes = nodes_of([1000, 400], [300])
    demand = ShareDemand(cpu_milli=500, devices=1, device_milli=400)
    classes = classes_of((HALF, 1))
    # 400 are useless before. On device 0: 600 + 400, still 400 useless. On device 1: 1000 + 0, nothing useless.
    assert fragmentation_deltas(nodes, demand, classes).tolist() == [[0, -400], [np.inf, np.inf]]


def test_delta_of_whole_devices_and_of_processors() -> None:
    nodes = nodes_of([1000, 400])
    classes = classes_of((HALF, 1))
    whole = fragmentation_deltas(nodes, ShareDemand(0, devices=1, device_milli=1000), classes)
    assert whole.tolist() == [[0]]  # 0 + 400 left: 400 useless as before
    processors = fragmentation_deltas(nodes, ShareDemand(cpu_milli=3500), classes)
    assert processors.tolist() == [[1000]]  # a half no longer gets its processor: 1400 useless instead of 400


def test_gradient_descent_scores_in_steps_or_exactly() -> None:
    classes = classes_of((HALF, 1))
    nodes = nodes_of([1000, 400], [1000, 1000], [300])
    demand = ShareDemand(cpu_milli=500, devices=1, device_milli=400)
    scored = fragmentation_rule(classes)(nodes, demand)
    # Growth -400 and 0: 100 / (1 + e^-0.4) = 59.87, 100 / 2 = 50.
    assert scored.score.tolist() == [59, 50, -np.inf]
    assert scored.device[0] == 1
    assert fragmentation_rule(classes, steps=0)(nodes, demand).score.tolist() == [400, 0, -np.inf]
    assert best(scored) == (0, 1)


def test_equal_growth_is_a_tie_whatever_else_the_nodes_have() -> None:
    # Of a whole device 900 stay, which 5 of 31 demands no longer use: 900 * 5 / 31, on any node.
    sizes = ((100, 4), (200, 5), (600, 7), (300, 6), (1000, 5), (400, 4))
    classes = classes_of(*((ShareDemand(0, devices=1, device_milli=milli), count) for milli, count in sizes))
    nodes = nodes_of(*[[1000] * count for count in range(1, 9)])
    deltas = fragmentation_deltas(nodes, ShareDemand(0, devices=1, device_milli=100), classes)
    growth = set(deltas[np.isfinite(deltas)].tolist())
    assert len(growth) == 1
    assert growth.pop() == pytest.approx(900 * 5 / 31, abs=1e-6)


def test_best_fit_by_hand() -> None:
    nodes = nodes_of([1000, 1000], [1000, 1000], [0, 400], cpu=[64000, 32000, 32000])
    demand = ShareDemand(cpu_milli=32000, devices=1, device_milli=1000)
    # Left over: 0.5 * 32/128 + 0.5 * 1/8 = 0.1875 -> 81.25; 0.0625 -> 93.75.
    assert best_fit(nodes, demand).score.tolist() == [81, 93, -np.inf]


def test_dot_product_by_hand() -> None:
    nodes = nodes_of([1000, 1000], [1000], cpu=[64000, 32000])
    demand = ShareDemand(cpu_milli=32000, devices=1, device_milli=1000)
    # 0.5 * 0.25 + 0.25 * 0.125 = 0.15625 -> 100 (1 - 0.078125); 0.0625 + 0.015625 -> 100 (1 - 0.0390625).
    assert dot_product(nodes, demand).score.tolist() == [92, 96]


def test_gpu_packing_by_hand() -> None:
    share = ShareDemand(0, devices=1, device_milli=300)
    nodes = nodes_of([400, 1000], [1000, 200], [1000, 1000], [1000] * 8, [1000] * 20, [999, 999], [200], [])
    # In use: 100 - 40 // 10; no device in use fits: 50 - 1; idle nodes: 33 - 2, 33 - 8, at least 20; 100 - 99 // 10.
    assert gpu_packing(nodes, share).score.tolist() == [96, 49, 31, 25, 20, 91, -np.inf, -np.inf]
    pair = ShareDemand(0, devices=2, device_milli=1000)
    assert gpu_packing(nodes_of([1000, 1000, 0], [1000, 1000]), pair).score.tolist() == [48, 31]
    assert gpu_packing(nodes, CPU_ONLY).score.tolist() == [0] * 8


def test_gpu_clustering_by_hand() -> None:
    share = ShareDemand(0, devices=1, device_milli=500)
    whole = ShareDemand(0, devices=1, device_milli=1000)
    nodes = nodes_of(*[[1000] * 8 for _ in range(4)])
    nodes.place(0, share, 0)
    nodes.place(1, share, 0)
    nodes.place(1, whole)
    nodes.place(2, whole)
    # 25 (8000 - free) / 8000: 7500 free 1.56, 6500 free 4.7, 7000 free 3.1, 8000 free 0.
    assert gpu_clustering(nodes, share).score.tolist() == [76, 54, 3, 25]
    assert gpu_clustering(nodes, whole).score.tolist() == [1, 54, 78, 25]
    assert gpu_clustering(nodes, ShareDemand(0, devices=8, device_milli=1000)).score.tolist() == [-np.inf] * 3 + [25]


def test_random_takes_every_node_and_device_that_fits() -> None:
    nodes = nodes_of([400, 1000], [300], [600])
    demand = ShareDemand(0, devices=1, device_milli=400)
    generator = np.random.default_rng(1)
    seen = {best(random_place(nodes, demand, generator)) for _ in range(100)}
    assert seen == {(0, 0), (0, 1), (2, 0)}
    assert best(random_place(nodes, ShareDemand(9000), generator)) is None


def test_tightest_device_and_what_fits() -> None:
    nodes = nodes_of([1000, 400, 500], [300], model=[0, 1])
    assert tightest_device(nodes, HALF).tolist() == [2, ABSENT]
    assert tightest_device(nodes, WHOLE_BIG).tolist() == [ABSENT, ABSENT]
    assert fits(nodes, HALF).tolist() == [True, False]
    assert fits(nodes, ShareDemand(0, devices=1, device_milli=100, models=(1,))).tolist() == [False, True]
    assert fits(nodes, ShareDemand(0, memory_bytes=1)).tolist() == [False, False]
    assert fits(nodes, ShareDemand(4001)).tolist() == [False, False]


def literal(nodes: SharedNodes, classes: TypicalClasses) -> Floats:
    """F_n as the paper states it, node by node and class by class."""
    result = []
    for row in range(len(nodes.device_model)):
        free = [int(milli) for milli in nodes.device_free_milli[row] if milli >= 0]
        loss = 0.0
        for index, popularity in enumerate(classes.popularity):
            milli, devices = int(classes.device_milli[index]), int(classes.devices[index])
            runs = (
                milli > 0
                and classes.accepts[index, nodes.device_model[row]]
                and nodes.cpu_free_milli[row] >= classes.cpu_milli[index]
                and sum(left >= milli for left in free) >= devices
            )
            loss += popularity * (sum(left for left in free if left < milli) if runs else sum(free))
        result.append(loss)
    return np.array(result)


def a_cluster(generator: np.random.Generator) -> tuple[SharedNodes, list[ShareDemand]]:
    count = 12
    nodes = SharedNodes.idle(
        generator.integers(4, 33, count) * 1000,
        np.full(count, 1 << 40),
        generator.choice([0, 1, 2, 4, 8], count),
        generator.integers(0, 3, count),
    )
    nodes.device_model[nodes.device_free_milli[:, 0] == ABSENT] = -1
    demands = [
        ShareDemand(
            int(generator.integers(0, 9)) * 1000,
            int(generator.integers(0, 1 << 30)),
            devices,
            0 if not devices else (int(generator.integers(1, 11)) * 100 if devices == 1 else 1000),
            models=((), (), (0,), (1, 2))[int(generator.integers(4))] if devices else (),
        )
        for devices in generator.choice([0, 1, 1, 1, 2, 4], 30).tolist()
    ]
    return nodes, demands


@pytest.mark.parametrize("seed", range(5))
def test_any_state_and_any_hypothetical_placement_agree_with_the_definition(seed: int) -> None:
    generator = np.random.default_rng(seed)
    nodes, demands = a_cluster(generator)
    classes = TypicalClasses.of(demands, models=3)
    for demand in demands * 3:
        before = fragmentation(nodes, classes)
        np.testing.assert_allclose(before, literal(nodes, classes))
        deltas = fragmentation_deltas(nodes, demand, classes)
        feasible = np.argwhere(np.isfinite(deltas))
        assert set(feasible[:, 0].tolist()) == set(np.flatnonzero(fits(nodes, demand)).tolist())
        for row, device in feasible:
            after = nodes.rows(np.arange(len(nodes.device_model)))
            after.place(int(row), demand, int(device))
            np.testing.assert_allclose(deltas[row, device], literal(after, classes)[row] - before[row], atol=1e-6)
        if len(feasible):
            row, device = feasible[generator.integers(len(feasible))]
            nodes.place(int(row), demand, int(device))


@pytest.mark.parametrize("rule", [best_fit, dot_product, gpu_packing, gpu_clustering, None])
def test_scores_kept_are_those_of_a_whole_evaluation(rule: Rule | None) -> None:
    generator = np.random.default_rng(7)
    nodes, demands = a_cluster(generator)
    applied = rule or fragmentation_rule(TypicalClasses.of(demands, models=3))
    kept = IncrementalScores(nodes, applied)
    placed = 0
    for index in generator.integers(0, len(demands), 200):
        scored, fresh = kept.scores(demands[index]), applied(nodes, demands[index])
        np.testing.assert_array_equal(scored.score, fresh.score)
        feasible = np.isfinite(fresh.score)
        np.testing.assert_array_equal(scored.device[feasible], fresh.device[feasible])
        place = best(scored)
        if place is not None:
            nodes.place(place[0], demands[index], place[1])
            kept.touched(place[0])
            placed += 1
    assert 20 < placed < 200


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"cpu_milli": -1}, "cpu_milli"),
        ({"cpu_milli": 1, "memory_bytes": -1}, "memory_bytes"),
        ({"cpu_milli": 1, "devices": -1}, "devices"),
        ({"cpu_milli": 1, "devices": 1}, "device_milli"),
        ({"cpu_milli": 1, "devices": 1, "device_milli": 1001}, "device_milli"),
        ({"cpu_milli": 1, "devices": 2, "device_milli": 500}, "device_milli"),
        ({"cpu_milli": 1, "device_milli": 500}, "device_milli"),
    ],
)
def test_a_demand_that_cannot_be_names_its_field(values: dict[str, int], field: str) -> None:
    with pytest.raises(MalformedJobError, match=field):
        ShareDemand(**values)  # type: ignore[arg-type]


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="memory_bytes"):
        SharedNodes.idle([1, 2], [1], [0, 0], [-1, -1])
    with pytest.raises(InvalidArgumentError, match="demands"):
        TypicalClasses.of([], models=1)
    with pytest.raises(InvalidArgumentError, match="coverage"):
        TypicalClasses.of([HALF], models=1, coverage=0)
    with pytest.raises(InvalidArgumentError, match="models"):
        TypicalClasses.of([ShareDemand(0, devices=1, device_milli=1, models=(1,))], models=1)


def test_placing_what_does_not_fit_changes_nothing() -> None:
    nodes = nodes_of([400, 1000])
    for demand, device in ((HALF, 0), (HALF, ABSENT), (HALF, 2), (WHOLE_BIG, ABSENT), (ShareDemand(0, 1), ABSENT)):
        with pytest.raises(InvalidArgumentError, match="does not fit"):
            nodes.place(0, demand, device)
    assert nodes.device_free_milli.tolist() == [[400, 1000]]
    assert nodes.cpu_free_milli.tolist() == [4000]
    assert not nodes.hosted.any()
