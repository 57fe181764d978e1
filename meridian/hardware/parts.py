"""Parts that an accelerator is divided into by its maker's partitioning, as devices of their own: their names and sizes.

A part is a device of the model ``MODEL part PROFILE``. Its accelerator is none while it is divided, so nothing counts twice.
Work is given a part only when it asks for one by its profile: a program that wants "an H100" does not fit a seventh of one.
"""

from __future__ import annotations

import re

MARK = " part "
UNNAMED = "part"
MAX_PARTS = 32
"""Of one accelerator: their numbers on a node follow those of whole accelerators, 32 for each."""
MAX_INDEX = 1023
_PROFILE = re.compile(r"(?:([1-9])c\.)?([1-9])g\.")
# Compute slices of the whole chip; NVIDIA, "MIG User Guide", supported profiles. Of other chips the share is not known.
_SLICES = {
    "a30": 4, "a100": 7, "a800": 7, "h20": 7, "h100": 7, "h200": 7, "h800": 7, "gh200": 7, "b100": 7, "b200": 7,
    "gb200": 7, "b300": 7, "gb300": 7,
}  # fmt: skip


def words(text: str) -> frozenset[str]:
    """The words of a name, as names are compared."""
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))


def part_model(model: str, profile: str) -> str:
    """The model of a part: that of its accelerator with its profile."""
    return f"{model}{MARK}{profile or UNNAMED}"


def profile_of(model: str) -> str:
    """The profile in a part's model; empty for a whole accelerator."""
    return model.partition(MARK)[2]


def is_asked_for(wanted: str, model: str) -> bool:
    """Whether a job that wants this type means a part of that model: it names the profile, and nothing that is not in it."""
    asked = words(wanted)
    return words(profile_of(model)) <= asked <= words(model)


def part_index(accelerator: int, part_id: str) -> int:
    """The number of a part on its node, the same as long as its maker numbers it so; 0: it cannot have one."""
    if not (part_id.isascii() and part_id.isdigit() and int(part_id) < MAX_PARTS and accelerator >= 0):
        return 0
    index = MAX_PARTS * (accelerator + 1) + int(part_id)
    return index if index <= MAX_INDEX else 0


def compute_share(model: str, profile: str) -> float | None:
    """The share of the chip's compute that a profile has (``1g.10gb`` of an H100: 1/7); None: not known."""
    found = _PROFILE.match(profile)
    slices = next((_SLICES[name] for name in sorted(words(model)) if name in _SLICES), None)
    if found is None or slices is None:
        return None
    share = int(found[1] or found[2]) / slices
    return share if share <= 1 else None
