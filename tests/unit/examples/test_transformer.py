"""The hand-written backward pass against finite differences, and what data-parallel training relies on."""

import math

import numpy as np
import pytest
import transformer
from transformer import (
    TransformerConfig,
    initial_parameters,
    loss_and_gradient,
    named_views,
    next_token_logits,
    parameter_count,
    parameter_shapes,
    weight_decay_mask,
)

CONFIG = TransformerConfig(layers=2, hidden=8, heads=2, sequence=6, vocabulary=11)


def _example(seed=3, rows=3, positions=6):
    rng = np.random.default_rng(seed)
    window = rng.integers(0, CONFIG.vocabulary, (rows, positions + 1))
    # larger than the initial weights, so that every nonlinearity is exercised
    flat = initial_parameters(CONFIG, 1, np.float64) + rng.normal(0, 0.3, parameter_count(CONFIG))
    return flat, window[:, :-1], window[:, 1:]


def _loss_and_flat_gradient(flat, tokens, targets, scale=1.0):
    gradient = np.full_like(flat, np.nan)
    loss = loss_and_gradient(named_views(flat, CONFIG), named_views(gradient, CONFIG), CONFIG, tokens, targets, scale)
    return loss, gradient


@pytest.mark.parametrize("positions", [6, 4])
def test_every_parameter_gradient_matches_central_differences(positions):
    flat, tokens, targets = _example(positions=positions)
    _, gradient = _loss_and_flat_gradient(flat, tokens, targets)
    numeric = np.empty_like(flat)
    for index in range(flat.size):
        kept, step = flat[index], 1e-5
        flat[index] = kept + step
        above, _ = _loss_and_flat_gradient(flat, tokens, targets)
        flat[index] = kept - step
        below, _ = _loss_and_flat_gradient(flat, tokens, targets)
        flat[index] = kept
        numeric[index] = (above - below) / (2 * step)
    for name, view in named_views(gradient, CONFIG).items():
        expected = named_views(numeric, CONFIG)[name]
        np.testing.assert_allclose(view, expected, rtol=1e-5, atol=1e-7, err_msg=name)


def test_gradients_of_slices_add_up_to_the_gradient_of_the_whole_batch():
    flat, tokens, targets = _example(rows=5)
    loss, whole = _loss_and_flat_gradient(flat, tokens, targets, scale=1 / tokens.size)
    loss_a, part_a = _loss_and_flat_gradient(flat, tokens[:2], targets[:2], scale=1 / tokens.size)
    loss_b, part_b = _loss_and_flat_gradient(flat, tokens[2:], targets[2:], scale=1 / tokens.size)
    assert loss_a + loss_b == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(part_a + part_b, whole, rtol=1e-9, atol=1e-12)


def test_a_position_never_sees_what_follows_it():
    flat, tokens, _ = _example(rows=1)
    views = named_views(flat, CONFIG)
    changed = tokens.copy()
    changed[0, 4:] = (changed[0, 4:] + 1) % CONFIG.vocabulary
    before, _ = transformer._run_blocks(views, CONFIG, tokens)
    after, _ = transformer._run_blocks(views, CONFIG, changed)
    np.testing.assert_array_equal(before[0, :4], after[0, :4])
    assert (before[0, 4:] != after[0, 4:]).all()


def test_the_next_token_is_predicted_from_the_last_position():
    flat, tokens, _ = _example(rows=1)
    views = named_views(flat, CONFIG)
    logits = next_token_logits(views, CONFIG, tokens[0, :1])
    log_probabilities = logits - np.log(np.exp(logits).sum())
    for following in range(CONFIG.vocabulary):
        loss, _ = _loss_and_flat_gradient(flat, tokens[:, :1], np.array([[following]]))
        assert loss == pytest.approx(-log_probabilities[following], rel=1e-9)


def test_an_untrained_model_is_as_good_as_guessing():
    config = TransformerConfig(layers=2, hidden=32, heads=4, sequence=16)
    flat = initial_parameters(config, 0)
    rng = np.random.default_rng(0)
    window = rng.integers(0, 256, (4, 17))
    gradient = np.empty_like(flat)
    loss = loss_and_gradient(
        named_views(flat, config), named_views(gradient, config), config, window[:, :-1], window[:, 1:], 1.0
    )
    assert loss / 64 == pytest.approx(math.log(256), abs=0.05)


def test_only_matrices_decay():
    mask = named_views(weight_decay_mask(CONFIG), CONFIG)
    for name, shape in parameter_shapes(CONFIG).items():
        assert (mask[name] == (1.0 if len(shape) == 2 else 0.0)).all(), name


def test_hidden_must_divide_into_heads():
    with pytest.raises(ValueError, match="multiple of heads"):
        TransformerConfig(layers=1, hidden=10, heads=4, sequence=8)


def test_a_vector_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="parameters"):
        named_views(np.zeros(parameter_count(CONFIG) + 1), CONFIG)
