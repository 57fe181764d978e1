"""Parameters and FLOPs against published figures; names of models; what is missing or impossible."""

from dataclasses import replace

import pytest

from meridian.errors import InvalidArgumentError
from services.forecast.cost_model.known_models import UnknownModelError, known_models, model_named
from services.forecast.cost_model.shapes import gated_ffn_of, shape_of

# Totals as the papers and model cards state them, in billions.
PUBLISHED = {
    "GPT-3 175B": 174.6,
    "gpt-530b": 529.6,
    "gpt-1008b": 1008.0,
    "Llama-2-7B": 6.738,
    "Llama-2-70B": 68.977,
    "Meta-Llama-3-8B": 8.030,
    "Llama3.1-405B": 405.85,
    "BLOOM-176B": 176.25,
    "Mixtral-8x7B": 46.70,
    "Mixtral-8x22B": 140.6,
    "Qwen3_30B_a3B": 30.5,
    "Qwen3-235B-A22B": 235.1,
    "DeepSeek-V3": 671.0,
    "Qwen2.5-72B": 72.71,
}


@pytest.mark.parametrize(("name", "billions"), PUBLISHED.items())
def test_parameters_are_those_published(name: str, billions: float) -> None:
    assert model_named(name).parameters / 1e9 == pytest.approx(billions, rel=2e-3)


def test_active_weights_of_experts() -> None:
    # 37 B of DeepSeek-V3, 12.9 B of Mixtral 8x7B and 22 B of Qwen3 235B are active per token; input embeddings left out.
    for name, billions in [("deepseek-v3", 37.0), ("mixtral-8x7b", 12.9), ("qwen3-235b-a22b", 22.0)]:
        assert model_named(name).active_matrix_weights / 1e9 == pytest.approx(billions, rel=0.03)


def test_flops_are_those_of_narayanan_without_recomputation() -> None:
    # Eq. 3 of arXiv:2104.04473 is 96 B s l h^2 (1 + s/6h + V/16lh) with a forward pass repeated, logits not: 4/3 of ours.
    shape, s, v = model_named("megatron-145.6b"), 2048, 51200
    layers, h = shape.layers, shape.hidden
    expected = 72 * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert shape.flops_per_token(s) * s == pytest.approx(expected, rel=1e-3)


def test_an_unknown_model_is_said_to_be_unknown() -> None:
    with pytest.raises(UnknownModelError, match="'llama-9'"):
        model_named("llama-9")


def test_an_unknown_name_is_answered_with_names_that_are_spelt_alike() -> None:
    with pytest.raises(
        UnknownModelError, match="'meta/Llama-3-700B' is not in the catalogue of models; it has llama3-70b, "
    ):
        model_named("meta/Llama-3-700B")
    with pytest.raises(UnknownModelError, match=r"'abacus' is not in the catalogue of models$"):
        model_named("abacus")


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("Meta-Llama-3.1-70B-Instruct", "llama3.1-70b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("LLAMA3_70B", "llama3-70b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama2-7b"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
    ],
)
def test_spellings_of_one_model(name: str, same: str) -> None:
    assert model_named(name) == model_named(same)


def test_models_of_one_family_are_not_taken_for_each_other() -> None:
    # 236 B (arXiv:2405.04434) and 671 B (arXiv:2412.19437): the version is part of the name.
    assert model_named("deepseek-ai/DeepSeek-V2").parameters / 1e9 == pytest.approx(235.7, rel=2e-3)
    assert model_named("deepseek-v3").parameters / 1e9 == pytest.approx(671.0, rel=2e-3)
    for name in ("deepseek", "deepseek-v4", "qwen2.5-v2"):
        with pytest.raises(UnknownModelError):
            model_named(name)


def test_no_two_models_share_a_name() -> None:
    assert len({id(shape) for shape in known_models().values()}) > 50


def test_what_is_missing_is_derived() -> None:
    shape = shape_of(layers=32, hidden=4096, gated=True)
    assert (shape.heads, shape.kv_heads, shape.ffn, shape.vocabulary, shape.tied) == (32, 32, 11008, 32000, False)
    assert gated_ffn_of(8192) == 22016
    plain = shape_of(layers=2, hidden=512)
    assert (plain.heads, plain.ffn, plain.tied) == (8, 2048, True)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"layers": 0, "hidden": 64}, "/layers"),
        ({"layers": 10**12, "hidden": 64}, "/layers"),
        ({"layers": 2, "hidden": 100, "heads": 3}, "/heads"),
        ({"layers": 2, "hidden": 128, "heads": 8, "kv_heads": 3}, "/kv_heads"),
        ({"layers": 2, "hidden": 128, "heads": 8, "experts": 4, "top_k": 5}, "/top_k"),
    ],
)
def test_impossible_shapes_name_the_field(fields: dict[str, int], named: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        shape_of(**fields)
    assert [item.pointer for item in caught.value.errors] == [named]


def test_layers_with_windows_take_in_their_windows_alone() -> None:
    # Of a causal sequence of 8, with windows of 2: 1 + 2 x 7 = 15 of 36 pairs; of many, 1 - (1 - 1/4)^2.
    shape = replace(model_named("gemma3-12b"), windowed_layers=48, window=2**20)
    assert shape.attended(2**22) == pytest.approx(1 - 0.75**2)
    assert shape.attended(2**20) == shape.attended(4096) == 1
    # 40 of 48 layers of Gemma 3 12B see 1,024 tokens.
    gemma = model_named("gemma3-12b")
    assert gemma.attended(32768) == pytest.approx(1 / 6 + 5 / 6 * (1 - (31 / 32) ** 2))
    whole = replace(gemma, windowed_layers=0)
    attention = 12 * 48 * 16 * 256 * 32768
    assert whole.flops_per_token(32768) - gemma.flops_per_token(32768) == pytest.approx(
        attention * (1 - gemma.attended(32768))
    )
    with pytest.raises(InvalidArgumentError, match="windowed_layers: 49 of 48 layers"):
        shape_of(layers=48, hidden=4096, windowed_layers=49, window=128)
