"""Simulated loss curves are read as they are written, and their noise is all that --noise-free leaves out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench import simulated_curves
from services.forecast.phases.table import read_curves
from services.forecast.phases.truth import boundaries


def test_the_same_runs_with_and_without_noise(tmp_path: Path) -> None:
    noisy, clean = tmp_path / "noisy.csv", tmp_path / "clean.csv"
    assert simulated_curves.main([str(noisy), "--runs", "10", "--seed", "5"]) == 0
    assert simulated_curves.main([str(clean), "--runs", "10", "--seed", "5", "--noise-free"]) == 0
    one, two = read_curves(noisy), read_curves(clean)
    assert not one.unusable
    assert one.left_aside.total == two.left_aside.total == 0
    kinds = [f"simulated_{kind}" for kind in simulated_curves.KINDS]
    assert [curve.family for curve in one.curves] == 2 * kinds
    for with_noise, without in zip(one.curves, two.curves, strict=True):
        assert np.array_equal(with_noise.step, without.step)
        scatter = with_noise.loss - without.loss
        assert 0.003 < scatter.std() < 0.15
        assert abs(scatter.mean()) < 4 * scatter.std() / np.sqrt(len(scatter))


def test_a_run_from_a_checkpoint_is_never_stable_by_its_count_of_steps(tmp_path: Path) -> None:
    path = tmp_path / "clean.csv"
    assert simulated_curves.main([str(path), "--runs", "10", "--seed", "5", "--noise-free"]) == 0
    continued = [curve for curve in read_curves(path).curves if curve.family == "simulated_checkpoint"]
    assert len(continued) == 2
    assert all(np.isinf(boundaries(curve).stable_from) for curve in continued)
