"""The shape in a Hugging Face ``config.json``: its fields, by the names and with the meaning they have in its family.

A field that the shape needs and nobody states is an error that names it, never a guess; so is a model that is no decoder
of attention and feed-forward layers. What the shape leaves out is said in its notes. Meanings are those of the
configuration classes of `transformers` and of the code that is published with the models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meridian.errors import FieldError, InvalidArgumentError
from services.forecast.cost_model.families import CHOSEN, EXPERTS, family_of, what_else_it_is
from services.forecast.cost_model.latent import LatentAttention
from services.forecast.cost_model.shapes import ModelShape, shape_of

# Where models of several kinds of input keep their decoder.
_DECODERS = ("text_config", "llm_config", "language_config", "thinker_config")
_ENCODERS = ("vision_config", "visual", "audio_config", "speech_config", "img_processor", "vision_tower")
_LARGEST = 10_000_000
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_key_value_heads_per_layer")
_HEAD_SIZE = ("head_dim", "kv_channels", "attention_head_dim")
_FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "ff_intermediate_size")
_VOCABULARY = ("padded_vocab_size", "vocab_size")
_EXPERT_FFN = ("moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size")
_SHARED_COUNT = ("n_shared_experts", "moe_num_shared_experts", "num_shared_experts", "num_shared_expert")
_SHARED_FFN = ("shared_expert_intermediate_size", "shared_intermediate_size")


def model_of_config(text: str) -> ModelShape:
    """The shape in a Hugging Face ``config.json``; InvalidArgumentError names what is missing, impossible or no decoder."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"model: no JSON: {error}", errors=(FieldError("/model", str(error)),)) from None
    if not isinstance(config, dict):
        raise InvalidArgumentError("model: no object", errors=(FieldError("/model", "no object"),))
    notes: list[str] = []
    if any(config.get(name) for name in _ENCODERS):
        notes.append("the model's encoders of images or sound are not counted")
    where, tied = "", config.get("tie_word_embeddings")
    while nested := next((name for name in _DECODERS if isinstance(config.get(name), dict)), None):
        config, where = config[nested], f"{where}{nested}/"
        if any(config.get(name) for name in _ENCODERS) and not notes:
            notes.append("the model's encoders of images or sound are not counted")
        tied = config.get("tie_word_embeddings", tied)
    return _Fields(config, where).shape(tied, notes)


# Of which layers see windows where the configuration does not say: all but each so manieth, by type (the classes of
# `transformers`); 1: all.
_WINDOWED_ALL_BUT_EACH = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4, "mistral": 1, "mixtral": 1}


class _Fields:
    """The fields of one decoder; ``where`` is the path of the object that holds them."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._where = where
        self._type = str(config.get("model_type", ""))
        self._family = family_of(self._type)
        self._unstated = dict(self._family.sizes)

    def shape(self, tied: object, notes: list[str]) -> ModelShape:
        """The shape; ``tied`` is what the configuration says of its embeddings, ``notes`` of what is left out so far."""
        config = self._config
        if (other := what_else_it_is(config)) is not None:
            raise self._wrong(*other)
        if tied is not None and not isinstance(tied, bool):
            raise self._wrong("tie_word_embeddings", f"{tied!r} is neither true nor false")
        layers, hidden = self._needed(*_LAYERS), self._needed(*_HIDDEN)
        experts = self.count(*EXPERTS) or self._inner("ffn_config", "moe_num_experts")
        heads = self._needed(*_HEADS)
        if self._type == "minicpm3" and config.get("v_head_dim") is None:
            config = {**config, "v_head_dim": hidden // heads}
        latent = LatentAttention.of(config, self._wrong)
        ffn, expert_ffn, shared = self._feed_forwards(hidden, experts)
        with_experts = self._layers_with_experts(layers) if experts else 0
        predicting = self.count("num_nextn_predict_layers")
        kv_heads, head_size = self._key_value_heads(heads), self.count(*_HEAD_SIZE)
        attention = latent.weights(hidden, heads) if latent else 0
        if self._type == "afmoe":
            # What attention gives is gated: a matrix as large as that of queries.
            attention = hidden * (head_size or hidden // heads) * (3 * heads + 2 * kv_heads)
        shape = shape_of(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_size=latent.head_size if latent else head_size,
            ffn=ffn,
            gated=self._family.gated,
            vocabulary=self._needed(*_VOCABULARY),
            tied=self._family.tied if tied is None else tied,
            experts=experts,
            top_k=self._top_k() if experts else 0,
            expert_ffn=expert_ffn,
            shared_ffn=shared,
            dense_layers=layers - with_experts if experts else 0,
            attention_weights=attention,
            head_norms=self._family.head_norms
            or config.get("use_qk_norm") is True
            or config.get("qk_layernorm") is True,
            predicting_layers=predicting,
            windowed_layers=self._windowed_layers(layers),
            window=self.count("sliding_window") if self._windowed_layers(layers) else 0,
        )
        return replace(shape, notes=(*shape.notes, *notes, *self._left_out()))

    def _wrong(self, name: str, detail: str) -> InvalidArgumentError:
        field = f"{self._where}{name}"
        return InvalidArgumentError(f"model: {field}: {detail}", errors=(FieldError(f"/model/{field}", detail),))

    def count(self, *names: str) -> int:
        """The first of ``names`` that is stated; 0 where none is."""
        for name in names:
            value = self._config.get(name)
            if isinstance(value, list) and value:
                if any(each != value[0] for each in value):
                    raise self._wrong(name, "differs from layer to layer")
                value = value[0]
            if value is None or value == []:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
                raise self._wrong(name, f"{str(value)[:40]!r} is no count up to {_LARGEST}")
            return value
        return next((self._unstated[name] for name in names if name in self._unstated), 0)

    def _needed(self, *names: str) -> int:
        found = self.count(*names)
        if not found:
            raise self._wrong("vocab_size" if names == _VOCABULARY else names[0], "must be given")
        return found

    def _inner(self, group: str, name: str) -> int:
        """A count in an object of the configuration; 0 where it has none."""
        inner = self._config.get(group)
        return _Fields(inner, f"{self._where}{group}/").count(name) if isinstance(inner, dict) else 0

    def _key_value_heads(self, heads: int) -> int:
        config = self._config
        if config.get("multi_query_attention") is True:
            # ChatGLM 2 and later.
            return self.count("multi_query_group_num") or 1
        many = config.get("new_decoder_architecture") is True
        if config.get("multi_query", self._type == "gpt_bigcode") is True and not many:
            # Falcon 7B and StarCoder: one head of keys and values, whatever else the configuration names.
            return 1
        return self.count(*_KV_HEADS) or self._inner("attn_config", "kv_n_heads") or heads

    def _feed_forwards(self, hidden: int, experts: int) -> tuple[int, int, int]:
        """Inner sizes of a dense feed-forward, of an expert, and of the experts that every token visits."""
        ffn = self.count(*_FFN) or self._inner("ffn_config", "ffn_hidden_size")
        ffn = ffn or self.count("expansion_ratio") * hidden
        expert_ffn = self.count(*_EXPERT_FFN) or (ffn if experts else 0)
        if not ffn and self._family.four_times:
            ffn = 4 * hidden
        if self._type == "qwen":
            # The first Qwen states gate and content together.
            ffn //= 2
        if not (ffn or expert_ffn):
            raise self._wrong(_FFN[0], "must be given")
        if not experts:
            return ffn, 0, 0
        shared = self.count(*_SHARED_FFN) or self.count(*_SHARED_COUNT) * expert_ffn
        if self._type == "llama4_text":
            # One shared expert as large as the others; layers without experts have a feed-forward of their own size.
            return self.count("intermediate_size_mlp") or ffn, ffn, ffn
        return ffn or expert_ffn, expert_ffn, shared

    def _top_k(self) -> int:
        found = self.count(*CHOSEN) or self._inner("ffn_config", "moe_top_k")
        if not found:
            raise self._wrong(CHOSEN[0], "must be given with experts")
        return found

    def _layers_with_experts(self, layers: int) -> int:
        config = self._config
        listed = config.get("moe_layers")
        if isinstance(listed, list) and listed:
            return len({each for each in listed if isinstance(each, int) and 0 <= each < layers})
        for name in ("moe_layer_freq", "is_moe_layer"):
            flags = self._by_layer(name, layers)
            if flags is not None:
                return sum(bool(flag) for flag in flags)
        kinds = self._by_layer("mlp_layer_types", layers)
        if kinds is not None:
            # As `transformers` stores them since 5.0: dense or sparse.
            return sum(kind != "dense" for kind in kinds)
        every = self.count("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
        first = self.count("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
        stated_last = config.get("moe_layer_end_index")
        last = layers - 1 if stated_last in (None, -1) else self.count("moe_layer_end_index")
        alone = config.get("mlp_only_layers")
        dense = set(alone) if isinstance(alone, list) else set()
        frequency = self.count("moe_layer_freq") or 1
        return sum(
            first <= layer <= last and (layer + 1) % every == 0 and layer % frequency == 0 and layer not in dense
            for layer in range(layers)
        )

    def _by_layer(self, name: str, layers: int) -> list[Any] | None:
        """What a list says of each layer; None where the field is no list."""
        said = self._config.get(name)
        if not isinstance(said, list):
            return None
        if len(said) != layers:
            raise self._wrong(name, f"has {len(said)} entries for {layers} layers")
        return said

    def _windowed_layers(self, layers: int) -> int:
        """Layers that see a window of the sequence, where the configuration tells which; else 0."""
        config = self._config
        if not config.get("sliding_window") or config.get("use_sliding_window") is False:
            return 0
        kinds = config.get("layer_types")
        if isinstance(kinds, list):
            return sum("sliding" in str(kind) for kind in kinds[:layers])
        letters = config.get("sliding_window_pattern")
        if isinstance(letters, str) and letters and set(letters) <= {"L", "G"}:
            # EXAONE 4: local and global layers in turn.
            return sum(letters[layer % len(letters)] == "L" for layer in range(layers))
        pattern = self.count("sliding_window_pattern", "global_attn_every_n_layers") or _WINDOWED_ALL_BUT_EACH.get(
            self._type, 0
        )
        if pattern:
            # Every so manieth layer sees the whole sequence; 1: none does.
            return layers - layers // pattern if pattern > 1 else layers
        return 0

    def _left_out(self) -> list[str]:
        """What the configuration describes and the shape does not."""
        config, notes = self._config, []
        kinds = config.get("layer_types")
        windowed = isinstance(kinds, list) and any("chunked" in str(kind) for kind in kinds)
        window = config.get("sliding_window") or config.get("attention_chunk_size")
        counted = self._windowed_layers(self._needed(*_LAYERS)) or (isinstance(kinds, list) and not windowed)
        if window and not counted and config.get("use_sliding_window") is not False:
            notes.append(
                f"attention is counted over whole sequences; some of its layers see windows of {window} tokens"
            )
        if config.get("index_topk"):
            notes.append("attention is counted over whole sequences; the model's is sparse")
        if config.get("cross_attention_layers"):
            notes.append("layers of cross attention are counted as layers of the decoder")
        if not self._family.known:
            said = f"model_type {self._type!r} is not known" if self._type else "model_type is not stated"
            notes.append(f"{said}: taken for a decoder with gated feed-forwards")
        return notes
