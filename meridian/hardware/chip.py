"""A chip and the quantities that its facts give, in SI units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meridian.hardware.facts import Fact

TERA, GIGA, GIBI = 1e12, 1e9, 2.0**30

# Column of the table -> (name, unit, factor to that unit). Memory is sold in GiB and written GB.
QUANTITIES: Mapping[str, tuple[str, str, float]] = {
    "fp64_tflops": ("peak_fp64", "FLOP/s", TERA),
    "fp32_tflops": ("peak_fp32", "FLOP/s", TERA),
    "tf32_tflops": ("peak_tf32", "FLOP/s", TERA),
    "bf16_tflops": ("peak_bf16", "FLOP/s", TERA),
    "fp16_tflops": ("peak_fp16", "FLOP/s", TERA),
    "fp8_tflops": ("peak_fp8", "FLOP/s", TERA),
    "fp4_tflops": ("peak_fp4", "FLOP/s", TERA),
    "int8_tops": ("peak_int8", "OP/s", TERA),
    "int4_tops": ("peak_int4", "OP/s", TERA),
    "mem_gb": ("memory", "By", GIBI),
    "mem_gbps": ("memory_bandwidth", "By/s", GIGA),
    "link_gbps": ("link_bandwidth", "By/s", GIGA),
    "tdp_w": ("tdp", "W", 1.0),
}
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8", "int4")
"""Precisions a peak is stated for. Peaks are dense, matrix units included, 16-bit and lower accumulating in 32 bits."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One accelerator as software counts it: a K80 is one of the board's two GPUs, a MI250X one of its modules.

    ``link_bandwidth`` is per direction, over all links of the chip. ``members`` is empty but for a family: a name that
    states no variant ("A100"); its facts lie between those of its members.
    """

    id: str
    vendor: str
    name: str
    year: int | None
    form: str
    link: str
    facts: Mapping[str, Fact] = field(repr=False)
    members: tuple[str, ...] = ()
    members_memory_bytes: tuple[float, ...] = ()

    def value(self, name: str) -> float | None:
        """The value in use of the fact ``name``; None when nobody states it."""
        fact = self.facts.get(name)
        return None if fact is None else fact.value

    def peak_flops(self, precision: str) -> float | None:
        """Dense peak at ``precision`` (one of ``PRECISIONS``), FLOP/s; 16-bit formats stand in for each other."""
        found = self.value(f"peak_{precision}")
        if found is None and precision in {"fp16", "bf16"}:
            found = self.value("peak_bf16" if precision == "fp16" else "peak_fp16")
        return found

    @property
    def memory_bytes(self) -> float | None:
        """Memory of the chip; of a family it lies between those of its members, and may be that of none."""
        return self.value("memory")

    @property
    def least_memory_bytes(self) -> float | None:
        """What fits into this memory fits on the chip, whichever member of a family it is."""
        return min(self.members_memory_bytes, default=None) if self.members else self.memory_bytes

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Peak bandwidth of the chip's memory."""
        return self.value("memory_bandwidth")

    @property
    def link_bytes_per_s(self) -> float | None:
        """Bandwidth to other chips of the node, per direction."""
        return self.value("link_bandwidth")

    @property
    def tdp_watts(self) -> float | None:
        """Thermal design power."""
        return self.value("tdp")
