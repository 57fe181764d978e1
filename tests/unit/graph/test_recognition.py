"""The shipped model: it answers as torch did, on graphs of other sizes than the traced one; and what is served without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from learning.node_state.parity import CHECKED, TRACED, random_graph, rows_of
from meridian.clock import VirtualClock
from services.graph.facts import Decided, DomainFacts
from services.graph.image import build_image
from services.graph.node_state import NodeState, Rule, Thresholds
from services.graph.publication import judge_of
from services.graph.recognition.features import INPUTS, QUANTITIES, SUMMARIES, WINDOW, Quantity, encoded, sample
from services.graph.recognition.judges import Heard
from services.graph.recognition.model import SHIPPED, ModelUnavailableError, NodeStateModel
from services.graph.recognition.neighbourhood import Place, neighbourhood_of
from services.graph.recognition.recogniser import LEAST_SAMPLES, Recogniser
from services.graph.recognition.windows import Windows
from services.graph.update_plan import TrackedDomain
from tests.unit.graph.build import NOW_S, node, observation

ANSWERS = Path(__file__).with_name("node_state_answers.npz")


@pytest.fixture(scope="module")
def model() -> NodeStateModel:
    return NodeStateModel()


# -- parity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(CHECKED)), ids=[f"{size[0]} nodes" for size in CHECKED])
def test_the_file_answers_as_torch_did(model: NodeStateModel, number: int) -> None:
    assert CHECKED[number] != TRACED
    inputs, around = random_graph(*CHECKED[number], seed=number + 1)
    answer = model.run(inputs, around)
    rows = rows_of(CHECKED[number][0])
    with np.load(ANSWERS) as recorded:
        logits, load = recorded[f"logits_{number}"], recorded[f"load_{number}"]
    scaled = logits / model.card.temperature
    expected = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(answer.probabilities[rows], expected, atol=2e-5)
    np.testing.assert_allclose(answer.load[rows], load, atol=2e-5)
    np.testing.assert_allclose(answer.probabilities.sum(axis=1), 1.0, atol=1e-5)


def test_the_order_of_nodes_does_not_matter(model: NodeStateModel) -> None:
    windows = np.random.default_rng(3).random((5, WINDOW, QUANTITIES)).astype(np.float32)
    places = [Place("x", "1"), Place("x", "1"), Place("x", "2"), Place("y", "1", ("x",)), Place("", "")]
    order = [3, 0, 4, 2, 1]
    straight = model.answer(windows, neighbourhood_of(places))
    shuffled = model.answer(windows[order], neighbourhood_of([places[number] for number in order]))
    np.testing.assert_allclose(shuffled.probabilities, straight.probabilities[order], atol=1e-5)


# -- what is not served ----------------------------------------------------------------------------------------------


def copied(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    shutil.copy(SHIPPED, path)
    shutil.copy(SHIPPED.with_suffix(".card.json"), path.with_suffix(".card.json"))
    return path


def test_a_copy_is_served(tmp_path: Path) -> None:
    assert NodeStateModel(copied(tmp_path)).card.classes[0] is NodeState.HEALTHY


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailableError, match=r"m\.card\.json"):
        NodeStateModel(tmp_path / "m.onnx")


def test_a_file_that_is_not_the_one_of_the_card_is_refused(tmp_path: Path) -> None:
    path = copied(tmp_path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ModelUnavailableError, match="sha256"):
        NodeStateModel(path)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [("window", 9, "window"), ("quantities", ["watts"], "quantities"), ("classes", ["happy"], "HAPPY")],
)
def test_a_card_for_another_program_is_refused(tmp_path: Path, field: str, value: object, told: str) -> None:
    path = copied(tmp_path)
    card = json.loads(path.with_suffix(".card.json").read_text())
    path.with_suffix(".card.json").write_text(json.dumps({**card, field: value}))
    with pytest.raises(ModelUnavailableError, match=told):
        NodeStateModel(path)


# -- features --------------------------------------------------------------------------------------------------------


def test_a_sample_by_hand() -> None:
    readings = {
        "hw.gpu.utilization": {0: (0.5, 0.0), 1: (0.9, 0.0)},
        "hw.temperature": {0: (50.0, 0.0), 1: (61.0, 0.0)},
        "hw.gpu.memory.usage": {0: (20.0, 0.0), 1: (40.0, 0.0)},
        "hw.gpu.memory.limit": {0: (80.0, 0.0), 1: (80.0, 0.0)},
        "cpn.compute.effective": {0: (10.0, 0.0), 1: (30.0, 0.0)},
        "system.memory.usage": {-1: (3.0, 0.0)},
        "system.memory.limit": {-1: (4.0, 0.0)},
        "cpn.health": {-1: (1.0, 0.0), 1: (0.5, 0.0)},
    }
    found = sample(readings, 100.0, asleep=False, suspected=True)
    expected = {
        Quantity.UTILIZATION: 0.7,
        Quantity.UTILIZATION_LEAST: 0.5,
        Quantity.HOTTEST_CELSIUS: 61.0,
        Quantity.DEVICE_MEMORY: 0.375,
        Quantity.EFFECTIVE: 0.2,
        Quantity.MEMORY: 0.75,
        Quantity.HEALTH: 0.5,
        Quantity.SUSPECTED: 1.0,
    }
    for quantity in Quantity:
        if quantity in expected:
            assert found[quantity] == pytest.approx(expected[quantity])
        else:
            assert np.isnan(found[quantity]), quantity


def test_encoding_by_hand() -> None:
    windows = np.full((1, WINDOW, QUANTITIES), np.nan, dtype=np.float32)
    windows[0, -3, Quantity.FREE], windows[0, -1, Quantity.FREE] = 0.2, 0.6
    windows[0, -2, Quantity.HOTTEST_CELSIUS] = 85.0
    parts = encoded(windows).reshape(SUMMARIES, QUANTITIES)
    # Newest, mean, 3 x spread, 2 x change, newest known, share known.
    np.testing.assert_allclose(parts[:, Quantity.FREE], [0.6, 0.4, 0.6, 0.8, 1, 0.25], atol=1e-6)
    np.testing.assert_allclose(parts[:, Quantity.HOTTEST_CELSIUS], [0, 1, 0, 0, 0, 0.125], atol=1e-6)
    assert not parts[:, Quantity.WATTS].any()
    assert encoded(windows).shape == (1, INPUTS)


def test_windows_keep_the_newest_and_their_ages() -> None:
    windows = Windows()
    for second in range(WINDOW + 2):
        value = np.full(QUANTITIES, float(second), dtype=np.float32)
        assert windows.add(10.0 + second, {"a": value} | ({"b": value} if second == 9 else {}))
    assert not windows.add(12.0, {"a": value})
    found = windows.of(["a", "b", "c"])
    np.testing.assert_array_equal(found[0, :, Quantity.FREE], np.arange(2, 10))
    np.testing.assert_array_equal(found[0, :, Quantity.AGE_S], np.arange(7, -1, -1))
    assert np.isnan(found[1, :-1]).all()
    assert np.isnan(found[2]).all()


def test_a_neighbourhood_by_hand() -> None:
    places = [Place("x", "1"), Place("y", "1", ("x", "z", "y")), Place("x", "1"), Place("x", "2")]
    found = neighbourhood_of(places)
    assert found.switch.tolist() == [0, 1, 0, 2]
    assert found.site.tolist() == [0, 1, 0, 0]
    assert found.switch_inverse.tolist() == [0.5, 1.0, 1.0]
    assert found.site_inverse.tolist() == pytest.approx([1 / 3, 1.0])
    assert found.near.tolist() == [[0.0, 1.0], [1.0, 0.0]]


# -- following a domain ----------------------------------------------------------------------------------------------


def facts_at(second: int, facts: DomainFacts) -> DomainFacts:
    read = {(name, 0, "cpn.compute.capacity_free"): 1.0 for name in ("a", "b")}
    facts.observe(observation([node("a"), node("b")], read, at_s=NOW_S + second), NOW_S + second)
    return facts


class SlowClock(VirtualClock):
    """A second goes by whenever it is read."""

    def monotonic_s(self) -> float:
        self.advance(1.0)
        return super().monotonic_s()


def test_opinions_come_with_the_third_observation_and_once_for_each(model: NodeStateModel) -> None:
    recogniser = Recogniser(model, VirtualClock(), slowest_s=0.5)
    facts = DomainFacts("beijing")
    for second in range(LEAST_SAMPLES):
        followed = recogniser.look(facts_at(second, facts))
        assert followed is not None
        assert bool(followed.opinions) is (second == LEAST_SAMPLES - 1)
    assert set(followed.opinions) == {"a", "b"}
    assert recogniser.look(facts) is followed
    assert {leaning.times for leaning in followed.leanings.values()} == {1}


def test_another_process_lets_stand_what_the_model_decided_until_it_has_seen_enough(model: NodeStateModel) -> None:
    domain = TrackedDomain(DomainFacts("beijing"))
    recogniser = Recogniser(model, VirtualClock(), slowest_s=60)
    for second in range(LEAST_SAMPLES):
        # As it is loaded: nodes "a" and "b" were given by the model to one who follows them no more.
        domain.facts.decided = {"a": Decided(Rule.MODEL_BUSY, "as it was", 0.0)}
        domain.observed = True
        facts_at(second, domain.facts)
        judge = judge_of(domain, recogniser)
        after, decided = build_image(domain.facts, NOW_S + second, Thresholds(), judge)
        assert set(after.nodes) == {"a", "b"}
        if second < LEAST_SAMPLES - 1:
            assert decided["a"].rule is Rule.MODEL_BUSY
            assert decided["b"].rule is Rule.FIT  # of which the model has said nothing
    assert isinstance(judge, Heard)


def test_a_slow_model_is_left_alone(model: NodeStateModel) -> None:
    recogniser = Recogniser(model, SlowClock(), slowest_s=0.5)
    facts = DomainFacts("beijing")
    for second in range(LEAST_SAMPLES + 1):
        followed = recogniser.look(facts_at(second, facts))
    assert followed is not None
    assert followed.opinions == {}


def test_without_a_model_nobody_has_an_opinion() -> None:
    recogniser = Recogniser(None, VirtualClock(), slowest_s=60)
    assert recogniser.name == ""
    assert recogniser.look(facts_at(0, DomainFacts("beijing"))) is None


def test_every_rule_of_the_model_fits_the_store() -> None:
    assert [rule.value for rule in Rule if rule.value.startswith("model-")] == [
        "model-healthy",
        "model-busy",
        "model-degraded",
        "model-failing",
    ]
    assert not TrackedDomain(DomainFacts("beijing")).observed


def test_windows_begin_anew_after_a_clock_was_set_back() -> None:
    windows = Windows()
    one = {"a": np.zeros(QUANTITIES, dtype=np.float32)}
    assert windows.add(NOW_S + 3600, one)
    assert not windows.add(NOW_S + 3590, one)
    assert windows.add(NOW_S, one)
    assert (windows.newest_s, windows.count) == (NOW_S, 1)
    assert np.isnan(windows.of(["a"])[0, :-1]).all()
