"""Estimates and the search of layouts as they are asked for over HTTP."""

from __future__ import annotations

import pytest

from meridian.errors import InvalidArgumentError
from services.forecast.cost_model import TrainingLayout, machine_of
from services.forecast.cost_model import estimate as cost_estimate
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import PRECISIONS, Recompute
from services.forecast.estimates import (
    EstimateRequest,
    LayoutBody,
    LayoutsRequest,
    ModelBody,
    estimate_of,
    layouts_of,
)
from services.gateway.api.network import TrainedModel

MIXTRAL = {"name": "mixtral-8x7b", "sequence": 4096, "global_batch": 128, "steps": 10}


def asked(model: dict[str, object], **others: object) -> EstimateRequest:
    return EstimateRequest.model_validate({"model": model, **others})


def test_time_memory_and_traffic_are_those_of_the_cost_model() -> None:
    model = {**MIXTRAL, "tensor_parallel": 2, "expert_parallel": 4, "zero_stage": 1, "recompute": "full"}
    found = estimate_of(asked(model, accelerators=32, accelerator_type="H100 SXM", fabric_gbps=25.0), None)
    layout = TrainingLayout(sequence=4096, global_batch=128, tp=2, dp=16, ep=4, zero=1, recompute=Recompute.FULL)
    truth = cost_estimate(model_named("mixtral-8x7b"), layout, machine_of("H100 SXM").with_fabric(25e9))
    assert found.step_time is not None
    assert found.step_time.step_s == truth.step.total_s
    # A standard deviation of 0.24 of the logarithm, before anything is measured; four of five within 1.28 of it.
    assert found.step_time.high_s / found.step_time.step_s == pytest.approx(1.36, abs=0.02)
    assert found.step_time.step_s / found.step_time.low_s == pytest.approx(1.36, abs=0.02)
    assert found.memory_bytes_per_accelerator == truth.memory.total
    assert found.traffic_bytes_per_step["expert_parallel"] == truth.traffic.by_kind["ep"]
    assert found.flops_per_step == pytest.approx(truth.model_flops_per_step * 4 / 3)
    assert found.total_flops == pytest.approx(10 * found.flops_per_step)
    assert found.verdict is not None
    assert found.verdict.fits is truth.verdict.fits


def test_the_gateway_asks_for_what_can_be_estimated() -> None:
    """What it lets through is read, and what a search answers it lets through."""
    through = TrainedModel.model_fields.keys()
    assert through <= ModelBody.model_fields.keys()
    sizes = LayoutBody.model_fields.keys() & ModelBody.model_fields.keys()
    assert {"recompute_share", "zero_stage", "virtual_stages"} <= sizes <= through
    for way in Recompute:
        assert ModelBody.model_validate(TrainedModel(recompute=way.value).model_dump()).recompute == way
    for precision in set(PRECISIONS) | {""}:
        assert TrainedModel.model_validate({"precision": precision}).precision == precision


@pytest.mark.parametrize("model", [{"name": "llama3-8b"}, {"name": "gemma3-27b"}, {"layers": 32, "hidden": 4096}])
@pytest.mark.parametrize("way", [False, "selective", "products", True])
def test_what_follows_without_a_sequence_is_told(model: dict[str, object], way: object) -> None:
    found = estimate_of(asked({**model, "recompute": way}, accelerator_type="H100 SXM"), None)
    assert found.parameters > 0
    assert found.memory_parts_bytes["optimiser"] > 0
    assert found.memory_parts_bytes["activations"] == 0
    assert any("sequence is unknown" in note for note in found.notes)
    assert found.step_time is None


def test_sizes_beside_a_name_that_are_not_looked_at_are_said() -> None:
    found = estimate_of(asked({**MIXTRAL, "layers": 4, "hidden": 4096, "experts": 8}), None)
    assert [note for note in found.notes if "not looked at" in note] == [
        "layers = 4 is not looked at: the model that is named has 32"
    ]
    assert found.parameters == model_named("mixtral-8x7b").parameters


def test_memory_comes_from_the_request_then_the_network_then_the_catalogue() -> None:
    model = {"name": "llama3-8b", "sequence": 2048, "global_batch": 8, "zero_stage": 3}

    def margin(offered: float | None, **others: object) -> float:
        verdict = estimate_of(asked(model, accelerators=8, **others), offered).verdict
        assert verdict is not None
        return verdict.margin_bytes

    stated = margin(10.0, accelerator_type="H100 SXM", memory_bytes_per_accelerator=5)
    assert margin(10.0, accelerator_type="H100 SXM") - stated == pytest.approx(5.0)
    assert margin(None, accelerator_type="H100 SXM") - stated == pytest.approx(80e9, rel=0.1)
    nobody = estimate_of(asked(model, accelerators=8, accelerator_type="X1"), None)
    assert (nobody.verdict, nobody.step_time) == (None, None)
    assert any("X1" in note for note in nobody.notes)


@pytest.mark.parametrize(
    ("model", "others", "pointer"),
    [
        ({"name": "no-such-model"}, {}, "/model/name"),
        ({**MIXTRAL, "expert_parallel": 3}, {}, "/model/expert_parallel"),
        ({**MIXTRAL, "context_parallel": 5, "data_parallel": 1}, {}, "/model/context_parallel"),
        ({**MIXTRAL, "precision": "int3"}, {}, "/model/precision"),
        ({**MIXTRAL, "tensor_parallel": 4}, {"accelerators": 6}, "/accelerators"),
        ({**MIXTRAL, "tensor_parallel": 4, "data_parallel": 2}, {"accelerators": 64}, "/accelerators"),
        ({}, {}, "/model/layers"),
    ],
)
def test_what_is_impossible_names_the_field(model: dict[str, object], others: dict[str, object], pointer: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        estimate_of(asked(model, **others), None)
    assert [item.pointer for item in caught.value.errors] == [pointer]


def test_a_search_gives_layouts_that_fit_fastest_first_and_that_an_estimate_confirms() -> None:
    request = LayoutsRequest.model_validate(
        {"model": MIXTRAL, "accelerators": 64, "accelerator_type": "H100 SXM", "count": 3}
    )
    found = layouts_of(request)
    assert len(found.layouts) == 3
    assert 3 <= found.fitting <= found.possible
    times = [each.step_time.step_s for each in found.layouts]
    assert times == sorted(times)
    best = found.layouts[0]
    sizes = best.tensor_parallel * best.pipeline_parallel * best.data_parallel * best.context_parallel
    assert sizes == 64
    names = ("tensor_parallel", "pipeline_parallel", "virtual_stages", "data_parallel", "context_parallel")
    names += ("expert_parallel", "micro_batch", "zero_stage", "sequence_parallel")
    stated = {name: getattr(best, name) for name in names}
    assert best.recompute_share == 1.0
    again = estimate_of(
        asked({**MIXTRAL, **stated, "recompute": best.recompute}, accelerators=64, accelerator_type="H100 SXM"), None
    )
    assert again.step_time is not None
    assert again.step_time.step_s == pytest.approx(best.step_time.step_s)
    assert again.verdict is not None
    assert again.verdict.fits


@pytest.mark.parametrize(
    ("model", "chip", "accelerators", "share"),
    # Steps that are compiled, and a part of the layers that is recomputed.
    [("qwen3-0.6b", "tpu-v6e", 32, 1.0), ("qwen2.5-7b", "H100 SXM", 4, 0.5)],
)
def test_every_layout_of_a_search_is_estimated_alike(model: str, chip: str, accelerators: int, share: float) -> None:
    stated = {"name": model, "sequence": 32768 if chip == "tpu-v6e" else 4096, "global_batch": 128}
    pool: dict[str, object] = {"accelerators": accelerators, "accelerator_type": chip}
    found = layouts_of(LayoutsRequest.model_validate({"model": stated, **pool, "count": 100}))
    assert share in {each.recompute_share for each in found.layouts}
    for each in found.layouts:
        sizes = each.model_dump(exclude={"step_time", "memory_bytes_per_accelerator", "memory_parts_bytes"})
        del sizes["fits_with_confidence"]
        again = estimate_of(asked({**stated, **sizes}, **pool), None)
        assert again.step_time == each.step_time
        assert again.memory_parts_bytes == each.memory_parts_bytes
        assert again.verdict is not None
        assert again.verdict.fits


def test_what_is_recomputed_of_some_layers_counts_for_these() -> None:
    def again(name: str, **stated: object) -> float:
        model = {"name": name, "sequence": 4096, "global_batch": 8, **stated}
        found = estimate_of(asked(model), None)
        return found.flops_per_token - found.model_flops_per_token

    for name in ("mixtral-8x7b", "deepseek-v3"):
        for way in ("selective", "products", "full"):
            whole = again(name, recompute=way)
            assert whole > 0
            assert again(name, recompute=way, recompute_share=0.25) == pytest.approx(whole / 4)
    shape = model_named("mixtral-8x7b")
    # Values of one token: keys and attention's output, and the second product of two experts.
    assert again("mixtral-8x7b", recompute="products") == pytest.approx(
        2 * shape.layers * shape.hidden * (128 * (32 + 8) + 2 * 14336)
    )


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"model": {"name": "mixtral-8x7b", "global_batch": 8}}, "/model/sequence"),
        ({"model": {"name": "mixtral-8x7b", "sequence": 8}}, "/model/global_batch"),
        ({"model": {"sequence": 8, "global_batch": 8}}, "/model/layers"),
        ({"accelerator_type": "X1"}, "/accelerator_type"),
        ({"accelerators": 37}, "/accelerators"),
    ],
)
def test_an_impossible_search_names_the_field(change: dict[str, object], pointer: str) -> None:
    body = {"model": MIXTRAL, "accelerators": 64, "accelerator_type": "H100 SXM", **change}
    with pytest.raises(InvalidArgumentError) as caught:
        layouts_of(LayoutsRequest.model_validate(body))
    assert caught.value.errors[0].pointer == pointer


def test_gradients_and_layers_of_stages_may_be_stated() -> None:
    model = {"name": "kimi-k2", "sequence": 4096, "global_batch": 256, "pipeline_parallel": 4, "expert_parallel": 8}
    usual = estimate_of(asked(model, accelerators=32), None)
    stated = {**model, "gradient_precision": "bf16", "stage_layers": [15, 16, 15, 15]}
    found = estimate_of(asked(stated, accelerators=32), None)
    assert found.memory_parts_bytes["gradients"] == pytest.approx(usual.memory_parts_bytes["gradients"] / 2)
    on_chips = estimate_of(asked(model, accelerators=32, accelerator_type="GB300"), None)
    assert on_chips.step_time is not None
    assert any("stages of 15, 16, 15, 15 layers" in note for note in on_chips.step_time.assumptions)
    with pytest.raises(InvalidArgumentError) as caught:
        estimate_of(asked({**stated, "stage_layers": [15, 16, 15, 16]}, accelerators=32), None)
    assert [item.pointer for item in caught.value.errors] == ["/model/stage_layers"]
    half = {**model, "precision": "fp32", "gradient_precision": "bf16"}
    with pytest.raises(InvalidArgumentError) as caught:
        estimate_of(asked(half, accelerators=32), None)
    assert [item.pointer for item in caught.value.errors] == ["/model/gradient_precision"]
