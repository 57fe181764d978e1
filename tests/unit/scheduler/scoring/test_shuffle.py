"""Random places: the same in every process, uniform, and different by seed, node and class."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.scoring.shuffle import RandomScore, demand_digest, mixed
from services.scheduler.core.state import Demand
from tests.unit.scheduler.scoring.fleets import node, view_of

ALL = slice(None)


def test_split_mix_gives_the_published_numbers() -> None:
    # The first outputs of SplitMix64 for the seed 1234567, as in the test vectors of its reference implementation.
    gamma = 0x9E3779B97F4A7C15
    states = np.array([1234567, (1234567 + gamma) % 2**64], dtype=np.uint64)
    assert mixed(states).tolist() == [6457827717110365317, 3203168211198807973]


def test_the_order_of_sets_does_not_matter() -> None:
    one = Demand(1, domains=frozenset(f"domain{n}" for n in range(50)))
    same = Demand(1, domains=frozenset(f"domain{n}" for n in reversed(range(50))))
    assert demand_digest(one) == demand_digest(same)
    assert demand_digest(one) != demand_digest(Demand(2, domains=one.domains))


def test_every_process_gives_the_same_digest() -> None:
    program = (
        "from services.scheduler.core.scoring.shuffle import demand_digest; from services.scheduler.core.state import Demand;"
        "print(demand_digest(Demand(1, labels=frozenset('abcdef'), accelerator_types=('x',))))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert printed == {f"{demand_digest(Demand(1, labels=frozenset('abcdef'), accelerator_types=('x',)))}\n"}


def test_numbers_are_spread_evenly_and_differ_by_seed_and_class() -> None:
    view = view_of(*(node(f"n{n:04d}") for n in range(1000)))
    first = RandomScore().nodes(view, Demand(1), ALL)
    counts, _ = np.histogram(first, bins=10, range=(0, 1))
    # 100 expected in each; 5 standard deviations are 47.
    assert counts.min() > 53
    assert counts.max() < 147
    for other in (RandomScore(1).nodes(view, Demand(1), ALL), RandomScore().nodes(view, Demand(2), ALL)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.15
    assert RandomScore().configured({"seed": 1}).nodes(view, Demand(1), ALL).tolist() == (
        RandomScore(1).nodes(view, Demand(1), ALL).tolist()
    )
    with pytest.raises(PolicyError, match=r"options.random.seed"):
        RandomScore().configured({"seed": "x"})


def test_the_device_of_a_share_has_room() -> None:
    view = view_of(node("a", models=("A100",) * 4))
    for index in (0, 1, 3):
        view.occupy(0, Demand(1, accelerators=1, device_milli=600), (index,))
    share = Demand(1, accelerators=1, device_milli=500)
    assert {RandomScore(seed).devices(view, share, view.columns(share), 0) for seed in range(20)} == {(2,)}
    small = Demand(1, accelerators=1, device_milli=100)
    chosen = {RandomScore(seed).devices(view, small, view.columns(small), 0) for seed in range(100)}
    assert chosen == {(0,), (1,), (2,), (3,)}
    assert RandomScore().devices(view, Demand(1, accelerators=1), view.columns(Demand(1)), 0) == ()
