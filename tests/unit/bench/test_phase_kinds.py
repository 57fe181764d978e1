"""Made-up curves of all kinds are read as they are written, the halves share no kind, and a seed gives the same curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import phase_kinds
from services.forecast.phases.ramps import warm_up_end
from services.forecast.phases.table import read_curves


def test_halves_share_no_kind_and_all_of_it_is_read(tmp_path: Path) -> None:
    families = []
    for half in ("0", "1"):
        path = tmp_path / f"{half}.csv"
        assert phase_kinds.main([str(path), "--half", half, "--each", "2", "--seed", "3"]) == 0
        found = read_curves(path)
        assert not found.unusable
        assert found.left_aside.total == 0
        families.append({curve.family for curve in found.curves})
        assert len(found.curves) == 2 * len(families[-1])
    assert not families[0] & families[1]
    assert families[0] | families[1] == set(phase_kinds.KINDS)


def test_the_same_seed_gives_the_same_curves(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert phase_kinds.main([str(tmp_path / name), "--each", "1", "--seed", "5"]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(("kind", "least", "most"), [("one_cycle", 0.25, 0.31), ("batch_ramp", 0.06, 0.2)])
def test_ramps_are_as_long_as_they_are_made(kind: str, least: float, most: float, tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    half = list(phase_kinds.KINDS).index(kind) % 2
    assert phase_kinds.main([str(path), "--half", str(half), "--each", "3"]) == 0
    of_kind = [curve for curve in read_curves(path).curves if curve.family == kind]
    for curve in of_kind:
        end = warm_up_end(curve)
        assert end is not None
        assert least < end / curve.step[-1] < most


def test_restarts_are_no_warm_up(tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    assert phase_kinds.main([str(path), "--half", "0", "--each", "8"]) == 0
    ends = [warm_up_end(curve) or 0.0 for curve in read_curves(path).curves if curve.family == "restarts"]
    assert len(ends) == 8
    assert np.max(ends) < 0.05 * 12_000
