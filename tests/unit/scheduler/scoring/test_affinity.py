"""Accelerator models by expected rate, the compute index, and neighbours that slow each other down."""

from __future__ import annotations

import numpy as np
import pytest

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.scoring.affinity import RunsThereFilter, ThroughputScore, relative_rates
from services.scheduler.core.scoring.interference import InterferenceScore, profile_label, profile_of
from services.scheduler.core.state import Demand
from services.scheduler.core.view import View
from simulation.interference import Interference, Pair, Profile
from simulation.model import Throughputs
from tests.unit.scheduler.scoring.fleets import node, view_of

ALL = slice(None)


@pytest.fixture
def view() -> View:
    """a: an A100 and a V100 on one node; b: a V100; c: a K80; d: no accelerators."""
    rates = Throughputs()
    rates.rates["lm", 1] = {"A100": 8.0, "V100": 2.0}
    rates.rates["resnet", 2] = {"A100": 10.0, "V100": 6.0, "K80": 1.0}
    return view_of(
        node("a0", "a", models=("A100", "V100")),
        node("b0", "b", models=("V100",)),
        node("c0", "c", models=("K80",)),
        node("d0", "d", models=()),
        facts={"throughputs": rates},
    )


def column(view: View, model: str) -> int:
    return [item.model for item in view.table.models].index(model)


def test_rates_are_relative_to_the_best_accepted_model(view: View) -> None:
    lm = Demand(1, accelerators=1, profile="lm")
    assert ThroughputScore().domains(view, lm).tolist() == [1.0, 0.25, 0.0, 0.0]
    # Each model by itself: a has both.
    assert ThroughputScore().domains_of(view, lm, np.array([column(view, "V100")])).tolist() == [0.25, 0.25, 0.0, 0.0]
    assert ThroughputScore().domains_of(view, lm, np.array([column(view, "A100")])).tolist() == [1.0, 0.0, 0.0, 0.0]
    # Who does not accept the best model is measured by the best one accepted; by the number of ranks, too.
    old = Demand(2, accelerators=1, profile="resnet", accelerator_types=("v100", "k80"))
    assert ThroughputScore().domains(view, old) == pytest.approx([1.0, 1.0, 1 / 6, 0.0])


def test_nothing_known_is_neutral(view: View) -> None:
    for demand in (Demand(1, accelerators=1), Demand(1, cpus=1.0, profile="lm")):
        assert relative_rates(view, demand) is None
        assert ThroughputScore().domains(view, demand).tolist() == [0.5] * 4
    view.facts.clear()
    assert ThroughputScore().domains(view, Demand(1, accelerators=1, profile="lm")).tolist() == [0.5] * 4
    view.facts["throughputs"] = {"lm": 1}
    with pytest.raises(PolicyError, match=r"facts.throughputs: an object with the method rate"):
        ThroughputScore().domains(view, Demand(1, accelerators=1, profile="lm"))


def test_it_runs_only_where_it_has_a_rate(view: View) -> None:
    lm = Demand(1, accelerators=1, profile="lm")
    assert RunsThereFilter().passes(view, lm, ALL).tolist() == [True, True, False, False]
    assert RunsThereFilter().why(view, lm, 2) == "lm does not run on K80"
    least = RunsThereFilter().configured({"least": 0.5})
    assert least.passes(view, lm, np.array([1, 0])).tolist() == [False, True]
    assert least.why(view, lm, 1) == "lm does not run at 0.5 of its best rate on V100"
    # The node with both models is left; of its models the slow one is taken out.
    assert least.columns(view, lm, view.columns(lm)).tolist() == [column(view, "A100")]
    assert RunsThereFilter().configured({"least": 0.25}).passes(view, lm, ALL).tolist() == [True, True, False, False]
    # A profile that nobody has measured runs nowhere: it would never end.
    assert not RunsThereFilter().passes(view, Demand(1, accelerators=1, profile="new"), ALL).any()
    assert not RunsThereFilter().applies(Demand(1, accelerators=1))
    view.facts.clear()
    assert RunsThereFilter().passes(view, lm, ALL).all()


@pytest.mark.parametrize("options", [{"least": 1.1}, {"least": -0.1}, {"most": 1}])
def test_wrong_options_are_named(options: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match=f"options.runs_there.{next(iter(options))}"):
        RunsThereFilter().configured(options)


def test_labels_of_profiles() -> None:
    assert profile_label("ResNet18 b64", 2) == "profile:ResNet18 b64:2"
    assert profile_of("profile:ResNet18 b64:2") == ("ResNet18 b64", 2)
    assert profile_of("profile:lm") == ("lm", 1)
    assert profile_of("profile:a:b") == ("a:b", 1)
    assert profile_of("devices:1") is None


def test_the_worst_pair_counts() -> None:
    known = Interference(
        [
            Pair(Profile("lm"), Profile("resnet"), "A100", 0.9, 0.6),
            Pair(Profile("lm"), Profile("gan"), "", 0.7, 0.95),
            Pair(Profile("lm"), Profile("lm"), "", 0.8, 0.8),
        ]
    )
    view = view_of(*(node(name, models=("A100",)) for name in "abcd"), facts={"interference": known})

    def runs(row: int, profile: str, ranks: int = 1) -> None:
        labels = frozenset({profile_label(profile, ranks)})
        view.occupy(row, Demand(1, accelerators=1, device_milli=200, labels=labels), (0,))

    share = Demand(1, accelerators=1, device_milli=300, profile="lm", labels=frozenset({profile_label("lm")}))
    assert InterferenceScore().nodes(view, share, ALL).tolist() == [1.0] * 4
    runs(0, "resnet")
    runs(1, "gan")
    runs(1, "resnet", 2)
    runs(2, "lm")
    # a: resnet falls to 0.6; b: 0.7 beside gan, but resnet on 2 ranks was never measured: 0.5; c: 0.8.
    assert InterferenceScore().nodes(view, share, ALL).tolist() == [0.6, 0.5, 0.8, 1.0]
    assert InterferenceScore().nodes(view, share, np.array([2, 0])).tolist() == [0.8, 0.6]
    # Who takes whole devices shares none.
    whole = Demand(1, accelerators=1, profile="lm")
    assert InterferenceScore().nodes(view, whole, ALL).tolist() == [1.0] * 4
    view.give(0, Demand(1, accelerators=1, device_milli=200, labels=frozenset({profile_label("resnet")})), (0,))
    assert InterferenceScore().nodes(view, share, ALL)[0] == 1.0
