"""Shapes of well-known models by name."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

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
    "predicting_layers",
    "windowed_layers",
    "window",
]
# What training a model differently, or storing it in another form, appends to its name. Of versions only those before the
# first: DeepSeek-V2 and DeepSeek-V3 are two models.
_SAME_MODEL = re.compile(r"[-_ ](hf|base|instruct|chat|it|pt|v0(\.\d+)?)$")

# Share of letters in common from which on a name is offered for another (`difflib`).
_ALIKE = 0.75


class UnknownModelError(InvalidArgumentError):
    """No model of this name is known."""


def _key(name: str) -> str:
    # Without the owner of a repository, and without what training a model differently does not change.
    text = name.strip().lower().rsplit("/", 1)[-1]
    while (shorter := _SAME_MODEL.sub("", text)) != text:
        text = shorter
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


@lru_cache(256)
def names_like(name: str) -> tuple[str, ...]:
    """Names of known models that are spelt alike, the nearest first; at most three."""
    with _FILE.open(encoding="utf-8", newline="") as stream:
        names = {_key(row["name"]): row["name"] for row in csv.DictReader(stream)}
    return tuple(names[key] for key in difflib.get_close_matches(_key(name), names, cutoff=_ALIKE))


def model_named(name: str) -> ModelShape:
    """The shape of the model ``name``; UnknownModelError when the catalogue does not have it, with names that are spelt alike."""
    shape = known_models().get(_key(name))
    if shape is None:
        like = names_like(name)
        detail = f"{name!r} is not in the catalogue of models" + (f"; it has {', '.join(like)}" if like else "")
        raise UnknownModelError(f"model: {detail}", errors=(FieldError("/model", detail),))
    return shape
