"""Slow-down of co-located jobs: symmetric look-up, the defaults, and the measured tables."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from simulation.interference import TIME_SLICED, Interference, Pair, Profile, colocation_profile, read_colocation
from simulation.model import Throughputs
from tests.public_data import public_data

A, B, C = Profile("a"), Profile("b"), Profile("c", 2)


def test_a_pair_holds_in_both_directions() -> None:
    table = Interference([Pair(A, B, "V100", 0.9, 0.6)])
    assert (table.pair(A, B, "V100"), table.pair(B, A, "V100")) == (0.9, 0.6)
    assert table.known(B, A, "V100")
    assert not table.known(B, A, "K80")


def test_the_same_profile_twice_gets_the_mean() -> None:
    assert Interference([Pair(A, A, "", 0.6, 0.8)]).pair(A, A) == pytest.approx(0.7)


def test_what_is_measured_twice_is_averaged_also_across_directions() -> None:
    table = Interference([Pair(A, B, "", 0.9, 0.6), Pair(B, A, "", 0.8, 0.7)])
    assert (table.pair(A, B), table.pair(B, A)) == (pytest.approx(0.8), pytest.approx(0.7))


def test_unknown_pairs_fall_to_any_model_then_to_the_default() -> None:
    table = Interference([Pair(A, B, "", 0.9, 0.6)])
    assert table.pair(A, B, "H100") == 0.9
    assert table.pair(A, C, "H100") == TIME_SLICED == 0.5
    assert table.pair(A, Profile("b", 2)) == 0.5
    assert Interference(default=0.4).pair(A, B) == 0.4


def test_several_neighbours_multiply() -> None:
    table = Interference([Pair(A, B, "", 0.9, 0.6), Pair(A, C, "", 0.8, 0.7)])
    assert table.rate(A, []) == 1.0
    assert table.rate(A, [B, C]) == pytest.approx(0.72)
    assert table.rate(A, [B, B]) == pytest.approx(0.81)


def test_nobody_runs_faster_for_company() -> None:
    assert Interference([Pair(A, B, "", 1.034, 0.9)]).pair(A, B) == 1.0


rates = st.floats(0, 2)
profiles = st.builds(Profile, st.sampled_from("abcd"), st.integers(1, 2))
pairs = st.lists(st.builds(Pair, profiles, profiles, st.sampled_from(["", "V100"]), rates, rates), max_size=12)


@given(pairs, profiles, st.lists(profiles, max_size=4), profiles, st.sampled_from(["", "V100", "H100"]))
def test_rates_are_shares_and_one_more_neighbour_never_helps(given_pairs, own, neighbours, more, model) -> None:
    table = Interference(given_pairs)
    rate = table.rate(own, neighbours, model)
    assert 0.0 <= table.rate(own, [*neighbours, more], model) <= rate <= 1.0
    assert table.rate(own, neighbours[::-1], model) == pytest.approx(rate)


@given(pairs)
def test_turning_every_pair_around_changes_nothing(given_pairs) -> None:
    turned = Interference(Pair(p.second, p.first, p.model, p.second_rate, p.first_rate) for p in given_pairs)
    table = Interference(given_pairs)
    assert len(turned) == len(table)
    for pair in given_pairs:
        for own, other in ((pair.first, pair.second), (pair.second, pair.first)):
            assert turned.pair(own, other, pair.model) == pytest.approx(table.pair(own, other, pair.model))


def test_throughputs_become_relative_rates() -> None:
    # a: 10 steps/s alone, 6 beside b; b: 4 alone, 3 beside a. Where one does not run alone, there is no pair.
    throughputs = Throughputs()
    throughputs.rates = {("a", 1): {"V100": 10.0, "K80": 0.0}, ("b", 2): {"V100": 4.0, "K80": 1.0}}
    throughputs.pairs = {
        ("a", 1, "V100"): {("b", 2): (6.0, 3.0)},
        ("a", 1, "K80"): {("b", 2): (0.0, 0.0)},
        ("b", 2, "V100"): {("b", 2): (0.0, 0.0)},
    }
    table = Interference.from_throughputs(throughputs)
    assert table.pair(Profile("a"), Profile("b", 2), "V100") == pytest.approx(0.6)
    assert table.pair(Profile("b", 2), Profile("a"), "V100") == pytest.approx(0.75)
    assert table.pair(Profile("b", 2), Profile("b", 2), "V100") == 0.0
    assert not table.known(Profile("a"), Profile("b", 2), "K80")


HEADER = "model1,dataset1,gpu_num1,batchsize1,amp1,speed1,model2,dataset2,gpu_num2,batchsize2,amp2,speed2\n"


def test_rows_of_measured_pairs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(HEADER + "Net,Data,1,32,0,0.8,Gan,Faces,2,64,1,0.7\n", encoding="utf-8")
    assert read_colocation(path) == [Pair(Profile("Net Data b32", 1), Profile("Gan Faces b64 amp", 2), "", 0.8, 0.7)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("model1,speed1\n", "no column dataset1"),
        (
            HEADER + "Net,Data,1,32,0,0.8,Gan,Faces,2,64,1,0.7\nNet,Data,1,32,0,fast,Gan,Faces,2,64,1,0.7\n",
            "line 3: speed1: 'fast'",
        ),
        (HEADER + "Net,Data,1,32,0,0.8,Gan,Faces,2,64,1,-1\n", "line 2: speed2: '-1'"),
        (HEADER + "Net,Data,1,32,0,0.8,Gan,Faces,2,64,1\n", "line 2: speed2: None"),
        (HEADER + "Net,Data,1,32,0,nan,Gan,Faces,2,64,1,1\n", "line 2: speed1: 'nan'"),
        (HEADER + ",Data,1,32,0,0.8,Gan,Faces,2,64,1,1\n", "line 2: model1 is empty"),
    ],
)
def test_bad_files_name_the_line_and_the_field(tmp_path: Path, text: str, names: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match=names):
        read_colocation(path)


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"pairs\[0\]: rate .* of 'b'"):
        Interference([Pair(A, B, "", 0.5, rate)])


@pytest.mark.external
def test_the_measured_pairs_of_lucid() -> None:
    path = public_data("helios", "colocate_info.csv")
    found = read_colocation(path)
    assert len(found) == 1388
    table = Interference(found)
    # The first row of the file: 0.983 and 1.034, which counts as 1.
    net = Profile(colocation_profile("MobileNetV3", "ImageNet", 32, mixed_precision=False))
    res = Profile(colocation_profile("ResNet18", "CIFAR-10", 32, mixed_precision=False))
    assert (table.pair(net, res), table.pair(res, net)) == (0.983, 1.0)
    rates = [rate for pair in found for rate in (pair.first_rate, pair.second_rate)]
    # The default of time slicing is careful: few measured rates are below it.
    assert sum(rate < TIME_SLICED for rate in rates) / len(rates) < 0.01
