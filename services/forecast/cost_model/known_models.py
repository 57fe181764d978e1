"""Shapes of well-known models by name, and of others from a Hugging Face ``config.json``."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from meridian.errors import FieldError, InvalidArgumentError
from services.forecast.cost_model.shapes import ModelShape, shape_of

_FILE = Path(__file__).parent / "known_models.csv"
_COUNTS = [
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_size",
    "ffn",
    "vocabulary",
    "experts",
    "top_k",
    "expert_ffn",
    "shared_ffn",
    "dense_layers",
    "attention_weights",
]
# Activations of feed-forward blocks that come with a gate in the models of these types.
_UNGATED_TYPES = frozenset(
    [
        "gpt2",
        "gpt_neox",
        "gpt_neo",
        "gptj",
        "opt",
        "bloom",
        "mpt",
        "falcon",
        "gpt_bigcode",
        "phi",
        "megatron",
        "nemotron",
    ]
)
# Types whose queries and keys are normed per head.
_HEAD_NORM_TYPES = frozenset(("qwen3", "qwen3_moe", "gemma3", "gemma3_text"))
_LATENT_FIELDS = ("hidden_size", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


class UnknownModelError(InvalidArgumentError):
    """No model of this name is known."""


def _key(name: str) -> str:
    # Without the owner of a repository, and without what training a model differently does not change.
    text = name.lower().rsplit("/", 1)[-1]
    text = re.sub(r"[-_ ](hf|base|instruct|chat|it|v\d+(\.\d+)?)$", "", text)
    text = re.sub(r"(meta[-_ ]?)?llama[-_ ]?(\d)", r"llama\2", text)
    return re.sub(r"[^a-z0-9.]+", "", text).replace(".", "p")


@cache
def known_models() -> Mapping[str, ModelShape]:
    """All known models by the key of each of their names."""
    found: dict[str, ModelShape] = {}
    with _FILE.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            counts = {name: int(row[name] or 0) for name in _COUNTS}
            gated, tied, head_norms = (row[name] == "1" for name in ("gated", "tied", "head_norms"))
            shape = shape_of(**counts, gated=gated, tied=tied, head_norms=head_norms)
            for name in (row["name"], *filter(None, row["aliases"].split(";"))):
                found[_key(name)] = shape
    return found


def model_named(name: str) -> ModelShape:
    """The shape of the model ``name``; UnknownModelError when the catalogue does not have it."""
    shape = known_models().get(_key(name))
    if shape is None:
        detail = f"{name!r} is not in the catalogue of models"
        raise UnknownModelError(f"model: {detail}", errors=(FieldError("/model", detail),))
    return shape


def model_of_config(text: str) -> ModelShape:
    """The shape in a Hugging Face ``config.json``; InvalidArgumentError names what is missing or no number."""
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(f"model: no JSON: {error}", errors=(FieldError("/model", str(error)),)) from None
    if not isinstance(config, dict):
        raise InvalidArgumentError("model: no object", errors=(FieldError("/model", "no object"),))
    if isinstance(config.get("text_config"), dict):
        config = config["text_config"]

    def count(*names: str) -> int:
        for name in names:
            value = config.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
            if value is not None and not isinstance(value, (list, dict)):
                raise InvalidArgumentError(
                    f"model: {name}: {value!r} is no count", errors=(FieldError("/model", name),)
                )
        return 0

    heads = count("num_attention_heads", "n_head", "n_heads")
    expert_ffn = count("moe_intermediate_size")
    experts = count("num_local_experts", "n_routed_experts", "num_experts")
    return shape_of(
        layers=count("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        hidden=count("hidden_size", "n_embd", "d_model"),
        heads=heads,
        kv_heads=count("num_key_value_heads", "num_kv_heads"),
        head_size=_latent_head_size(config) or count("head_dim"),
        ffn=count("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
        gated=str(config.get("model_type", "llama")) not in _UNGATED_TYPES,
        vocabulary=count("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", str(config.get("model_type")) in _UNGATED_TYPES)),
        experts=experts,
        top_k=count("num_experts_per_tok", "moe_top_k"),
        expert_ffn=expert_ffn,
        shared_ffn=count("shared_expert_intermediate_size") or count("n_shared_experts") * expert_ffn,
        dense_layers=count("first_k_dense_replace"),
        attention_weights=_latent_weights(config, heads),
        head_norms=str(config.get("model_type")) in _HEAD_NORM_TYPES,
    )


def _latent_head_size(config: Mapping[str, Any]) -> int:
    """Mean width of a head's queries and values in latent attention; 0 when the model has none."""
    if not config.get("kv_lora_rank"):
        return 0
    missing = [name for name in _LATENT_FIELDS if not isinstance(config.get(name), int)]
    if missing:
        raise InvalidArgumentError(
            f"model: {', '.join(missing)}: needed with kv_lora_rank",
            errors=tuple(FieldError(f"/model/{name}", "needed with kv_lora_rank") for name in missing),
        )
    return int(config["qk_nope_head_dim"] + config["qk_rope_head_dim"] + config["v_head_dim"]) // 2


def _latent_weights(config: Mapping[str, Any], heads: int) -> int:
    rank = config.get("kv_lora_rank")
    if not rank:
        return 0
    hidden, nope, rope, value = (int(config[name]) for name in _LATENT_FIELDS)
    query_rank = int(config.get("q_lora_rank") or 0)
    queries = hidden * query_rank + query_rank * heads * (nope + rope) if query_rank else hidden * heads * (nope + rope)
    keys = hidden * (int(rank) + rope) + int(rank) * heads * (nope + value)
    return queries + keys + heads * value * hidden
