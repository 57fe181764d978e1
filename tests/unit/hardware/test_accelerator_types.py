"""The words by which jobs name accelerators."""

from __future__ import annotations

import pytest

from meridian.hardware.accelerator_types import is_meant, suits

A100 = ("NVIDIA", "A100-SXM4-80GB")
PART = ("nvidia", "H100 part 3g.40gb")


@pytest.mark.parametrize(
    ("device", "wanted", "meant"),
    [
        (A100, (), True),
        (A100, ("a100-80gb",), True),
        (A100, ("910b", "nvidia"), True),
        (A100, ("h100",), False),
        (A100, ("a10",), False),
        (A100, ("A100-40GB",), False),
        # Without a word that could name a model.
        (A100, ("",), False),
        (A100, ("升腾", "--"), False),
        (PART, (), False),
        (PART, ("h100",), False),
        (PART, ("3g.40gb",), True),
        (PART, ("3G.40GB H100 nvidia",), True),
        (PART, ("1g.10gb",), False),
        (PART, ("3g.40gb A100",), False),
    ],
)
def test_a_type_names_a_model_by_its_words_and_a_part_by_its_profile(
    device: tuple[str, str], wanted: tuple[str, ...], meant: bool
) -> None:
    assert is_meant(*device, wanted) is meant
    assert suits(*device, wanted, 1) is meant


def test_ranks_of_several_accelerators_get_whole_ones() -> None:
    assert suits(*A100, ("a100",), 8)
    assert not suits(*PART, ("3g.40gb",), 2)
