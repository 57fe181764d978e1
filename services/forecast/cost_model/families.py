"""Families of models by the ``model_type`` of Hugging Face: what their configurations leave unsaid, and which are no decoders.

``families.csv`` was read from the configuration classes of `transformers` (defaults of ``tie_word_embeddings``, sizes) and
from the code published with models that are not in it (Qwen, ChatGLM, Falcon).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "families.csv"
_SIZES = ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
_OTHER_LAYERS = "has layers that are neither attention nor feed-forward (state spaces, linear attention, recurrence)"
_KINDS = {
    "encoder": "an encoder",
    "encoder-decoder": "an encoder with a decoder",
    "perception": "an encoder of images, sound or short texts",
    "other-layers": _OTHER_LAYERS,
    "other-blocks": "has layers that are not one attention, then one feed-forward or its experts",
}
# Fields that only other models have.
_MARKS = {
    "is_encoder_decoder": _KINDS["encoder-decoder"],
    "encoder_layers": _KINDS["encoder-decoder"],
    "num_decoder_layers": _KINDS["encoder-decoder"],
    "type_vocab_size": _KINDS["encoder"],
    "peft_type": "an adapter of another model",
    "state_size": _OTHER_LAYERS,
    "ssm_cfg": _OTHER_LAYERS,
    "ssm_state_size": _OTHER_LAYERS,
    "mamba_d_state": _OTHER_LAYERS,
    "mamba_num_heads": _OTHER_LAYERS,
    "linear_num_value_heads": _OTHER_LAYERS,
    "linear_attn_config": _OTHER_LAYERS,
    "full_attention_interval": _OTHER_LAYERS,
    "attn_layer_period": _OTHER_LAYERS,
    "layers_block_type": _OTHER_LAYERS,
    "hybrid_override_pattern": _OTHER_LAYERS,
    "block_types": _OTHER_LAYERS,
    "block_configs": "has layers that differ from one another",
    # Step 3.5: heads of the layers that see windows.
    "attention_other_setting": "has layers that differ from one another",
    # Gemma 4: experts beside a feed-forward in each layer, embeddings of each layer, keys and values of earlier layers.
    "enable_moe_block": _KINDS["other-blocks"],
    "hidden_size_per_layer_input": _KINDS["other-blocks"],
    "num_kv_shared_layers": "has layers that differ from one another",
}
# Sizes of some layers, and of the others (Gemma 4, MiMo-V2).
_OF_SOME_LAYERS = {
    "global_head_dim": "head_dim",
    "num_global_key_value_heads": "num_key_value_heads",
    "swa_num_attention_heads": "num_attention_heads",
    "swa_num_key_value_heads": "num_key_value_heads",
    "swa_head_dim": "head_dim",
}
_ATTENTION = frozenset(("full_attention", "sliding_attention", "chunked_attention", "attention", "global", "local"))
# Parts of the names of fields that speak of experts, and the fields that count them.
_OF_EXPERTS = ("expert", "moe_")
EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts", "num_moe_experts")
"""Fields that count the experts of a layer."""
CHOSEN = (
    "num_experts_per_tok",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
)
"""Fields that count the experts that a token visits."""


@dataclass(frozen=True, slots=True)
class Family:
    """What the configuration of a decoder leaves to its class."""

    known: bool = False
    gated: bool = True
    # Input and output embedding are one where the configuration does not say.
    tied: bool = False
    # A feed-forward whose size is not stated is four times the hidden size.
    four_times: bool = False
    # Queries and keys are normed per head, whatever the configuration says.
    head_norms: bool = False
    # Sizes that published configurations do not state, by field.
    sizes: tuple[tuple[str, int], ...] = ()


@cache
def _table() -> tuple[Mapping[str, Family], Mapping[str, str]]:
    """Decoders by type, and the kinds of what is none."""
    decoders, others = {}, {}
    with _FILE.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if row["kind"] != "decoder":
                others[row["model_type"]] = _KINDS[row["kind"]]
                continue
            flags = {name: row[name] == "1" for name in ("gated", "tied", "four_times", "head_norms")}
            sizes = tuple((name, int(row[name])) for name in _SIZES if row[name])
            decoders[row["model_type"]] = Family(known=True, sizes=sizes, **flags)
    return decoders, others


def family_of(model_type: str) -> Family:
    """The family; that of most decoders (gated, not tied) where the type is not known."""
    return _table()[0].get(model_type, Family())


def what_else_it_is(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """The field that says that a configuration is of no decoder of attention and feed-forward layers, and why; else None."""
    family = str(config.get("model_type", ""))
    if family in _table()[1]:
        return "model_type", f"{family!r}: {_no_decoder(_table()[1][family])}"
    for name, kind in _MARKS.items():
        if config.get(name):
            return name, _no_decoder(kind)
    for name, usual in _OF_SOME_LAYERS.items():
        if config.get(name) not in (None, config.get(usual)):
            return name, _no_decoder(f"differs from {usual}, so layers differ from one another")
    if config.get("image_size") and config.get("patch_size") and not config.get("vocab_size"):
        return "image_size", _no_decoder(_KINDS["perception"])
    types = config.get("layer_types")
    other = [str(each) for each in types if str(each) not in _ATTENTION] if isinstance(types, list) else []
    if other:
        return "layer_types", _no_decoder(f"has layers of {other[0]!r}")
    kinds = config.get("attn_type_list")
    if isinstance(kinds, list) and any(each != 1 for each in kinds):
        return "attn_type_list", _no_decoder(_OTHER_LAYERS)
    width = config.get("word_embed_proj_dim")
    if width is not None and width != config.get("hidden_size"):
        return "word_embed_proj_dim", f"{width!r} is not the hidden size: embeddings of another width are not counted"
    return _uncounted_experts(config)


def _no_decoder(kind: str) -> str:
    return f"{kind}; only decoders of attention and feed-forward layers can be estimated"


def _uncounted_experts(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """A field that speaks of experts where none that counts them is stated."""
    inner = config.get("ffn_config")
    if any(config.get(name) for name in EXPERTS) or (isinstance(inner, dict) and inner.get("moe_num_experts")):
        return None
    for name, value in config.items():
        counted = isinstance(value, int) and not isinstance(value, bool) and value > 1
        if counted and any(part in name for part in _OF_EXPERTS):
            return name, "speaks of experts, whose number is stated by no field that is known"
    return None
