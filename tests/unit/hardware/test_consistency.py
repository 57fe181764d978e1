"""Rules that specifications of chips keep among themselves, and that the catalogue says what was read elsewhere.

Sparse figures are twice the dense ones, rates of two directions twice those of one, and 16-bit accumulation is twice as fast as
32-bit on cards for games: such slips break a ratio, so ratios are what is checked.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from meridian.hardware import Chip, Fact, Tier, standard
from meridian.hardware.catalogue import FOLDER
from meridian.hardware.chip import QUANTITIES
from meridian.hardware.network import interconnects

PUBLISHED = Path(__file__).parent / "published_specs.csv"
BLACKWELL_ULTRA = {"b300-sxm", "gb300"}
"""Next to no 8-bit integer units."""
DENSE_SIXTEEN_BIT_OVER_SINGLE: Mapping[str, tuple[str, float]] = {
    "GeForce": (r"GeForce RTX [345]0\d\d", 2.0),
    "workstation and inference": (r"RTX (A\d000|\d000 Ada|PRO)|A2$|A10$|A16|A40|L2$|L4$|L40S", 4.0),
    "halved for graphics": (r"L20$|L40$", 2.0),
    "GA100": (r"A(100|800|30)( |$)", 16.0),
    "Turing with whole tensor cores": (r"TITAN RTX|Quadro RTX|Tesla T4", 8.0),
}
"""Tensor cores with 32-bit accumulation against vector units, per kind of chip: NVIDIA's whitepapers."""
TWO_OF_A_KIND = [
    ("br100", "br104"),
    ("mlu370-x8", "mlu370-x4"),
    ("atlas-300i-duo", "ascend-310p"),
    ("ascend-910c", "ascend-910b2"),
]
ALL_REDUCE = [("tpu-v3", 340e12, 1024), ("tpu-v4", 1.1e15, 4096), ("tpu-v5e", 51.2e12, 256), ("tpu-v6e", 102.4e12, 256)]
"""All-reduce bandwidth of a pod, byte/s, and its chips: Google Cloud's documentation of each generation."""


def _ratios(over: str, under: str) -> Iterator[tuple[Chip, float]]:
    """Of the values in use, where one source states both."""
    for chip in standard():
        top, bottom = chip.facts.get(f"peak_{over}"), chip.facts.get(f"peak_{under}")
        if top and bottom and top.statements[0].source == bottom.statements[0].source:
            yield chip, top.value / bottom.value


@pytest.mark.parametrize(
    ("over", "under", "most"), [("fp16", "tf32", 2), ("fp8", "fp16", 2), ("fp8", "bf16", 2), ("int8", "fp16", 4)]
)
def test_half_the_bits_are_at_most_twice_as_fast(over: str, under: str, most: float) -> None:
    """8-bit integers up to four times: cards for games halve the rate of 16 bits with 32-bit accumulation only."""
    found = list(_ratios(over, under))
    assert len(found) > 20
    assert [(chip.id, ratio) for chip, ratio in found if ratio > most * 1.03] == []


@pytest.mark.parametrize(
    ("over", "under", "exact"), [("fp16", "tf32", {2}), ("fp8", "fp16", {2}), ("int8", "fp16", {2, 4})]
)
def test_tensor_cores_double_exactly(over: str, under: str, exact: set[int]) -> None:
    found = [
        (chip, ratio)
        for chip, ratio in _ratios(over, under)
        if chip.vendor == "nvidia" and chip.id not in BLACKWELL_ULTRA
    ]
    assert len(found) > 15
    assert [(chip.id, ratio) for chip, ratio in found if min(abs(ratio / each - 1) for each in exact) > 0.03] == []


@pytest.mark.parametrize("kind", sorted(DENSE_SIXTEEN_BIT_OVER_SINGLE))
def test_no_sparse_figure_is_listed_as_dense(kind: str) -> None:
    pattern, expected = DENSE_SIXTEEN_BIT_OVER_SINGLE[kind]
    found = [
        (chip.name, ratio)
        for chip, ratio in _ratios("fp16", "fp32")
        if chip.vendor == "nvidia" and re.search(pattern, chip.name)
    ]
    assert len(found) > 1
    assert [(name, ratio) for name, ratio in found if abs(ratio / expected - 1) > 0.03] == []


@pytest.mark.parametrize(("whole", "half"), TWO_OF_A_KIND)
def test_a_package_of_two_is_twice_of_one(whole: str, half: str) -> None:
    two, one = standard().chip(whole), standard().chip(half)
    shared = [
        name for name in ("peak_fp16", "peak_int8", "memory_bandwidth") if name in two.facts and name in one.facts
    ]
    assert "memory_bandwidth" in shared
    for name in shared:
        times = two.facts[name].value / one.facts[name].value
        least = 1.0 if name.startswith("peak") and whole == "mlu370-x8" else 1.95
        assert least <= times <= 2.05, (name, times)


def test_nothing_measured_is_above_what_is_stated() -> None:
    def too_fast(fact: Fact) -> bool:
        stated = [each.value for each in fact.statements if each.tier is not Tier.MEASURED]
        reached = [each.value for each in fact.statements if each.tier is Tier.MEASURED]
        return bool(stated and reached) and max(reached) > max(stated)

    facts = [(chip.id, fact) for chip in standard() for fact in chip.facts.values()]
    assert [(chip_id, fact.name) for chip_id, fact in facts if too_fast(fact)] == []


def test_a_link_is_of_one_direction_and_no_chip_has_more_of_it_than_there_is() -> None:
    known = interconnects()
    for link in known.values():
        assert link.bytes_per_s == pytest.approx(link.per_link_bytes_per_s * link.links, rel=0.01), link.id
    for chip in standard():
        if chip.link and chip.link_bytes_per_s:
            assert chip.link_bytes_per_s <= known[chip.link].bytes_per_s * 1.001, chip.id


@pytest.mark.parametrize(("table", "column"), [("chips.csv", "link_gbps"), ("interconnects.csv", "total_gbps")])
def test_where_a_source_counts_both_directions_half_of_it_is_listed(table: str, column: str) -> None:
    with (FOLDER / table).open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    both = [(row, re.search(r"([\d.]+) (TB|GB|Gbit)/s both directions", row["source"])) for row in rows if row[column]]
    said = [(row, float(found[1]) * {"TB": 1000, "GB": 1, "Gbit": 1 / 8}[found[2]]) for row, found in both if found]
    assert len(said) > 4
    assert [
        (row["id"], row[column]) for row, rate in said if float(row[column]) * 2 != pytest.approx(rate, rel=0.01)
    ] == []


@pytest.mark.parametrize(("chip_id", "of_the_pod", "chips"), ALL_REDUCE)
def test_a_torus_reduces_as_fast_as_its_links_send(chip_id: str, of_the_pod: float, chips: int) -> None:
    assert standard().chip(chip_id).link_bytes_per_s == pytest.approx(of_the_pod / chips, rel=0.12)


def test_the_catalogue_says_what_was_read_in_published_tables() -> None:
    with PUBLISHED.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    missing, compared = [], 0
    for row in rows:
        chip = standard().chip(row["id"])
        for column, (name, _, factor) in QUANTITIES.items():
            if not row.get(column):
                continue
            compared += 1
            value = float(row[column]) * factor
            stated = chip.facts[name].statements if name in chip.facts else ()
            if not any(each.value == pytest.approx(value, rel=0.02) for each in stated):
                missing.append((row["id"], column, row[column], [each.value / factor for each in stated]))
    assert missing == []
    assert compared > 600
