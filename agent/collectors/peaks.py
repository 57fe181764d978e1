"""The peak of an accelerator: as its domain declares it, else as the catalogue of chips states it for the model's name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from agent.collectors.device import Device, PeakOf
from meridian.hardware.catalogue import standard
from meridian.hardware.parts import compute_share

PRECISION = "bf16"
SAME_PEAK = 0.02
"""Variants of a chip whose peaks differ by no more have one peak."""
# Names of NVML for the SXM boards of chips that people call alike in all forms; it calls the others "NVIDIA H200 NVL", "NVIDIA H800 PCIe".
_AS_NVML_NAMES = {"NVIDIA H200": "NVIDIA H200 SXM", "NVIDIA H800": "NVIDIA H800 SXM"}


@cache
def catalogue_peak_flops(model: str) -> float | None:
    """Dense 16-bit peak (FLOP/s) of a model as an exporter names it; None: the name is not known, or means several chips."""
    if not model:
        return None
    found = standard().resolve(_AS_NVML_NAMES.get(model, model))
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
    """Peaks of a node's devices; ``declared`` by index, 0 where it is not. Of a part: its share of the chip's compute slices."""

    def peak_of(device: Device, model: str) -> float | None:
        whole = catalogue_peak_flops(model)
        if device.index is not None and device.index < len(declared) and declared[device.index] > 0:
            whole = declared[device.index]
        if not device.partition or whole is None:
            return whole
        share = compute_share(model, device.profile)
        return None if share is None else whole * share

    return peak_of
