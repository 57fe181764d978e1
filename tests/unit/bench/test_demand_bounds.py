"""What is known of the ends and of the queue makes a forecast exact where it is all there is to know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import demand_bounds
from bench.result import read, validate

HEADER = "start,duration_s,accelerators,user,submitted,domain"


def listed(path: Path, jobs: list[tuple[float, float, float, float]]) -> Path:
    """(submitted, start, length in seconds, accelerators) of each job as a list of jobs."""
    lines = [f"{start},{length},{size},u,{submitted},d" for submitted, start, length, size in jobs]
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def test_ends_are_all_there_is_to_know_while_nothing_comes(tmp_path: Path) -> None:
    # All start at once and end one after the other; the last job only makes the list long enough.
    jobs = [(0.0, 0.0, 3000.0 * (i + 1), 2.0) for i in range(20)] + [(0.0, 60_000.0, 600.0, 1.0)]
    actual, said = demand_bounds.bounds(demand_bounds.read(listed(tmp_path / "j.csv", jobs)), 600.0, 6)
    assert said["ends_known"] == pytest.approx(actual)
    assert said["queue_known"] == pytest.approx(actual)
    assert np.abs(said["level_stays"] - actual).sum() > 10
    assert np.abs(said["ends_known_best_line_in_hindsight"] - actual).max() < 0.1


def test_the_queue_tells_what_was_submitted_before(tmp_path: Path) -> None:
    # One job an hour, each submitted three hours before it starts; without that column's lead nothing of it is known.
    for lead_s, exact in ((10_800.0, True), (0.0, False)):
        jobs = [(3600.0 * i - lead_s, 3600.0 * i, 1500.0, 4.0) for i in range(48)]
        actual, said = demand_bounds.bounds(demand_bounds.read(listed(tmp_path / "j.csv", jobs)), 600.0, 6)
        assert (np.abs(said["queue_known"] - actual).max() < 1e-9) == exact
        assert said["hour_of_day_in_hindsight"].shape == actual.shape


def test_the_result_has_the_common_form(tmp_path: Path) -> None:
    path = listed(tmp_path / "j.csv", [(0.0, 600.0 * i, 1800.0, 1.0) for i in range(60)])
    assert demand_bounds.main([str(path), "--json", str(tmp_path / "o.json")]) == 0
    found = read(tmp_path / "o.json")
    validate(found)
    values = {(row["subject"], row["measure"]): row["value"] for row in found["rows"]}
    assert values["persistence", "skill_over_persistence_60m_ratio"] in (0.0, None)
    # Three at once, always: nothing changes, so there is nothing to compare.
    assert values["persistence", "wape_changed_to_persistence_60m_ratio"] is None
