"""In which precision gradients are kept: bytes by hand, defaults, and what asks for the impossible."""

from dataclasses import replace

import pytest

from meridian.errors import InvalidArgumentError
from services.forecast.cost_model import TrainingLayout, machine_of
from services.forecast.cost_model.efficiency import PRIOR
from services.forecast.cost_model.evaluation.runs import run_of
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import Gradients, StateBytes, check, gradients_named
from services.forecast.cost_model.memory import memory_of
from services.forecast.cost_model.step_time import step_time
from services.forecast.cost_model.traffic import volumes

LAYOUT = TrainingLayout(sequence=4096, global_batch=64, dp=8, zero=1)
SHAPE = model_named("llama2-7b")


@pytest.mark.parametrize(
    ("precision", "gradients", "state"),
    [
        # Rajbhandari 2020 section 3.1; Megatron-Core: buffers in 32 bit unless told.
        ("bf16", None, StateBytes(2, 4, 12)),
        ("fp8", None, StateBytes(2, 4, 12)),
        ("fp16", None, StateBytes(2, 2, 16)),
        ("bf16", Gradients.FP32, StateBytes(2, 4, 12)),
        ("fp16", Gradients.FP32, StateBytes(2, 4, 12)),
        # NeMo's performance recipes: grad_reduce_in_fp32 = False, and the shard in 32 bit for the optimiser's step.
        ("fp8", Gradients.HALF_AND_FP32, StateBytes(2, 2, 16)),
        # An optimiser that reads 16 bit (precision-aware; PaddlePaddle without amp_master_grad).
        ("bf16", Gradients.HALF, StateBytes(2, 2, 12)),
        # DeepSpeed's BF16_Optimizer: flat gradients in 32 bit beside those of the backward pass.
        ("bf16", Gradients.BOTH, StateBytes(2, 4, 12, 2)),
        ("fp32", None, StateBytes(4, 4, 8)),
        ("fp32", Gradients.FP32, StateBytes(4, 4, 8)),
    ],
)
def test_bytes_of_state(precision: str, gradients: Gradients | None, state: StateBytes) -> None:
    assert replace(LAYOUT, precision=precision, gradients=gradients).state == state


def test_memory_and_traffic_follow() -> None:
    usual, half = memory_of(SHAPE, LAYOUT), memory_of(SHAPE, replace(LAYOUT, gradients=Gradients.HALF_AND_FP32))
    assert half.gradients == usual.gradients / 2
    # The copy in 32 bit is divided over the eight replicas as the optimiser is.
    assert half.optimiser == pytest.approx(usual.optimiser + 4 * SHAPE.parameters / 8)
    assert half.total < usual.total
    only = memory_of(SHAPE, replace(LAYOUT, gradients=Gradients.HALF))
    assert (only.gradients, only.optimiser) == (half.gradients, usual.optimiser)
    both = memory_of(SHAPE, replace(LAYOUT, gradients=Gradients.BOTH))
    assert both.gradients == pytest.approx(6 * SHAPE.parameters)
    scattered = 7 / 8 * SHAPE.parameters * 2
    moved = volumes(SHAPE, LAYOUT)["dp"] - volumes(SHAPE, replace(LAYOUT, gradients=Gradients.HALF))["dp"]
    assert moved == pytest.approx(scattered)


def test_what_is_exchanged_between_replicas_takes_half_as_long_in_16_bit() -> None:
    machine = machine_of("H100-SXM5-80GB").with_fabric(1e9)
    layout = replace(LAYOUT, dp=64, zero=0)
    halved = replace(layout, gradients=Gradients.HALF)
    times = [step_time(SHAPE, each, machine, PRIOR).exposed_s["dp"] for each in (layout, halved)]
    assert times[1] == pytest.approx(times[0] / 2, rel=0.01)


def test_state_in_32_bit_keeps_no_gradients_in_16() -> None:
    with pytest.raises(InvalidArgumentError, match=r"gradients: .*fp32") as caught:
        check(SHAPE, replace(LAYOUT, precision="fp32", gradients=Gradients.HALF))
    assert [item.pointer for item in caught.value.errors] == ["/gradients"]


def test_names() -> None:
    assert [gradients_named(name) for name in ("FP32", "bf16+fp32", "fp16+fp32", "bf16", "fp16")] == [
        Gradients.FP32,
        Gradients.HALF_AND_FP32,
        Gradients.HALF_AND_FP32,
        Gradients.HALF,
        Gradients.HALF,
    ]
    with pytest.raises(InvalidArgumentError, match="'int4'") as caught:
        gradients_named("int4")
    assert [item.pointer for item in caught.value.errors] == ["/gradients"]


def test_a_row_may_say_it_and_recomputes_less_for_it() -> None:
    # NeMo 24.07: Nemotron 340B on 128 H100, TP 8, PP 8 in twelve chunks, where gradients are kept in 16 bit.
    row = {
        "accelerator": "H100-SXM5-80GB",
        "model": "nemotron4-340b",
        "n_accel": "128",
        "seq": "4096",
        "gbs": "32",
        "mbs": "1",
        "tp": "8",
        "pp": "8",
        "vpp": "12",
        "precision": "fp8",
    }
    usual, half = run_of(row), run_of({**row, "gradients": "bf16"})
    assert half.layout.gradients is Gradients.HALF
    assert usual.layout.gradients is None
    assert 0 < half.layout.recompute_share < usual.layout.recompute_share
    with pytest.raises(InvalidArgumentError, match="gradients: 'half'"):
        run_of({**row, "gradients": "half"})
