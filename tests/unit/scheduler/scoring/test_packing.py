"""Orders of nodes by what is left; all expected values are computed by hand from the formulas in the docstrings."""

from __future__ import annotations

import numpy as np
import pytest

from services.scheduler.core.scoring.gradient import GradientScore
from services.scheduler.core.scoring.packing import (
    BestFitScore,
    DotProductScore,
    GpuClusteringScore,
    GpuPackingScore,
    LeastLoadedScore,
    WorstFitScore,
)
from services.scheduler.core.scoring.shared import kind_label, share_demand
from services.scheduler.core.state import Demand
from services.scheduler.core.view import View
from tests.unit.scheduler.scoring.fleets import node, view_of

ALL = slice(None)


@pytest.fixture
def view() -> View:
    """Three nodes: 8 cpus and 4 devices idle; the same with 4 cpus and 2 devices taken; 4 cpus without devices."""
    view = view_of(node("a"), node("b"), node("c", cpus=4.0, models=()))
    view.occupy(1, Demand(1, cpus=4.0, accelerators=2), (0, 1))
    return view


def test_best_fit_takes_the_node_with_least_left(view: View) -> None:
    # a: cpus (8-2)/8, devices (4-1)/4 -> 1 - (0.75+0.75)/2 = 0.25; b: (4-2)/8, (2-1)/4 -> 0.75.
    values = BestFitScore().nodes(view, Demand(1, cpus=2.0, accelerators=1), ALL)
    assert values.tolist() == [0.25, 0.75, 0.0]


def test_worst_fit_is_what_is_left(view: View) -> None:
    values = WorstFitScore().nodes(view, Demand(1, cpus=2.0, accelerators=1), ALL)
    assert values.tolist() == [0.75, 0.25, 0.0]
    # Without devices asked for c fits too: ((4-2)/8 + 0) / 2.
    assert WorstFitScore().nodes(view, Demand(1, cpus=2.0), ALL).tolist() == [0.875, 0.375, 0.125]


def test_dot_product_prefers_little_of_what_is_asked(view: View) -> None:
    # a: 1 - (8/8 * 2/8 + 4/4 * 1/4) / 2 = 0.75; b: 1 - (4/8 * 2/8 + 2/4 * 1/4) / 2 = 0.875, floored 0.87.
    values = DotProductScore().nodes(view, Demand(1, cpus=2.0, accelerators=1), ALL)
    assert values.tolist() == [0.75, 0.87, 0.0]


def test_gpu_packing_takes_devices_in_use_then_nodes_in_use_then_idle_nodes(view: View) -> None:
    # Idle node of 4 devices: 33 - 4; node in use with idle devices: 50 - 1.
    whole = Demand(1, cpus=1.0, accelerators=1)
    assert GpuPackingScore().nodes(view, whole, ALL).tolist() == [0.29, 0.49, 0.0]
    # With 300 milli of device 2 taken on b, 700 are left: 100 - 70/10.
    view.occupy(1, Demand(1, accelerators=1, device_milli=300), (2,))
    share = Demand(1, cpus=1.0, accelerators=1, device_milli=500)
    assert GpuPackingScore().nodes(view, share, ALL).tolist() == [0.29, 0.93, 0.0]


def test_gpu_clustering_keeps_kinds_together(view: View) -> None:
    # Idle a: 25 + 25 (4-4)/4; b, holding nothing known: 25 + 25 (4-2)/4 floored.
    demand = Demand(1, cpus=1.0, accelerators=1, labels=frozenset({"devices:1"}))
    assert kind_label(demand) == "devices:1"
    assert GpuClusteringScore().nodes(view, demand, ALL).tolist() == [0.25, 0.37, 0.0]
    view.take(0, demand, view.columns(demand))
    # a holds only the kind: 75 + 25 (4-3)/4 floored; c does not fit.
    assert GpuClusteringScore().nodes(view, demand, ALL).tolist() == [0.81, 0.37, 0.0]
    pair = Demand(1, cpus=1.0, accelerators=2, labels=frozenset({"devices:2"}))
    # For another kind a holds only others: 0 + 6.
    assert GpuClusteringScore().nodes(view, pair, ALL).tolist() == [0.06, 0.37, 0.0]


def test_least_loaded_is_relative_to_the_node(view: View) -> None:
    view.occupy(0, Demand(1, accelerators=1, device_milli=400), (0,))
    # a: cpus 1, devices 3600/4000; b: (4/8 + 2/4) / 2; c has no devices: its cpus alone.
    assert LeastLoadedScore().nodes(view, Demand(1, cpus=1.0), ALL) == pytest.approx([0.95, 0.5, 1.0])


def test_scores_of_some_rows_are_those_of_all(view: View) -> None:
    demand = Demand(1, cpus=1.0, accelerators=1, device_milli=500)
    for score in (BestFitScore(), WorstFitScore(), DotProductScore(), GpuPackingScore(), GpuClusteringScore()):
        every = score.nodes(view, demand, ALL)
        assert score.nodes(view, demand, np.array([2, 0])).tolist() == every[[2, 0]].tolist()


def test_a_share_of_several_devices_is_judged_as_whole_ones(view: View) -> None:
    asked = share_demand(view.table, Demand(1, accelerators=2, device_milli=500))
    assert (asked.devices, asked.device_milli, asked.models) == (2, 1000, ())


def test_a_type_that_no_node_has_fits_nowhere(view: View) -> None:
    demand = Demand(1, cpus=1.0, accelerators=1, accelerator_types=("h100",))
    assert BestFitScore().nodes(view, demand, ALL).tolist() == [0.0, 0.0, 0.0]


def test_a_fleet_without_devices() -> None:
    view = view_of(node("a", models=()), node("b", models=()))
    view.occupy(0, Demand(1, cpus=4.0), ())
    share = Demand(1, cpus=1.0, accelerators=1, device_milli=500)
    # 1 - (7/8 + 0)/2 = 0.5625 and 1 - (3/8)/2 = 0.8125, floored to hundredths.
    assert BestFitScore().nodes(view, Demand(1, cpus=1.0), ALL).tolist() == [0.81, 0.56]
    assert BestFitScore().nodes(view, share, ALL).tolist() == [0.0, 0.0]
    assert GradientScore(demands=((share, 1.0),)).nodes(view, share, ALL).tolist() == [0.0, 0.0]
    assert GradientScore(demands=((share, 1.0),)).devices(view, share, view.columns(share), 0) == ()
