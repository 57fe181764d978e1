"""The peak of an accelerator: as its domain declares it, else as the catalogue of chips states it for the model's name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from agent.collectors.translation import Device, PeakOf
from meridian.hardware.catalogue import standard

PRECISION = "bf16"
SAME_PEAK = 0.02
"""Variants of a chip whose peaks differ by no more have one peak."""


@cache
def catalogue_peak_flops(model: str) -> float | None:
    """Dense 16-bit peak (FLOP/s) of a model as an exporter names it; None: the name is not known, or means several chips."""
    if not model:
        return None
    found = standard().resolve(model)
    if found.chip_id is None:
        return None
    chip = standard().chip(found.chip_id)
    peaks = [standard().chip(member).peak_flops(PRECISION) for member in chip.members]
    if any(peak is None for peak in peaks):
        return None
    # The middle of chips that differ is the peak of none of them.
    known = [peak for peak in peaks if peak is not None]
    if known and max(known) > (1 + SAME_PEAK) * min(known):
        return None
    return chip.peak_flops(PRECISION)


def peak_source(declared: Sequence[float] = ()) -> PeakOf:
    """Peaks of a node's devices; ``declared`` by index, 0 where it is not."""

    def peak_of(device: Device, model: str) -> float | None:
        if device.partition:
            return None
        if device.index is not None and device.index < len(declared) and declared[device.index] > 0:
            return declared[device.index]
        return catalogue_peak_flops(model)

    return peak_of
