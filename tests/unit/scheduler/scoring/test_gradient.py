"""Fragmentation gradient descent as a node score: hand-computed growths, its own choice of the device, and options."""

from __future__ import annotations

import math

import numpy as np
import pytest

from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Domain, Fleet
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.scores import SCORES, register
from services.scheduler.core.scoring.gradient import GradientScore, typical_classes
from services.scheduler.core.scoring.packing import BestFitScore
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.view import View
from services.scheduler.core.waiting_unit import PendingUnit
from tests.unit.scheduler.scoring.fleets import node, view_of

HALF = Demand(1, accelerators=1, device_milli=500)
WHOLE = Demand(1, accelerators=1)
ALL = slice(None)


def shared_view() -> View:
    """a: two idle devices; b: one idle device and one with 600 milli left."""
    view = view_of(node("a", models=("A100",) * 2), node("b", models=("A100",) * 2))
    view.occupy(1, Demand(1, accelerators=1, device_milli=400), (1,))
    return view


def test_growth_by_hand() -> None:
    view = shared_view()
    view.facts["typical_demands"] = ((WHOLE, 3.0), (HALF, 1.0))
    # A whole device is asked for three times in four. Placing half a device:
    #   a: before, nothing is useless; after, 500 are left on one device: useless to 3/4 -> growth 375 milli.
    #   b on the device with 600 left: before 600 useless to 3/4 (450); after, 100 useless to both (100) -> growth -350 milli.
    values = GradientScore(steps=0).nodes(view, HALF, ALL)
    assert values == pytest.approx([1 / (1 + math.exp(0.375)), 1 / (1 + math.exp(-0.35))])
    # In hundredths, as published: 40.73 -> 40, 58.66 -> 58.
    assert GradientScore().nodes(view, HALF, ALL).tolist() == [0.40, 0.58]
    assert GradientScore().devices(view, HALF, view.columns(HALF), 1) == (1,)


def test_it_may_choose_another_device_than_the_fullest_one() -> None:
    # Only halves are usual, and 600 milli are asked for. Idle device: 400 become useless. Device with 700 left: 100 do.
    view = view_of(node("a", models=("A100",) * 2))
    view.occupy(0, Demand(1, accelerators=1, device_milli=300), (1,))
    view.facts["typical_demands"] = ((HALF, 1.0),)
    asked = Demand(1, accelerators=1, device_milli=600)
    assert GradientScore().devices(view, asked, view.columns(asked), 0) == (1,)
    # Only 700s are usual, and 300 are asked for. Device with 700 left: those 700 were of use, 400 become useless. Idle one: 700
    # are left and all of use: growth 0. The view by itself would take the fullest device.
    view.facts["typical_demands"] = ((Demand(1, accelerators=1, device_milli=700), 1.0),)
    small = Demand(1, accelerators=1, device_milli=300)
    assert GradientScore().devices(view, small, view.columns(small), 0) == (0,)
    assert view.take(0, small, view.columns(small)) == (1,)


def test_it_has_no_preference_for_whole_devices_or_without_usual_work() -> None:
    view = shared_view()
    assert GradientScore().nodes(view, HALF, ALL).tolist() == [0.5, 0.5]
    assert GradientScore().devices(view, HALF, view.columns(HALF), 0) == ()
    view.facts["typical_demands"] = ((WHOLE, 1.0),)
    assert GradientScore().devices(view, WHOLE, view.columns(WHOLE), 0) == ()
    # Where nothing fits there is nothing to choose, and the score is 0.
    view.occupy(0, Demand(1, accelerators=2), (0, 1))
    assert GradientScore().devices(view, HALF, view.columns(HALF), 0) == ()
    assert GradientScore().nodes(view, HALF, np.array([0])).tolist() == [0.0]


def test_devices_stay_within_the_models_of_the_alternative() -> None:
    view = view_of(node("a", models=("A100", "V100")), facts={"typical_demands": ((HALF, 1.0),)})
    columns = {model.model: index for index, model in enumerate(view.table.models)}
    assert GradientScore().devices(view, HALF, np.array([columns["V100"]]), 0) == (1,)
    assert GradientScore().devices(view, HALF, np.array([columns["A100"]]), 0) == (0,)


def test_typical_classes_keep_the_popular_ones() -> None:
    table = shared_view().table
    rare = Demand(1, cpus=1.0, accelerators=2)
    classes = typical_classes(table, ((HALF, 60.0), (WHOLE, 36.0), (rare, 4.0)))
    # 96 of 100 are more than 95 %: the third is left out and the others are scaled to 1.
    assert classes.popularity == pytest.approx([60 / 96, 36 / 96])
    assert classes.device_milli.tolist() == [500, 1000]
    assert classes.accepts.all()
    # Equal demands are one class, whatever else they say.
    merged = typical_classes(table, ((HALF, 1.0), (Demand(4, accelerators=1, device_milli=500), 1.0)))
    assert merged.popularity.tolist() == [1.0]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"stepz": 1}, "options.fgd.stepz"),
        ({"steps": -1}, "options.fgd.steps"),
        ({"coverage": 0}, "options.fgd.coverage"),
        ({"coverage": 1.5}, "options.fgd.coverage"),
        ({"demands": ["x"]}, r"options.fgd.demands\[0\]"),
        ({"demands": [{"popularity": 1, "gpus": 1}]}, r"options.fgd.demands\[0\].gpus"),
        ({"demands": [{"accelerators": 1}]}, r"options.fgd.demands\[0\].popularity"),
        ({"demands": [{"popularity": 1, "accelerators": 1.5}]}, r"options.fgd.demands\[0\].accelerators"),
        ({"demands": [{"popularity": 1, "device_milli": 2000}]}, r"options.fgd.demands\[0\].device_milli"),
        ({"demands": [{"popularity": 1, "accelerator_types": "a"}]}, r"options.fgd.demands\[0\].accelerator_types"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], names: str) -> None:
    with pytest.raises(PolicyError, match=names):
        GradientScore().configured(options)


def test_wrong_facts_are_named() -> None:
    with pytest.raises(PolicyError, match="typical_demands: the popularity"):
        typical_classes(shared_view().table, ((HALF, 0.0),))


def test_a_cycle_takes_the_device_that_the_score_chose() -> None:
    body = {
        "scores": {"fgd": 1.0},
        "options": {"fgd": {"demands": [{"accelerators": 1, "device_milli": 700, "popularity": 1}]}},
    }
    devices = {}
    for name, changes in (("fgd", body), ("best_fit", {"scores": {"best_fit": 1.0}})):
        policy = policy_from_json(changes)
        table = table_of(Fleet({"d": Domain("d")}, {"a": node("a", models=("A100",) * 2)}))
        cluster = Cluster(table, policy)
        cluster.view.occupy(0, Demand(1, accelerators=1, device_milli=300), (1,))
        cluster.add(PendingUnit(UnitKey("j", 0), "t", 0, 0.0, Demand(1, accelerators=1, device_milli=300)))
        (placement,) = decide(cluster, policy, 0.0).placed
        devices[name] = placement.ranks[0].devices
    # As above: the idle device is of no less use afterwards; best fit leaves the device to the view, which takes the fullest.
    assert devices == {"fgd": (0,), "best_fit": (1,)}


def test_the_weightiest_score_chooses_the_device() -> None:
    class Second:
        name = "test_second_device"
        dynamic = False

        def nodes(self, view: View, demand: Demand, rows: object) -> np.ndarray:
            return np.zeros(len(view.table.cpus[rows]))

        def devices(self, view: View, demand: Demand, columns: np.ndarray, row: int) -> tuple[int, ...]:
            return (1,)

    register(Second())
    try:
        for weight, device in ((0.5, 0), (2.0, 1), (0.0, 0)):
            options = (("fgd", (("demands", ((("accelerators", 1), ("popularity", 1)),)),)),)
            policy = Policy(scores=(("fgd", 1.0), (Second.name, weight)), options=options)
            cluster = Cluster(table_of(Fleet({"d": Domain("d")}, {"a": node("a", models=("A100",) * 2)})), policy)
            cluster.add(PendingUnit(UnitKey("j", 0), "t", 0, 0.0, HALF))
            (placement,) = decide(cluster, policy, 0.0).placed
            assert placement.ranks[0].devices == (device,)
    finally:
        del SCORES[Second.name]


def test_the_score_is_for_nodes_alone() -> None:
    assert not hasattr(BestFitScore(), "devices")
    assert not hasattr(GradientScore(), "domains")


@pytest.mark.parametrize("steps", [100, 0])
@pytest.mark.parametrize("asked", [HALF, WHOLE, Demand(1, cpus=2.0, memory_bytes=40 * 2**30)])
def test_a_large_fleet_is_judged_as_its_nodes_one_by_one(asked: Demand, steps: int) -> None:
    generator = np.random.default_rng(5)
    view = view_of(
        *(
            node(f"n{n:03d}", models=("A100", "V100")[n % 2 : n % 2 + 1] * int(generator.integers(0, 4)))
            for n in range(300)
        )
    )
    for _ in range(400):
        milli = int(generator.choice([300, 500, 1000]))
        held = Demand(1, cpus=1.0, memory_bytes=20 * 2**30, accelerators=1, device_milli=milli)
        rows = np.flatnonzero(view.ranks_that_fit(held, view.columns(held)))
        view.take(int(generator.choice(rows)), held, view.columns(held))
    view.facts["typical_demands"] = ((HALF, 2.0), (WHOLE, 1.0), (Demand(1, cpus=4.0, accelerators=2), 1.0))
    score = GradientScore(steps)
    alone = np.concatenate([score.nodes(view, asked, np.array([row])) for row in range(300)])
    assert len(np.unique(alone)) > 3 or not asked.accelerators
    np.testing.assert_array_equal(score.nodes(view, asked, ALL), alone)
