"""Context parallelism by hand: what is sent, and what of it attention hides."""

from dataclasses import replace

import pytest

from meridian.errors import InvalidArgumentError
from services.forecast.cost_model import TrainingLayout, machine_of
from services.forecast.cost_model.context import exposed
from services.forecast.cost_model.efficiency import PRIOR
from services.forecast.cost_model.kernels import Pass
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import Context, Recompute, check, context_named
from services.forecast.cost_model.links import Links, groups
from services.forecast.cost_model.traffic import volumes

H100 = machine_of("H100-SXM5-80GB")
LLAMA = model_named("llama3-8b")
# Eight of a node share 32,768 tokens; 32 heads of 128, eight of keys and values.
LAYOUT = TrainingLayout(sequence=32768, global_batch=1, cp=8)
FREE = replace(PRIOR, collective_s=1e-30)
LINKS = Links(H100, FREE)
RATE = H100.link_bytes_per_s * FREE.link


def _exposed(layout: TrainingLayout, attention: float = 0.0) -> float:
    return exposed(LLAMA, layout, LINKS, groups(layout)["cp"], Pass(1.0, 1.0, attention))


def test_gathered_keys_and_values_are_waited_for() -> None:
    keys = 2 * 2 * 32768 * 8 * 128 * 7 / 8 / RATE
    gathered = replace(LAYOUT, context=Context.GATHER)
    # Forward once; backward again, and their gradients. Attention hides nothing of it.
    assert _exposed(gathered) == _exposed(gathered, attention=9.0) == pytest.approx(3 * keys)
    assert _exposed(replace(gathered, recompute=Recompute.FULL)) == pytest.approx(4 * keys)
    # Of all 32 heads instead of eight.
    assert _exposed(replace(gathered, repeated_keys=True)) == pytest.approx(4 * 3 * keys)


def test_a_ring_hides_behind_attention() -> None:
    keys = 2 * 2 * 32768 * 8 * 128 * 7 / 8 / RATE
    assert _exposed(LAYOUT) == pytest.approx(3 * keys)
    assert _exposed(LAYOUT, attention=keys / 2) == pytest.approx(keys / 2 + (2 - 1.25) * keys)
    assert _exposed(LAYOUT, attention=keys) == 0.0
    assert _exposed(replace(LAYOUT, cp=1)) == 0.0


def test_exchanged_heads_move_what_a_chip_has() -> None:
    exchanged = replace(LAYOUT, context=Context.EXCHANGE)
    # Queries, keys, values and what attention gives of 4,096 tokens, seven eighths to others, forward and backward.
    own = 2 * 4096 * 128 * (32 + 8 + 8 + 32)
    assert _exposed(exchanged) == pytest.approx(2 * own * 7 / 8 / RATE)
    assert volumes(LLAMA, exchanged)["cp"] == pytest.approx(32 * 2 * own * 7 / 8)
    # Sixteen chips need a head of keys each.
    wide = replace(exchanged, cp=16)
    assert volumes(LLAMA, wide)["cp"] == pytest.approx(32 * 2 * 2 * 2048 * 128 * (32 + 16 + 16 + 32) * 15 / 16)


def test_traffic_of_a_ring_and_of_gathering_is_the_same() -> None:
    ring, gathered = (volumes(LLAMA, replace(LAYOUT, context=kind))["cp"] for kind in (Context.RING, Context.GATHER))
    assert ring == gathered == pytest.approx(32 * 3 * 2 * 2 * 32768 * 8 * 128 * 7 / 8)


def test_more_chips_than_heads_cannot_exchange_them() -> None:
    with pytest.raises(InvalidArgumentError, match="32 heads cannot be exchanged among tp x cp = 64"):
        check(LLAMA, replace(LAYOUT, cp=64, context=Context.EXCHANGE))
    check(LLAMA, replace(LAYOUT, cp=64))


@pytest.mark.parametrize(("name", "kind"), [("Ulysses", "exchange"), ("all-gather", "gather"), ("p2p", "ring")])
def test_names(name: str, kind: str) -> None:
    assert context_named(name) == kind


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'rings' is none of ring, gather, exchange"):
        context_named("rings")
