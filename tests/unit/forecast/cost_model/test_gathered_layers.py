"""What ZeRO 3 holds besides its shards: by hand for Llama 2 7B."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import TrainingLayout
from services.forecast.cost_model.memory import memory_of

PARAMETERS = 6_738_415_616
LAYERS = 32


def test_two_whole_layers_with_their_weights_and_gradients_in_sixteen_bit() -> None:
    layout = TrainingLayout(sequence=4096, global_batch=64, dp=64, zero=3)
    found = memory_of(model_named("llama2-7b"), layout)
    # 1.6 GiB of the device's context and 0.75 of collectives; of two layers 2 bytes of weights and 2 of gradients.
    others = 2.35 * 2**30
    assert found.buffers - found.reserve == pytest.approx(others + 2 * PARAMETERS / LAYERS * (2 + 2))
    divided_less = memory_of(model_named("llama2-7b"), replace(layout, zero=2))
    assert divided_less.buffers - divided_less.reserve == pytest.approx(others)
