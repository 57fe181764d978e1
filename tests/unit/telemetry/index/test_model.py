"""The fit: exact gradients, closed forms against doing it again, probes, extrapolation that is held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from meridian.hardware import standard
from services.telemetry.index import covariance, model
from services.telemetry.index.cells import Encoder
from services.telemetry.index.matrix import Column
from services.telemetry.index.model import IndexModel, fitted_variances, trust_in_lines
from services.telemetry.index.prediction import Prediction, best_probes
from tests.unit.telemetry.index import world


def without(chip_id: str, cells: dict) -> dict:
    return {cell: value for cell, value in cells.items() if cell[0] != chip_id}


def test_components_are_covariances() -> None:
    encoded = Encoder.of(list(world.cells()), world.chips()).encode(list(world.cells()))
    for (name, _), part in zip(covariance.COMPONENTS, covariance.components(encoded, encoded), strict=True):
        assert np.allclose(part, part.T), name
        assert np.linalg.eigvalsh(part).min() > -1e-8, name


def test_the_gradient_is_that_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def capture(loss, start, **_):
        seen["loss"], seen["start"] = loss, start
        return type("Found", (), {"x": start})

    monkeypatch.setattr(model, "minimize", capture)
    fitted_variances(world.cells(noise=0.1), world.chips())
    at = seen["start"] + np.random.default_rng(1).normal(0, 0.3, len(seen["start"]))
    value, gradient = seen["loss"](at)
    numeric = approx_fprime(at, lambda point: seen["loss"](point)[0], 1e-6)
    assert np.isfinite(value)
    assert gradient == pytest.approx(numeric, rel=2e-3, abs=2e-3)


def test_sensitivities_are_found_for_a_chip_never_seen() -> None:
    cells = world.cells(noise=0.01)
    for chip_id in ("a100-pcie-40gb", "l40s", "rtx-a6000"):
        fitted = IndexModel.fit(without(chip_id, cells), world.chips())
        wanted = [cell for cell in cells if cell[0] == chip_id]
        error = np.expm1(fitted.predict(wanted).mean - np.log([cells[cell] for cell in wanted]))
        assert np.abs(error).max() < 0.08, (chip_id, error)


def test_errors_of_chips_left_out_are_what_predicting_them_gives() -> None:
    cells = world.cells(noise=0.05)
    fitted = IndexModel.fit(cells, world.chips())
    columns = [column for chip_id, column in cells if chip_id == "a40"]
    number = sorted(world.CHIPS).index("a40")
    counts = len(world.CHIPS)
    closed = [fitted._likeness[column][number] * np.sqrt(counts) for column in columns]
    # Again, with the same variances, levels and middle of the features, but without the chip's cells.
    keys = [cell for cell in cells if cell[0] != "a40"]
    encoder = fitted._encoder
    encoded, own = encoder.encode(keys), encoder.encode([("a40", column) for column in columns])
    prior = fitted._priors(encoded, encoded)[0] + np.eye(len(keys)) * (np.exp(fitted.log_variances[-1]) + 1e-7)
    level = np.array([fitted._level[column] for _, column in keys])
    relative = np.log([cells[key] for key in keys]) - covariance.expected(encoded) - level
    predicted = fitted._priors(own, encoded)[0] @ np.linalg.solve(prior, relative)
    truth = np.log([cells["a40", column] for column in columns]) - covariance.expected(own)
    truth -= [fitted._level[column] for column in columns]
    assert closed == pytest.approx(list(truth - predicted), rel=1e-4, abs=1e-5)


def test_a_line_through_two_chips_does_not_reach_far() -> None:
    """P100 and V100 differ by tasks; what a K80 does is between its ratios of facts, not where that line would lead."""
    catalogue = standard()
    chips = {chip_id: catalogue.chip(chip_id) for chip_id in ("k80", "p100-pcie-16gb", "v100-pcie-16gb")}
    columns = [Column("", task, "fp32", 1) for task in ("slower", "alike", "faster")]
    cells = {("p100-pcie-16gb", column): 10.0 for column in columns}
    cells |= {("v100-pcie-16gb", column): value for column, value in zip(columns, (6.6, 12.3, 20.0), strict=True)}
    predicted = IndexModel.fit(cells, chips).predict([("k80", column) for column in columns]).mean
    for column, value in zip(columns, predicted, strict=True):
        others = np.mean([np.log(cells[chip_id, column]) for chip_id in ("p100-pcie-16gb", "v100-pcie-16gb")])
        bandwidth = others + np.log(240 / np.sqrt(732 * 900))
        assert value == pytest.approx(bandwidth, abs=0.35), column.task


def test_lines_count_more_the_more_chips_were_measured() -> None:
    assert [trust_in_lines(chips) for chips in (0, 2, 6)] == pytest.approx([0.0, 0.1, 0.5])
    assert trust_in_lines(60) > 0.98


def test_a_probe_corrects_the_other_tasks() -> None:
    cells = world.cells(noise=0.01)
    # A chip that is a third slower than its facts say, at everything.
    for cell in [cell for cell in cells if cell[0] == "l40s"]:
        cells[cell] *= 0.67
    wanted = [cell for cell in cells if cell[0] == "l40s"]
    truth = np.log([cells[cell] for cell in wanted])
    before = IndexModel.fit(without("l40s", cells), world.chips()).predict(wanted)
    after = before.given([0], truth[:1])
    assert np.abs(before.mean - truth)[1:].min() > 0.3
    assert np.abs(after.mean - truth)[1:].mean() < 0.6 * np.abs(before.mean - truth)[1:].mean()
    assert (after.deviation < before.deviation).all()


def test_a_probe_says_more_of_tasks_of_kin() -> None:
    assert covariance.words_of("ResNet-50 (batch size 16)") == {"resnet", "50"}
    assert covariance.words_of("bert_large_squad") == {"bert", "large", "squad"}
    cells = {
        (chip_id, Column("", task, "fp16", 1)): world.throughput(chip_id, 0.5)
        for chip_id in world.CHIPS[:6]
        for task in ("net (size 1)", "net (size 2)", "other")
    }
    fitted = IndexModel.fit(cells, world.chips(), iterations=3)
    wanted = [("l40s", Column("", task, "fp16", 1)) for task in ("net (size 1)", "net (size 2)", "other")]
    before = fitted.predict(wanted)
    moved = before.given([0], before.mean[:1] + 0.3).mean - before.mean
    assert moved[1] > 1.02 * moved[2] > 0


@st.composite
def predictions(draw: st.DrawFn) -> Prediction:
    size = draw(st.integers(2, 7))
    draws = np.random.default_rng(draw(st.integers(0, 10_000)))
    root = draws.normal(size=(size, size))
    return Prediction(draws.normal(size=size), root @ root.T, draw(st.floats(1e-4, 1.0)))


@given(predictions(), st.data())
@settings(deadline=None)
def test_conditioning_in_steps_is_conditioning_at_once(prediction: Prediction, data: st.DataObject) -> None:
    size = len(prediction.mean)
    probes = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=size, unique=True))
    # Near what is expected, so that none is odd: odd ones are held back by what the others say.
    values = prediction.mean[probes] + 1e-3 * np.linspace(-1, 1, len(probes))
    once = prediction.given(probes, values)
    stepwise = prediction
    for probe, value in zip(probes, values, strict=True):
        stepwise = stepwise.given([probe], np.array([value]))
    assert once.mean == pytest.approx(stepwise.mean, abs=1e-6)
    assert once.covariance == pytest.approx(stepwise.covariance, abs=1e-6)
    assert (once.deviation <= prediction.deviation + 1e-9).all()


def test_a_step_of_the_search_that_overflows_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As L-BFGS tried on a published table of 26 chips."""
    seen = []

    def search(loss: Callable[..., tuple[float, np.ndarray]], start: np.ndarray, **_: object) -> object:
        seen.append(loss(start + 800.0))
        return type("Result", (), {"x": start})

    monkeypatch.setattr(model, "minimize", search)
    fitted_variances(world.cells(), world.chips())
    (value, slope), *_ = seen
    assert value == 1e12
    assert not slope.any()


def test_one_odd_probe_among_three_moves_little() -> None:
    alike = Prediction(np.zeros(6), 0.04 * np.ones((6, 6)) + 0.001 * np.eye(6), 0.001)
    honest = alike.given([0, 1, 2], np.array([0.1, 0.1, 0.1])).mean[3:]
    slipped = alike.given([0, 1, 2], np.array([0.1, np.log(10), 0.1])).mean[3:]
    assert honest == pytest.approx([0.1] * 3, abs=0.01)
    assert slipped == pytest.approx(honest, abs=0.02)


def test_a_single_odd_probe_moves_by_a_bounded_amount() -> None:
    alike = Prediction(np.zeros(4), 0.04 * np.ones((4, 4)) + 0.001 * np.eye(4), 0.001)
    assert np.abs(alike.given([0], np.array([np.log(10)])).mean[1:]).max() < 2.5 * 0.21
    assert alike.given([0], np.array([0.3])).mean[1] == pytest.approx(0.3 * 0.04 / 0.042, rel=1e-6)


def test_what_is_odd_in_a_single_probe_is_of_its_task() -> None:
    tasks = ("bert", "bert", "resnet", "resnet")
    alike = Prediction(np.zeros(4), 0.04 * np.ones((4, 4)) + 0.001 * np.eye(4), 0.001, tasks=tasks)
    after = alike.given([0], np.array([-7.0]))
    assert after.mean[1] == pytest.approx(-7.0 * 0.04 / 0.042, rel=1e-6)
    assert np.abs(after.mean[2:]).max() < 2.5 * 0.21
    alone = alike.part([3, 0]).given([1], np.array([-7.0]))
    assert alone.mean[0] == pytest.approx(after.mean[3], rel=1e-6)
    assert alone.tasks == ("resnet", "bert")


def test_another_model_at_several_scales_is_told_by_one_probe() -> None:
    # As in MLPerf v1.1: "bert" of one system is a model of 480e9 parameters, and is run at two scales.
    cells = world.cells(noise=0.02)
    columns = sorted({column for _, column in cells})
    other = [replace(column, n_accel=scale) for column in columns[:1] for scale in (8, 16)]
    training = without("l40s", cells)
    training |= {("a40", column): 1.0 for column in other}
    wanted = [("l40s", column) for column in (*other, *columns[1:4])]
    before = IndexModel.fit(training, world.chips()).predict(wanted)
    after = before.given([0], before.mean[[0]] - 7.0)
    moved = after.mean - before.mean
    assert moved[1] < -5.0
    assert np.abs(moved[2:]).max() < 1.0


def test_one_odd_cell_of_the_fit_moves_little() -> None:
    cells = world.cells(noise=0.02)
    odd = ("a40", next(column for chip_id, column in cells if chip_id == "a40"))
    wanted = [cell for cell in cells if cell[0] == "l40s"]
    honest = IndexModel.fit(without("l40s", cells), world.chips())
    slipped = IndexModel.fit(without("l40s", cells) | {odd: cells[odd] * 10}, world.chips())
    assert honest.odd == frozenset()
    assert odd in slipped.odd
    assert slipped.predict(wanted).mean == pytest.approx(honest.predict(wanted).mean, abs=0.05)


def test_numbers_in_names_make_a_series() -> None:
    names = ["bert (batch 8)", "bert (batch 16)", "bert (batch 512)", "resnet50"]
    chips = world.chips()
    keys = [("a10", Column("", name, "fp32", 1)) for name in names]
    encoded = Encoder.of(keys, chips).encode(keys)
    alike = covariance.series(encoded, encoded)
    assert alike[0, 0] == 1
    assert alike[0, 1] > 0.9 > 0.2 > alike[0, 2]
    assert not alike[3].any(), "a name of its own is no series"


@given(predictions())
@settings(deadline=None)
def test_the_first_probe_is_the_best_single_one(prediction: Prediction) -> None:
    left = [np.trace(prediction.given([number], np.zeros(1)).covariance) for number in range(len(prediction.mean))]
    chosen = best_probes(prediction, 1)
    assert left[chosen[0]] == pytest.approx(min(left))


def test_probes_are_all_different() -> None:
    prediction = Prediction(np.zeros(3), np.ones((3, 3)), 0.1)
    assert sorted(best_probes(prediction, 5)) == [0, 1, 2]


def test_a_fact_far_beyond_the_training_chips_is_held() -> None:
    cells = world.cells()
    chips = world.chips() | {"ipu-bow": standard().chip("ipu-bow")}
    encoder = Encoder.of(list(cells), chips)
    column = Column("", "compute", "fp16", 1)
    there = encoder.encode([("ipu-bow", column), ("h100-sxm5-80gb", column)])
    # 65 TB/s of memory on the chip, against 3.35 TB/s.
    assert there.features[0, 1] - there.features[1, 1] == pytest.approx(np.log(2))
    assert there.distant[0, 1] - there.distant[1, 1] == pytest.approx(np.log(8))


def test_a_column_not_measured_has_a_wider_ratio() -> None:
    fitted = IndexModel.fit(world.cells(noise=0.02), world.chips())
    known = fitted.log_ratio("h100-pcie", "a100-sxm4-80gb", Column("", "balanced", "fp16", 1))
    new = fitted.log_ratio("h100-pcie", "a100-sxm4-80gb", Column("", "something else", "fp16", 1))
    measured = np.log(world.throughput("h100-pcie", 0.5) / world.throughput("a100-sxm4-80gb", 0.5))
    assert known[0] == pytest.approx(measured, abs=0.05)
    assert known[1] < new[1]
    assert fitted.log_ratio("t4" if "t4" in world.CHIPS else "l4", "l4", Column("", "balanced", "fp16", 1)) == (
        0.0,
        0.0,
    )
