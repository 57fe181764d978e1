"""Configurations of Hugging Face: parameters against published totals, what is refused, and which field an error names."""

import json
from typing import Any

import pytest

from meridian.errors import InvalidArgumentError
from services.forecast.cost_model import estimate, machine_of
from services.forecast.cost_model.hugging_face import model_of_config
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import TrainingLayout


def _llama(layers: int, hidden: int, heads: int, ffn: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return {"model_type": "llama", **sizes, "intermediate_size": ffn, "vocab_size": vocabulary, **more}


def _experts(shape: dict[str, Any], experts: str, count: int, chosen: int, **more: Any) -> dict[str, Any]:
    return {**shape, experts: count, "num_experts_per_tok": chosen, **more}


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
LATENT_GLM = {**LATENT, "qk_nope_head_dim": 192, "v_head_dim": 256}
LLAMA_4 = _experts(
    _llama(48, 5120, 40, 8192, 202048, num_key_value_heads=8, head_dim=128, intermediate_size_mlp=16384),
    "num_local_experts",
    16,
    1,
    model_type="llama4_text",
)
DEEPSEEK_V3 = _experts(
    _llama(61, 7168, 128, 18432, 129280, num_key_value_heads=128, **LATENT),
    "n_routed_experts",
    256,
    8,
    model_type="deepseek_v3",
    moe_intermediate_size=2048,
    n_shared_experts=1,
    first_k_dense_replace=3,
    q_lora_rank=1536,
    num_nextn_predict_layers=1,
)
CHATGLM = {
    "model_type": "chatglm",
    "hidden_size": 4096,
    "ffn_hidden_size": 13696,
    "num_attention_heads": 32,
    "num_layers": 40,
    "kv_channels": 128,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "padded_vocab_size": 151552,
}
FALCON = {
    "model_type": "falcon",
    "num_hidden_layers": 32,
    "hidden_size": 4544,
    "num_attention_heads": 71,
    "vocab_size": 65024,
}
STARCODER = {
    "model_type": "gpt_bigcode",
    "n_embd": 6144,
    "n_head": 48,
    "n_layer": 40,
    "n_inner": 24576,
    "vocab_size": 49152,
}
MPT = {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4, "vocab_size": 50432}
DBRX = {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352}
ERNIE = _llama(28, 2560, 20, 12288, 103424, model_type="ernie4_5_moe", num_key_value_heads=4, head_dim=128)

# Billions as the papers, the model cards or the stored weights of the models state them (positions and, where there are
# any, layers that predict further tokens left out).
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "Llama 2 70B": (_llama(80, 8192, 64, 28672, 32000, num_key_value_heads=8), 68.977),
    "Llama 3.2 1B": (_llama(16, 2048, 32, 8192, 128256, num_key_value_heads=8, tie_word_embeddings=True), 1.236),
    "Llama 4 Scout": ({"model_type": "llama4", "text_config": LLAMA_4, "vision_config": {"hidden_size": 1408}}, 107.77),
    "Llama 4 Maverick": (
        {"model_type": "llama4", "text_config": {**LLAMA_4, "num_local_experts": 128, "interleave_moe_layer_step": 2}},
        400.71,
    ),
    "Mistral Nemo": (
        _llama(40, 5120, 32, 14336, 131072, model_type="mistral", num_key_value_heads=8, head_dim=128),
        12.248,
    ),
    "Mixtral 8x7B": (
        _experts(
            _llama(32, 4096, 32, 14336, 32000, num_key_value_heads=8), "num_local_experts", 8, 2, model_type="mixtral"
        ),
        46.703,
    ),
    "Qwen 7B": (_llama(32, 4096, 32, 22016, 151936, model_type="qwen", kv_channels=128), 7.721),
    "Qwen1.5 MoE A2.7B": (
        _experts(
            _llama(24, 2048, 16, 5632, 151936, model_type="qwen2_moe"),
            "num_experts",
            60,
            4,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            decoder_sparse_step=1,
        ),
        14.316,
    ),
    "Qwen3 0.6B": (
        _llama(
            28,
            1024,
            16,
            3072,
            151936,
            model_type="qwen3",
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=True,
        ),
        0.596,
    ),
    "Gemma 7B": (_llama(28, 3072, 16, 24576, 256000, model_type="gemma"), 8.538),
    "Gemma 2 9B": (
        _llama(42, 3584, 16, 14336, 256000, model_type="gemma2", num_key_value_heads=8, head_dim=256),
        9.241,
    ),
    "Gemma 3 4B": (
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
            },
        },
        3.880,
    ),
    "Phi 2": (_llama(32, 2560, 32, 10240, 51200, model_type="phi"), 2.780),
    "Phi 4": (_llama(40, 5120, 40, 17920, 100352, model_type="phi3", num_key_value_heads=10), 14.660),
    "DeepSeek V3": (DEEPSEEK_V3, 671.03),
    "Kimi K2": (
        {
            **DEEPSEEK_V3,
            "model_type": "kimi_k2",
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "n_routed_experts": 384,
            "first_k_dense_replace": 1,
            "vocab_size": 163840,
        },
        1026.4,
    ),
    "gpt-oss 120B": (
        _experts(
            _llama(36, 2880, 64, 2880, 201088, model_type="gpt_oss", num_key_value_heads=8, head_dim=64),
            "num_local_experts",
            128,
            4,
        ),
        116.83,
    ),
    "GLM 4 9B": (CHATGLM, 9.400),
    "Falcon 7B": ({**FALCON, "num_kv_heads": 71, "multi_query": True}, 6.92),
    "Falcon 40B": (
        {
            **FALCON,
            "num_hidden_layers": 60,
            "hidden_size": 8192,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "multi_query": True,
            "new_decoder_architecture": True,
        },
        41.30,
    ),
    "GPT-J 6B": (
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_inner": None, "vocab_size": 50400},
        6.05,
    ),
    "Pythia 2.8B": (_llama(32, 2560, 32, 10240, 50304, model_type="gpt_neox"), 2.775),
    "BLOOM 7B1": ({"model_type": "bloom", "n_embed": 4096, "n_head": 32, "n_layer": 30, "vocab_size": 250880}, 7.069),
    "StarCoder": (STARCODER, 15.517 - 8192 * 6144 / 1e9),
    "StarCoder2 7B": (_llama(32, 4608, 36, 18432, 49152, model_type="starcoder2", num_key_value_heads=4), 7.174),
    "MPT 7B": (MPT, 6.649),
    "DBRX": (
        {
            **DBRX,
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
            "attn_config": {"kv_n_heads": 8},
        },
        131.6,
    ),
    "ERNIE 4.5 21B A3B": (
        {
            **ERNIE,
            "moe_intermediate_size": 1536,
            "moe_num_experts": 64,
            "moe_k": 6,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_interval": 1,
        },
        21.83,
    ),
    "Phi 3 small": (
        {
            "model_type": "phi3small",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "ff_intermediate_size": 14336,
            "vocab_size": 100352,
        },
        7.39,
    ),
    "MiniCPM 2B": (_llama(40, 2304, 36, 5760, 122753, model_type="minicpm", num_key_value_heads=36), 2.725),
    "MiniCPM3 4B": (
        _llama(
            62,
            2560,
            40,
            6400,
            73448,
            model_type="minicpm3",
            num_key_value_heads=40,
            q_lora_rank=768,
            kv_lora_rank=256,
            qk_nope_head_dim=64,
            qk_rope_head_dim=32,
        ),
        4.074,
    ),
    "Command R": (_llama(40, 8192, 64, 22528, 256000, model_type="cohere"), 34.98),
    "Solar Open": (
        _experts(
            _llama(48, 4096, 64, 10240, 196608, model_type="solar_open", num_key_value_heads=8, head_dim=128),
            "n_routed_experts",
            128,
            8,
            moe_intermediate_size=1280,
            n_shared_experts=1,
            first_k_dense_replace=0,
        ),
        102.6,
    ),
    "Ling mini 2.0": (
        _experts(
            _llama(20, 2048, 16, 5120, 157184, model_type="bailing_moe", num_key_value_heads=4, head_dim=128),
            "num_experts",
            256,
            8,
            moe_intermediate_size=512,
            moe_shared_expert_intermediate_size=512,
            num_shared_experts=1,
            first_k_dense_replace=1,
        ),
        16.26,
    ),
    "GLM 5": (
        _experts(
            _llama(78, 6144, 64, 12288, 154880, model_type="glm_moe_dsa", qk_head_dim=256, **LATENT_GLM),
            "n_routed_experts",
            256,
            8,
            q_lora_rank=2048,
            moe_intermediate_size=2048,
            n_shared_experts=1,
            mlp_layer_types=["dense"] * 3 + ["sparse"] * 75,
        ),
        744.0,
    ),
    "Trinity Mini": (
        _experts(
            _llama(32, 2048, 32, 6144, 200192, model_type="afmoe", num_key_value_heads=4, head_dim=128),
            "num_experts",
            128,
            8,
            moe_intermediate_size=1024,
            num_shared_experts=1,
            num_dense_layers=2,
        ),
        26.1,
    ),
}


@pytest.mark.parametrize(("config", "billions"), PUBLISHED.values(), ids=PUBLISHED)
def test_parameters_are_those_published(config: dict[str, Any], billions: float) -> None:
    assert model_of_config(json.dumps(config)).parameters / 1e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "billions"),
    # arXiv:2412.19437, moonshotai/Kimi-K2 (input embeddings left out), gpt-oss model card (as it counts), arXiv:2401.04088.
    [("DeepSeek V3", 37.0), ("Kimi K2", 32.0), ("gpt-oss 120B", 5.13), ("Mixtral 8x7B", 12.9), ("Llama 4 Scout", 17.0)],
)
def test_active_parameters_are_those_published(name: str, billions: float) -> None:
    shape = model_of_config(json.dumps(PUBLISHED[name][0]))
    both = (shape.active_matrix_weights, shape.active_matrix_weights + shape.embedding_weights)
    assert min(abs(each / 1e9 - billions) for each in both) < 0.02 * billions


def test_models_of_the_catalogue_have_the_shape_of_their_configuration() -> None:
    llama = _llama(32, 4096, 32, 14336, 128256, num_key_value_heads=8, tie_word_embeddings=False)
    assert model_of_config(json.dumps(llama)) == model_named("llama3-8b")
    assert model_of_config(json.dumps(DEEPSEEK_V3)) == model_named("deepseek-v3")


def test_layers_with_experts_by_every_way_to_say_it() -> None:
    base = _experts(_llama(8, 512, 8, 1024, 1000, model_type="qwen2_moe"), "num_experts", 4, 2)
    ways: list[tuple[dict[str, Any], int]] = [
        ({}, 8),
        ({"decoder_sparse_step": 2}, 4),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1, 2]}, 3),
        ({"first_k_dense_replace": 3}, 5),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, 3),
        ({"moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 1]}, 7),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": 5}, 4),
        ({"moe_layers": [0, 7]}, 2),
        ({"num_dense_layers": 2}, 6),
        ({"mlp_layer_types": ["dense", "dense", *["sparse"] * 6]}, 6),
        ({"is_moe_layer": [False, *[True] * 7], "first_last_k_dense_replace": 1}, 7),
    ]
    for fields, layers in ways:
        assert model_of_config(json.dumps({**base, **fields})).expert_layers == layers, fields


LLAMA = _llama(32, 4096, 32, 11008, 32000)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"hidden_size": 4096.0}, "hidden_size"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": 10**400}, "hidden_size"),
        ({"hidden_size": float("nan")}, "hidden_size"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_attention_heads": [16, 32]}, "num_attention_heads"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"num_local_experts": 8}, "num_experts_per_tok"),
        ({"moe_expert_count": 64, "num_experts_per_tok": 4}, "moe_expert_count"),
        ({"kv_lora_rank": 512}, "qk_nope_head_dim"),
        ({"word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"attn_type_list": [0, 1]}, "attn_type_list"),
        ({"state_size": 16}, "state_size"),
        ({"num_key_value_heads_per_layer": [4] * 16 + [2] * 16}, "num_key_value_heads_per_layer"),
        ({"sliding_window": 4096, "sliding_window_pattern": "LLX"}, "sliding_window_pattern"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"type_vocab_size": 2}, "type_vocab_size"),
        ({"block_configs": [{}]}, "block_configs"),
        ({"head_dim": 128, "global_head_dim": 256}, "global_head_dim"),
        ({"num_key_value_heads": 4, "swa_num_key_value_heads": 8}, "swa_num_key_value_heads"),
        ({"attention_other_setting": {"num_attention_heads": 96}}, "attention_other_setting"),
        ({"enable_moe_block": True}, "enable_moe_block"),
        ({"num_local_experts": 8, "num_experts_per_tok": 2, "mlp_layer_types": ["sparse"]}, "mlp_layer_types"),
        *(
            ({"model_type": name}, "model_type")
            for name in (
                "mamba",
                "jamba",
                "qwen3_next",
                "arctic",
                "longcat_flash",
                "step3_text",
                "t5",
                "bert",
                "roberta",
                "vit",
                "clip_text_model",
                "whisper",
            )
        ),
    ],
)
def test_an_error_names_the_field(changes: dict[str, Any], field: str) -> None:
    for config, where in (({**LLAMA, **changes}, ""), ({"text_config": {**LLAMA, **changes}}, "text_config/")):
        with pytest.raises(InvalidArgumentError) as caught:
            model_of_config(json.dumps(config))
        assert f"/model/{where}{field}" in [item.pointer for item in caught.value.errors]
        assert field in str(caught.value.detail)


def test_heads_of_keys_that_are_listed_by_layer_are_one_number_where_they_are_alike() -> None:
    config = {**LLAMA, "num_key_value_heads_per_layer": [4] * 32}
    assert model_of_config(json.dumps(config)) == model_of_config(json.dumps({**LLAMA, "num_key_value_heads": 4}))


@pytest.mark.parametrize(
    "text", ["{", "[]", "", "[" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}", '{"hidden_size": 64}']
)
def test_what_is_no_configuration(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        model_of_config(text)


def test_windows_are_those_of_the_layers_that_the_configuration_names() -> None:
    def windows(**fields: object) -> tuple[int, int]:
        shape = model_of_config(json.dumps({**LLAMA, "sliding_window": 1024, **fields}))
        assert not any("windows" in note for note in shape.notes)
        return shape.windowed_layers, shape.window

    kinds = ["sliding_attention", "full_attention"] * 16
    assert windows(layer_types=kinds) == (16, 1024)
    assert windows(layer_types=["full_attention"] * 32) == (0, 0)
    assert windows(sliding_window_pattern=6) == (27, 1024)
    assert windows(sliding_window_pattern="LLLG") == (24, 1024)
    assert windows(model_type="gemma2") == (16, 1024)
    assert windows(global_attn_every_n_layers=4) == (24, 1024)
    assert windows(model_type="mistral") == (32, 1024)
    assert windows(model_type="mistral", use_sliding_window=False) == (0, 0)


def test_what_is_left_out_is_said() -> None:
    seen = {
        "text_config": {**LLAMA, "sliding_window": 4096},
        "vision_config": {"depth": 32},
        "tie_word_embeddings": True,
    }
    shape = model_of_config(json.dumps(seen))
    assert shape.tied
    assert any("images" in note for note in shape.notes)
    assert any("4096 tokens" in note for note in shape.notes)
    assert not model_of_config(json.dumps({**LLAMA, "sliding_window": 4096, "use_sliding_window": False})).notes
    assert any("'llama-9'" in note for note in model_of_config(json.dumps({**LLAMA, "model_type": "llama-9"})).notes)
    found = estimate(shape, TrainingLayout(2048, 8, dp=8), machine_of("A100-SXM4-80GB"))
    assert set(shape.notes) <= set(found.assumptions)
    # The same shape whatever is said beside it.
    assert shape == model_of_config(json.dumps({**LLAMA, "tie_word_embeddings": True}))
    assert any("predict" in note for note in model_named("deepseek-v3").notes)
