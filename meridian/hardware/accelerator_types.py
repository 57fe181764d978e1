"""Which accelerators a job means by the types that it names: one rule for who admits jobs and for who places them.

A type names a model when all its words (letters and digits, whatever their case) occur in vendor and model: "a100-80gb" means
"NVIDIA A100-SXM4-80GB". A part of a divided accelerator is meant by its profile only (`parts.is_asked_for`): "3g.40gb".
"""

from __future__ import annotations

from collections.abc import Sequence

from meridian.hardware.parts import MARK, is_asked_for, words


def is_part(model: str) -> bool:
    """Whether a model is that of a part that an accelerator was divided into."""
    return MARK in model


def is_meant(vendor: str, model: str, wanted: Sequence[str]) -> bool:
    """Whether one of the wanted types means this model; empty ``wanted`` means any whole accelerator. A type without letters
    and digits of ASCII means none."""
    full = f"{vendor} {model}"
    if is_part(model):
        return any(is_asked_for(name, full) for name in wanted)
    if not wanted:
        return True
    known = words(full)
    return any(named <= known for named in map(words, wanted) if named)


def suits(vendor: str, model: str, wanted: Sequence[str], accelerators: int) -> bool:
    """Whether ranks of so many ``accelerators`` of the wanted types may have such devices. A program sees one part at most (CUDA
    Programming Guide, CUDA_VISIBLE_DEVICES), so ranks of several get whole ones."""
    return is_meant(vendor, model, wanted) and not (accelerators > 1 and is_part(model))
