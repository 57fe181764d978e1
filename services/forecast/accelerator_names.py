"""Whether a type that a job names means a model of the network, where only the model's name is known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from meridian.hardware import standard
from meridian.hardware.accelerator_types import is_meant


def means(types: Sequence[str], model: str) -> bool:
    """Whether one of ``types`` means ``model`` (`accelerator_types.is_meant`); the vendor is that of the catalogue."""
    return is_meant(_vendor_of(model), model, types)


@lru_cache(maxsize=1024)
def _vendor_of(model: str) -> str:
    catalogue = standard()
    found = catalogue.resolve(model)
    chips = [found.chip_id] if found.chip_id is not None else found.candidates
    vendors = {catalogue.chip(chip_id).vendor for chip_id in chips}
    return vendors.pop() if len(vendors) == 1 else ""
