"""Names, numbers and sizes of parts of accelerators."""

from __future__ import annotations

import pytest

from meridian.hardware.parts import compute_share, is_asked_for, part_index, part_model, profile_of


@pytest.mark.parametrize(
    ("model", "profile", "share"),
    [
        ("NVIDIA H100 80GB HBM3", "1g.10gb", 1 / 7),
        ("H100-SXM5-80GB", "7g.80gb", 1.0),
        ("A100-SXM4-40GB", "1c.3g.20gb", 1 / 7),
        ("A100-SXM4-40GB", "1g.5gb+me", 1 / 7),
        ("A30", "2g.12gb", 1 / 2),
        ("NVIDIA B300 SXM6 AC", "1g.34gb", 1 / 7),
        ("A30", "7g.80gb", None),
        ("RTX PRO 6000", "1g.24gb", None),
        ("H100", "vf", None),
        ("H100", "", None),
    ],
)
def test_the_share_of_a_profile(model: str, profile: str, share: float | None) -> None:
    assert compute_share(model, profile) == (None if share is None else pytest.approx(share))


def test_numbers_of_parts_are_their_own() -> None:
    numbers = [part_index(accelerator, str(part)) for accelerator in range(31) for part in range(32)]
    assert min(numbers) == 32
    assert max(numbers) == 1023
    assert len(set(numbers)) == len(numbers)
    for accelerator, part in ((31, "0"), (0, "32"), (0, ""), (0, "x"), (0, "٣"), (-1, "1")):
        assert part_index(accelerator, part) == 0


def test_a_part_is_asked_for_by_its_profile() -> None:
    model = f"nvidia {part_model('H100-SXM5-80GB', '1g.10gb')}"
    assert profile_of(model) == "1g.10gb"
    assert all(is_asked_for(name, model) for name in ("1g.10gb", "H100 1g.10gb", "H100-SXM5-80GB part 1g.10gb"))
    assert not any(
        is_asked_for(name, model) for name in ("H100", "H100-SXM5-80GB", "10gb", "A100 1g.10gb", "2g.20gb", "")
    )
    assert profile_of("H100-SXM5-80GB") == ""
    assert is_asked_for("H100 part", part_model("H100", ""))
