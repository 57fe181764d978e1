"""The machine: what a chip reaches, and the links between chips of a node and between nodes, from the catalogue.

A fact that nobody states is replaced by a stated default and reported in ``assumptions``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from meridian.errors import FieldError, InvalidArgumentError
from meridian.hardware import Catalogue, Chip, Tier, standard
from meridian.hardware.network import interconnects, topologies

# Share of the peak that matrix products reach at best where nobody measured it; the median of those measured.
REACHED_OF_PEAK = 0.80
_REACHED_BOUNDS = (0.4, 0.98)
_DEFAULT_FABRIC_BYTES_PER_S = 25e9
_DEFAULT_LINK_BYTES_PER_S = {"pcie": 25e9}
_DEFAULT_NODE = 8
_CLOUD = "aws"
_EIGHT_BIT = frozenset(("fp8", "fp4"))
_PEAKS = ("bf16", "fp16", "fp8", "tf32", "fp32")
# What may stand in for a precision without a stated peak, nearest first.
_INSTEAD = {
    "fp4": ("fp8", "bf16", "fp16"),
    "fp8": ("bf16", "fp16"),
    "bf16": ("fp16",),
    "fp16": ("bf16",),
    "tf32": ("fp32",),
    "fp32": (),
}
# Architectures of NVIDIA's chips for servers by the id of a chip, and their years; a chip with more memory, or for another
# market, may come years later (H200, A800).
AMPERE, HOPPER, BLACKWELL, BLACKWELL_ULTRA = 2020, 2022, 2024, 2025
_ARCHITECTURES = (
    (re.compile(r"a(100|800|30|40|10|16|2)\b"), AMPERE),
    (re.compile(r"g?h\d"), HOPPER),
    (re.compile(r"g?b[12]\d\d\b"), BLACKWELL),
    (re.compile(r"g?b3\d\d\b"), BLACKWELL_ULTRA),
)
# Units that work on tiles of a product side by side, for the rounding to whole waves; others have few large units.
_UNITS = {
    "nvidia": {2016: 56, 2017: 80, AMPERE: 108, HOPPER: 132, BLACKWELL: 148},
    "amd": {2021: 110, 2023: 304},
}


@dataclass(frozen=True, slots=True)
class Machine:
    """Chips and their links; rates per chip and direction, in bytes per second."""

    chip: str
    # Dense peak of matrix products by precision, FLOP/s.
    peak_flops: dict[str, float]
    # Share of the peak that a large product reaches at best.
    reached_of_peak: float
    memory_bytes: float
    memory_bytes_per_s: float
    units: int
    link_bytes_per_s: float
    fabric_bytes_per_s: float
    # Chips that share the fast link.
    node_size: int
    # Of the chip's architecture where that is known, else of the chip.
    year: int
    assumptions: tuple[str, ...] = ()
    # Lower case.
    vendor: str = ""
    # Share of the 8-bit peak that a large product reaches, where somebody measured it.
    reached_of_peak_8_bit: float | None = None
    # Watts that a chip may draw by design; None: nobody states it.
    design_power_w: float | None = None

    @property
    def compiled(self) -> bool:
        """Whether a step is one compiled program, so that the host starts no kernels (XLA on TPUs)."""
        return self.vendor == "google"

    def peak(self, precision: str) -> float:
        """Peak at ``precision``, or at the nearest that the chip has."""
        return self.peak_flops[self.multiplies_in(precision)]

    def multiplies_in(self, precision: str) -> str:
        """``precision``, or the nearest that the chip has a stated peak for; InvalidArgumentError when there is none."""
        for name in (precision, *_INSTEAD.get(precision, ())):
            if name in self.peak_flops:
                return name
        raise InvalidArgumentError(
            f"precision: {self.chip} has no stated peak for {precision}", errors=(FieldError("/precision", precision),)
        )

    def reached(self, precision: str) -> float:
        """Rate of large products at best."""
        measured = self.reached_of_peak_8_bit if precision in _EIGHT_BIT and "fp8" in self.peak_flops else None
        return self.peak(precision) * (measured or self.reached_of_peak)

    def with_power(self, watts: float) -> Machine:
        """This machine with chips held to a power: rates fall with its cube root below the design power.

        Power goes with frequency times voltage squared, and voltage with frequency (Mudge 2001, IEEE Computer 34(4)).
        """
        if self.design_power_w is None or watts >= self.design_power_w:
            return self
        slower = (watts / self.design_power_w) ** (1 / 3)
        return replace(self, peak_flops={name: value * slower for name, value in self.peak_flops.items()})

    def with_fabric(self, bytes_per_s: float) -> Machine:
        """This machine with another rate between nodes."""
        return replace(self, fabric_bytes_per_s=bytes_per_s)


class UnknownChipError(InvalidArgumentError):
    """The catalogue does not know the chip, or too little of it."""


def machine_of(name: str, catalogue: Catalogue | None = None) -> Machine:
    """The machine made of chips called ``name``, in the nodes that are usual for it; UnknownChipError names the chip."""
    known = catalogue or standard()
    found = known.resolve(name)
    candidates = found.candidates
    if found.chip_id is None and not candidates:
        detail = f"{name!r}: {found.reason}"
        raise UnknownChipError(f"accelerator: {detail}", errors=(FieldError("/accelerator", detail),))
    if candidates and found.chip_id is not None:
        usual = _usual_variant(candidates)
        if usual is not None:
            made = machine_of_chip(known.chip(usual), known)
            return replace(made, assumptions=(f"{name} states no variant: {usual} assumed", *made.assumptions))
    if found.chip_id is None:
        detail = f"{name!r}: {found.reason}; it may be {', '.join(candidates)}"
        raise UnknownChipError(f"accelerator: {detail}", errors=(FieldError("/accelerator", detail),))
    return machine_of_chip(known.chip(found.chip_id), known)


def _usual_variant(candidates: tuple[str, ...]) -> str | None:
    """Of variants, the one that nodes for training carry, the newest such node's; None when no node is known."""
    nodes = [t for t in topologies().values() if t.chip_id in candidates and t.nics_per_node is not None]
    own = [t for t in nodes if not t.id.startswith(_CLOUD)]
    return max(own or nodes, key=lambda t: (t.year, t.chip_id)).chip_id if nodes else None


def machine_of_chip(chip: Chip, catalogue: Catalogue) -> Machine:
    """The machine of a chip of the catalogue."""
    missing = [
        word
        for word, value in (
            ("a 16-bit peak", chip.peak_flops("bf16")),
            ("memory", chip.memory_bytes),
            ("memory bandwidth", chip.bandwidth_bytes_per_s),
        )
        if not value
    ]
    if missing:
        detail = f"{chip.id}: nobody states {', '.join(missing)}"
        raise UnknownChipError(f"accelerator: {detail}", errors=(FieldError("/accelerator", detail),))
    notes: list[str] = []
    peaks = {name: value for name in _PEAKS if (value := _stated_peak(chip, f"peak_{name}"))}
    same = _same_silicon(chip, catalogue)
    reached = _first_reached([chip, *same], catalogue, "peak_bf16", "peak_fp16")
    if reached is not None and _reached(chip, catalogue, "peak_bf16", "peak_fp16") is None:
        notes.append(
            f"share of the peak that is reached: {reached:.2f}, as measured on the same silicon in another form"
        )
    if reached is None:
        reached = REACHED_OF_PEAK
        notes.append(f"share of the peak that is reached: {REACHED_OF_PEAK}, nobody measured it")
    node = _node_of(chip)
    link = chip.link_bytes_per_s
    bridged = chip.form == "pcie" and chip.vendor.lower() == "nvidia" and chip.link.startswith("nvlink")
    if link is None or bridged:
        link = _DEFAULT_LINK_BYTES_PER_S.get(chip.form, 50e9)
        why = "bridges of NVLink join pairs of cards only: " if bridged else ""
        notes.append(f"{why}link within the node: {link / 1e9:g} GB/s assumed")
    if node is None:
        size, fabric = _DEFAULT_NODE, _DEFAULT_FABRIC_BYTES_PER_S
        notes.append(f"nodes of {size} chips with {fabric / 1e9:g} GB/s each between nodes assumed")
    else:
        size, fabric = node
    year = _architecture(chip) or chip.year or HOPPER
    return Machine(
        chip=chip.id,
        peak_flops=peaks,
        reached_of_peak=reached,
        memory_bytes=float(chip.memory_bytes or 0),
        memory_bytes_per_s=float(chip.bandwidth_bytes_per_s or 0),
        units=_units(chip.vendor, year),
        link_bytes_per_s=link,
        fabric_bytes_per_s=fabric,
        node_size=size,
        year=year,
        assumptions=tuple(notes),
        vendor=chip.vendor.lower(),
        reached_of_peak_8_bit=_first_reached([chip, *same], catalogue, "peak_fp8"),
        design_power_w=chip.facts["tdp"].value if "tdp" in chip.facts else None,
    )


def _architecture(chip: Chip) -> int | None:
    """Year of the chip's architecture, where its id tells. Workstations and games: at most that of Hopper, whose fast products
    for servers their later architectures lack."""
    if chip.vendor.lower() != "nvidia":
        return None
    found = next((year for pattern, year in _ARCHITECTURES if pattern.match(chip.id)), None)
    return found or (min(chip.year, HOPPER) if chip.year else None)


def _units(vendor: str, year: int) -> int:
    by_year = _UNITS.get(vendor.lower(), {})
    return next((units for since, units in sorted(by_year.items(), reverse=True) if year >= since), 1)


def _members(chip: Chip, catalogue: Catalogue) -> list[Chip]:
    return [catalogue.chip(member) for member in chip.members] or [chip]


def _stated_peak(chip: Chip, name: str) -> float | None:
    """Peak that somebody states; what was measured is no peak."""
    fact = chip.facts.get(name)
    if fact is None:
        return None
    return next((s.value for s in fact.statements if s.tier is not Tier.MEASURED), fact.value)


def _same_silicon(chip: Chip, catalogue: Catalogue) -> list[Chip]:
    """Chips that differ from ``chip`` in the processor beside them alone: NVIDIA's GB200 is B200 beside a Grace."""
    stem = chip.id.split("-", 1)[0].removeprefix("g")
    if chip.vendor.lower() != "nvidia" or not stem.startswith(("h", "b")):
        return []
    return [each for each in catalogue if each.id != chip.id and each.id.split("-", 1)[0].removeprefix("g") == stem]


def _first_reached(chips: list[Chip], catalogue: Catalogue, *peaks: str) -> float | None:
    """That of the first of ``chips`` that somebody measured."""
    return next((share for each in chips if (share := _reached(each, catalogue, *peaks)) is not None), None)


def _reached(chip: Chip, catalogue: Catalogue, *peaks: str) -> float | None:
    """Measured over stated peak, the best of the family's members."""
    shares = []
    for member in _members(chip, catalogue):
        for name in peaks:
            fact = member.facts.get(name)
            measured = [s.value for s in fact.statements if s.tier is Tier.MEASURED] if fact else []
            stated = _stated_peak(member, name)
            if measured and stated and stated > max(measured):
                shares.append(max(measured) / stated)
    if not shares:
        return None
    return min(max(*shares, _REACHED_BOUNDS[0]), _REACHED_BOUNDS[1])


def _node_of(chip: Chip) -> tuple[int, float] | None:
    """Chips that share the fast link, and the rate between such groups; None when no topology names the chip or one of its kind."""
    names = set(chip.members) | {chip.id}
    kinds = {_kind(name, chip.vendor) for name in names}
    found = [t for t in topologies().values() if t.chip_id in names]
    found += [t for t in topologies().values() if t not in found and _kind(t.chip_id, chip.vendor) in kinds]
    # Before what a cloud made of it, the node as its maker builds it.
    found.sort(key=lambda t: t.id.startswith(_CLOUD))
    if not found:
        return None
    node = found[0]
    links = interconnects()
    if node.fabric_id is None or not node.nics_per_node:
        # One fast network for all.
        rate = links[node.link_id].bytes_per_s if node.link_id in links else _DEFAULT_FABRIC_BYTES_PER_S
        return node.chips_per_node * node.nodes_in_scale_up, rate
    rate = links[node.fabric_id].bytes_per_s * node.nics_per_node / node.chips_per_node
    return node.chips_per_node * node.nodes_in_scale_up, rate


def _kind(chip_id: str, vendor: str) -> str:
    """The id without what does not change the node that the chip stands in: size and kind of the memory, bin of an Ascend.

    ``h100-sxm5-80gb`` and ``h100-sxm5-96gb``, ``ascend-910b1`` and ``ascend-910b3`` stand in nodes of one kind; ``tpu-v4`` and
    ``tpu-v6e`` do not.
    """
    if vendor.lower() == "huawei":
        return re.sub(r"(?<=[a-z])\d$", "", chip_id)
    return re.sub(r"(-\d+gb)?(-hbm\w+)?$", "", chip_id)
