"""Needs the learning environment: parity of torch and onnxruntime, and what the samples promise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from learning.demand.compare import rows_of
from learning.demand.network import DemandNetwork, exported, forecast, missed, trained
from learning.demand.samples import DAY, HORIZONS, INPUTS, STRUCTURE, Samples, generated, replayed, samples_of


@pytest.fixture(scope="module")
def samples() -> Samples:
    return samples_of(replayed(generated(1, days=5.0, domains=2), 1.0, 1), 2 * DAY)


def test_exported_networks_answer_as_torch_does(tmp_path: Path) -> None:
    torch.manual_seed(2)
    network = DemandNetwork()
    for part in network.parameters():
        torch.nn.init.normal_(part, 0, 0.3)
    path = tmp_path / "m.onnx"
    exported(network, path)
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    for count in (1, 64, 1000):
        inputs = np.random.default_rng(count).normal(0, 3, (count, INPUTS)).astype(np.float32)
        with torch.no_grad():
            expected = network(torch.from_numpy(inputs)).numpy()
        np.testing.assert_allclose(session.run(["change"], {"inputs": inputs})[0], expected, atol=1e-4)


def test_an_untrained_network_is_the_structure_alone(samples: Samples) -> None:
    np.testing.assert_allclose(forecast(DemandNetwork(), samples), samples.made["structure"], atol=1e-3)


def test_inputs_are_known_at_their_origin() -> None:
    jobs = generated(3, days=4.0, domains=1)
    found = replayed(jobs, 0.0, 1)
    whole = samples_of(found, 2 * DAY)
    cut = 100
    later = found.value.copy()
    later[:, 2 * DAY + cut + 1 :] += 100.0
    changed = samples_of(
        type(found)(**{**{n: getattr(found, n) for n in type(found).__slots__}, "value": later}), 2 * DAY
    )
    np.testing.assert_array_equal(whole.inputs[: cut + 1], changed.inputs[: cut + 1])
    assert not np.array_equal(whole.value[cut], changed.value[cut])


def test_training_finds_a_bias_of_the_structure(samples: Samples) -> None:
    # The structure says half of the change that comes.
    goal = 2 * samples.inputs[:, STRUCTURE : STRUCTURE + len(HORIZONS)]
    value = samples.level[:, None] + samples.scale[:, None] * goal
    names = {name: getattr(samples, name) for name in Samples.__slots__}
    biased = Samples(**{**names, "goal": goal.astype(np.float32), "value": np.maximum(0.0, value)})
    before = missed(DemandNetwork(), biased)
    assert missed(trained(biased, biased, seed=1, epochs=30), biased) < 0.7 * before


def test_figures_count_targets_not_trainings(samples: Samples) -> None:
    made = {"all": {name: [samples.made[name]] * 3 for name in ("both", "structure")}}
    rows = rows_of(made, {"all": [samples] * 3}, 1)
    assert {row.n for row in rows if row.measure.startswith("accuracy")} == {len(samples.day)}
