"""The load of `bench/telemetry.py` is what it claims to be: every reading stands, and the fit finds the exponent."""

from __future__ import annotations

import pytest

from bench.telemetry import ACCELERATORS, LABEL, READINGS_PER_NODE, growth_exponent, report
from services.telemetry.reading_check import Limits
from services.telemetry.report_check import check_report
from tests.unit.telemetry.reports import Nodes, after

NOW_S = 1_800_000_000.0
LIMITS = Limits(clock_skew_s=5.0, frozen_after_reports=3, forget_series_after_s=600.0)


def test_every_reading_stands_round_after_round() -> None:
    known: Nodes = {}
    for number in range(6):
        observed_s = NOW_S - 5.0 * (5 - number)
        message = report("d", 3, number, observed_s)
        assert len(message.readings) == 3 * READINGS_PER_NODE
        verdict = check_report(message, known, {}, 1, NOW_S, LIMITS, 15.0)
        assert verdict.issues == ()
        assert verdict.observation is not None
        assert len(verdict.observation.readings) == 3 * READINGS_PER_NODE
        known = after(known, verdict)


def test_rounds_can_be_told_apart_and_values_move() -> None:
    first, second = report("d", 2, 1, NOW_S), report("d", 2, 2, NOW_S + 5)
    assert [item.inventory.nodes[0].labels[LABEL] for item in (first, second)] == ["1", "2"]
    moved = [a.value != b.value for a, b in zip(first.readings, second.readings, strict=True)]
    steady = 2 + ACCELERATORS
    assert moved.count(False) == 2 * steady


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_the_exponent_is_found(exponent: float) -> None:
    sizes = [20, 100, 400, 1000]
    assert growth_exponent(sizes, [0.5 * size**exponent for size in sizes]) == pytest.approx(exponent)
