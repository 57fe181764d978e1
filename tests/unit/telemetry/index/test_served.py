"""Entries of the index, their bands and evidence; scores for traffic steering."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from meridian.hardware import standard
from services.telemetry.index.cats import scores
from services.telemetry.index.matrix import Column
from services.telemetry.index.served import (
    REFERENCE,
    Basis,
    Measurement,
    Origin,
    ServedIndex,
    catalogue_measurements,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STEP = Column("meridian-probe/1", "transformer_step", "bf16", 1)


def measured(chip_id: str, throughput: float, column: Column = STEP) -> Measurement:
    return Measurement(chip_id, column, throughput, Origin.PROBE, "meridian probe", NOW)


def index(*measurements: Measurement) -> ServedIndex:
    return ServedIndex([*catalogue_measurements(standard()), *measurements], standard(), NOW)


def test_a_measured_chip_has_the_measured_ratio() -> None:
    entry = index().entry("h100-sxm5-80gb", "gemm", "bf16")
    assert entry is not None
    assert entry.basis is Basis.MEASURED
    assert entry.index == pytest.approx(794.5 / 271.2, rel=0.05)
    assert entry.low < 794.5 / 271.2 < entry.high
    assert entry.evidence[0].throughput == 794.5e12
    assert "stas00" in entry.evidence[0].source


def test_the_reference_is_one() -> None:
    entry = index().entry(REFERENCE, "transformer_step", "bf16")
    assert entry is not None
    assert (entry.index, entry.low, entry.high) == (1.0, 1.0, 1.0)


def test_the_basis_says_what_an_entry_rests_on_and_measuring_narrows_its_band() -> None:
    found = index(measured(REFERENCE, 1000.0), measured("rtx-4090", 700.0))
    chips = ("rtx-4090", "h100-sxm5-80gb", "rtx-3090")
    entries = [found.entry(chip_id, "transformer_step", "bf16") for chip_id in chips]
    assert [entry.basis for entry in entries if entry] == [Basis.MEASURED, Basis.PROBED, Basis.OTHERS]
    for chip_id, entry in zip(chips, entries, strict=True):
        more = index(measured(REFERENCE, 1000.0), measured("rtx-4090", 700.0), measured(chip_id, 800.0))
        narrower = more.entry(chip_id, "transformer_step", "bf16")
        assert entry is not None
        assert narrower is not None
        assert chip_id == "rtx-4090" or narrower.high / narrower.low < entry.high / entry.low


def test_a_probe_moves_the_index_and_the_version() -> None:
    before = index()
    after = index(measured(REFERENCE, 1000.0), measured("l40s", 2500.0))
    old, new = (each.entry("l40s", "transformer_step", "bf16") for each in (before, after))
    assert old is not None
    assert new is not None
    assert new.index == pytest.approx(2.5, rel=0.15)
    assert abs(new.index - 2.5) < abs(old.index - 2.5)
    assert before.version != after.version
    assert index(measured("l40s", 2500.0), measured(REFERENCE, 1000.0)).version == after.version, (
        "order does not matter"
    )


def test_without_any_measurement_facts_speak_with_a_wide_band() -> None:
    found = ServedIndex([], standard(), NOW)
    entry = found.entry("h100-sxm5-80gb", "gemm", "bf16")
    assert entry is not None
    assert entry.basis is Basis.FACTS
    assert entry.low < 1.5 < entry.high
    assert entry.high / entry.low > 2
    assert found.measurements == 0


def test_a_chip_without_facts_has_no_entry() -> None:
    assert index().entry("mlu270", "gemm", "bf16") is None
    with pytest.raises(KeyError):
        index().entry("no such chip", "gemm", "bf16")


def test_scores_by_hand() -> None:
    # ln(1 / (1/16)) / ln(4 / (1/16)) = 4/6; ln(300) / ln(1000) of 10.
    found = scores(1.0, 300e9)
    assert found.l1["computing"] == pytest.approx(10 * 4 / 6)
    assert found.l1["communication"] == pytest.approx(8.257, abs=1e-3)
    assert found.l2 == 7
    assert found.reading == "optional"
    assert found.normalisation == "log-min-max/1"


@pytest.mark.parametrize(
    ("value", "l2", "reading"), [(1e-9, 0, "avoid"), (0.25, 3, "avoid"), (2.0, 8, "prefer"), (1e9, 10, "prefer")]
)
def test_scores_are_held_and_read(value: float, l2: int, reading: str) -> None:
    found = scores(value, None)
    assert (found.l2, found.reading) == (l2, reading)
    assert "communication" not in found.l1


def test_nothing_known_is_no_score() -> None:
    assert scores(None, None).l2 is None


def test_a_fit_rests_on_the_newest_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.telemetry.index.served.MOST_CELLS", 2)
    found = ServedIndex(
        [measured("t4", 1.0), measured("l4", 2.0), measured("a10", 3.0), measured("l4", 2.2)], standard(), NOW
    )
    assert found.measurements == 3
    entry = found.entry("t4", "transformer_step", "bf16")
    assert entry is not None
    assert entry.evidence == ()
