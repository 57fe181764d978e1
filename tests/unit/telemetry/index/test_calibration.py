"""Bands are widened when those of chips left out did not hold, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from services.telemetry.index import model
from services.telemetry.index.calibration import PROBES, LeftOut, widths
from services.telemetry.index.model import IndexModel
from services.telemetry.index.prediction import Prediction
from tests.unit.telemetry.index import world


def left_out(chips: int, error: float) -> list[LeftOut]:
    """Each with five independent cells of deviation 1."""
    prediction = Prediction(np.zeros(5), 0.5 * np.eye(5), 0.5)
    return [LeftOut(f"chip {number}", prediction, np.full(5, error)) for number in range(chips)]


def test_errors_larger_than_the_band_widen_it() -> None:
    # Every error is two deviations, so the 90 % quantile is 2 instead of 1.645; five chips count half.
    assert widths(left_out(5, 2.0)) == pytest.approx((1 + PROBES) * ((2 / 1.6448536) ** 0.5,))
    assert widths(left_out(45, 2.0)) == pytest.approx((1 + PROBES) * ((2 / 1.6448536) ** 0.9,))


def test_errors_within_the_band_or_none_leave_it() -> None:
    assert widths(left_out(5, 1.0)) == (1 + PROBES) * (1.0,)
    assert widths([]) == (1 + PROBES) * (1.0,)


def test_a_factor_has_a_bound() -> None:
    assert max(widths(left_out(1000, 50.0))) < 2.0


def test_the_factor_is_that_of_the_number_of_probe_runs() -> None:
    plain = Prediction(np.zeros(4), np.eye(4), 0.0)
    wide = Prediction(np.zeros(4), np.eye(4), 0.0, (1.0, 1.5, 1.7))
    for count, factor in ((0, 1.0), (1, 1.5), (2, 1.7), (3, 1.7)):
        probes, values = list(range(count)), np.zeros(count)
        ratio = wide.given(probes, values).deviation[count:] / plain.given(probes, values).deviation[count:]
        assert ratio == pytest.approx(factor)
        assert wide.given(probes, values).part([3]).deviation[0] == wide.given(probes, values).deviation[3]


def test_the_fit_hands_over_the_errors_that_its_closed_form_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[LeftOut] = []

    def capture(each):
        found.extend(each)
        return (1.5,)

    monkeypatch.setattr(model, "widths", capture)
    cells = world.cells(noise=0.05)
    fitted = IndexModel(cells, world.chips(), model.fitted_variances(cells, world.chips(), iterations=2))
    assert [each.chip_id for each in found] == sorted(world.CHIPS)
    columns = [column for chip_id, column in cells if chip_id == "a40"]
    number = sorted(world.CHIPS).index("a40")
    limited = [fitted._likeness[column][number] * np.sqrt(len(world.CHIPS)) for column in columns]
    own = next(each for each in found if each.chip_id == "a40")
    assert own.error == pytest.approx(limited, abs=1e-6)
    assert fitted.predict([("a40", column) for column in columns]).widths == (1.5,)
