"""Facts with evidence and disagreement; tables that others bring."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from meridian.hardware import Fact, InvalidCatalogueError, Statement, Tier, standard
from meridian.hardware.catalogue import FOLDER
from meridian.hardware.names import canonical
from meridian.hardware.network import interconnects, topologies

HEAD = "id,vendor,name,year,fp16_tflops,mem_gb,mem_gbps,evidence_tier,source\n"


def test_the_facts_of_a_chip_are_those_of_its_datasheet() -> None:
    chip = standard().chip("a100-sxm4-80gb")
    assert chip.peak_flops("fp16") == 312e12
    assert chip.peak_flops("tf32") == 156e12
    assert chip.peak_flops("fp8") is None
    assert chip.memory_bytes == 80 * 2**30
    assert chip.bandwidth_bytes_per_s == 2039e9
    assert chip.link_bytes_per_s == 300e9, "600 GB/s of NVLink are of both directions"
    assert chip.tdp_watts == 400


def test_the_best_evidence_is_used_and_the_rest_is_shown() -> None:
    fact = standard().chip("br100").facts["peak_bf16"]
    assert fact.value == 1024e12
    assert fact.tier is Tier.OFFICIAL
    assert [statement.tier for statement in fact.statements] == [Tier.OFFICIAL, Tier.ESTIMATED, Tier.ESTIMATED]
    assert fact.disagreement == 4.0
    assert fact.why == "official goes before estimated"


def test_within_a_tier_the_first_statement_is_used() -> None:
    statements = [
        Statement(2.0, Tier.ESTIMATED, "a"),
        Statement(3.0, Tier.ESTIMATED, "b"),
        Statement(1.0, Tier.MEASURED, "c"),
    ]
    fact = Fact.of("peak", "FLOP/s", statements)
    assert [statement.source for statement in fact.statements] == ["c", "a", "b"]
    assert fact.disagreement == 3.0
    assert Fact.of("peak", "FLOP/s", statements[:2]).why == "listed first among estimated statements"


def test_a_part_with_another_memory_is_a_chip_of_its_own() -> None:
    """Published of the operator's H100: 96 GB of HBM2e, 2.4 TB/s, 500 W; its peak is between SXM and NVL."""
    catalogue = standard()
    chip, sxm, nvl = (catalogue.chip(name) for name in ("h100-sxm5-96gb-hbm2e", "h100-sxm5-80gb", "h100-nvl"))
    assert (chip.memory_bytes, chip.bandwidth_bytes_per_s, chip.tdp_watts) == (96 * 2**30, 2400e9, 500)
    peaks = [each.peak_flops("bf16") or 0.0 for each in (nvl, chip, sxm)]
    assert peaks == sorted(peaks)
    assert chip.facts["peak_bf16"].tier is Tier.ESTIMATED
    assert chip.id not in catalogue.resolve("H100").candidates


def test_sixteen_bit_formats_stand_in_for_each_other() -> None:
    assert standard().chip("v100-sxm2-16gb").peak_flops("bf16") == 125e12
    assert standard().chip("tpu-v4").peak_flops("fp16") == 275e12


def test_every_fact_names_its_source_and_every_chip_has_a_year() -> None:
    for chip in standard():
        assert chip.year is not None
        assert chip.vendor
        for fact in chip.facts.values():
            assert all(statement.source for statement in fact.statements)
            assert fact.value > 0


def test_peaks_fall_with_precision() -> None:
    for chip in standard():
        half, single = chip.peak_flops("fp16"), chip.peak_flops("fp32")
        if half and single:
            assert half >= single, chip.id


def test_a_family_lies_between_its_members() -> None:
    family = standard().chip("a100-any")
    assert family.members == ("a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm4-40gb", "a100-sxm4-80gb")
    assert family.peak_flops("fp16") == pytest.approx(312e12)
    assert family.facts["peak_fp16"].tier is Tier.OFFICIAL
    bandwidth = family.facts["memory_bandwidth"]
    assert bandwidth.value == pytest.approx((1555e9 * 2039e9) ** 0.5)
    assert bandwidth.tier is Tier.ESTIMATED


def test_what_may_be_the_same_chip() -> None:
    catalogue = standard()
    of_variant = catalogue.possible_ids("a100-sxm4-80gb")
    assert {"a100-sxm4-80gb", "a100-any", "a10080gb-any", "a100sxm-any"} <= of_variant
    assert "a100-pcie-80gb" not in of_variant
    assert set(catalogue.chip("a100-any").members) <= catalogue.possible_ids("a100-any")


def test_links_and_topologies_refer_to_what_there_is() -> None:
    known, chips = interconnects(), standard()
    for chip in chips:
        assert not chip.link or chip.link in known, chip.id
    for shape in topologies().values():
        assert shape.chip_id in chips
        assert shape.link_id in known
        assert shape.fabric_id is None or shape.fabric_id in known
    assert known["nvlink4"].bytes_per_s == known["nvlink4"].per_link_bytes_per_s * known["nvlink4"].links
    assert topologies()["dgx-h100"].chips_per_node == 8


def test_no_alias_has_two_meanings() -> None:
    with (FOLDER / "aliases.csv").open(encoding="utf-8", newline="") as stream:
        rows = [(row["alias"], tuple(row["ids"].split())) for row in csv.DictReader(stream)]
    chips: dict[str, set[tuple[str, ...]]] = {}
    for alias, ids in rows:
        chips.setdefault(canonical(alias), set()).add(ids)
    assert {alias: ids for alias, ids in chips.items() if len(ids) > 1} == {}


def test_a_table_adds_chips(tmp_path: Path) -> None:
    path = tmp_path / "specs.csv"
    path.write_text(
        HEAD + "x1,acme,Acme X1,2026,400,96,3000,official,datasheet\nx1,acme,Acme X1,,300,,,estimated,blog\n"
    )
    catalogue = standard().with_chips(path)
    for name in ("x1", "Acme X1", "acme-x1", "2x Acme X1"):
        assert catalogue.resolve(name).chip_id == "x1"
    assert catalogue.chip("x1").facts["peak_fp16"].disagreement == pytest.approx(4 / 3)
    assert "x1" not in standard()


def test_published_tables_of_specifications_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "specs.csv"
    path.write_text(
        "db,name,fp16_tflops,mem_gb,mem_gbps,scaleup_gbps,tdp_w,evidence_tier\nllm,Acme X1,400,96,3000,600,,\n"
    )
    chip = standard().with_chips(path).chip("acmex1")
    assert chip.link_bytes_per_s == 300e9, "such tables count both directions"
    assert chip.facts["peak_fp16"].tier is Tier.ESTIMATED


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (HEAD + "x1,acme,X1,2026,many,96,3000,official,s\n", "specs.csv, line 2, fp16_tflops: 'many'"),
        (HEAD + "x1,acme,X1,2026,400,-96,3000,official,s\n", "line 2, mem_gb"),
        (HEAD + "x1,acme,X1,2026,400,96,nan,official,s\n", "line 2, mem_gbps"),
        (HEAD + "x1,acme,X1,2026,400,96,3000,hearsay,s\n", "line 2, evidence_tier: 'hearsay'"),
        ("vendor,year\nacme,2026\n", "line 1: needs a column id or name"),
        ("id,name\nx1,X1\n\n\nx2,X2\n,\n", "line 6, id: is empty"),
        ("id,name\nx1,X1\nx2,X2\nx3,\xff\n", "line 4: is no UTF-8 text"),
        ("id,name\nx1,X1\n\nx2," + "x" * 140_000 + "\n", "line 4: field larger than field limit"),
    ],
)
def test_a_bad_table_is_refused_with_line_and_column(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "specs.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidCatalogueError, match=complaint.replace("(", r"\(")):
        standard().with_chips(path)
