"""Accelerators as exporters name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator as an exporter names it; the node as a whole has neither index nor name.

    ``node``: the node's name where an exporter speaks for many. ``partition``: a part of the accelerator.
    ``profile`` names its size and tells no devices apart.
    """

    index: int | None = None
    name: str = ""
    partition: str = ""
    node: str = ""
    profile: str = field(default="", compare=False)


PeakOf = Callable[[Device, str], float | None]
"""Peak of a device (FLOP/s, dense, 16 bit) by the device and the model that the exporter names; None: not known."""
