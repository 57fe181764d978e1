"""EASY and conservative backfilling through the real core against the schedules that Batsim made of the same jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.external.simulation.backfill_fidelity import compare_starts, hosts_of
from tests.public_data import public_data

JOBS = 801
HOSTS = 32


@pytest.fixture(scope="module")
def data() -> Path:
    return public_data("batsim")


@pytest.mark.external
@pytest.mark.parametrize("discipline", ["easy", "conservative"])
def test_every_start_is_the_one_of_batsim(data: Path, discipline: str) -> None:
    path = data / f"{discipline}.csv"
    assert hosts_of(path) == HOSTS
    found = compare_starts(path, discipline)
    assert len(found) == JOBS
    assert [item for item in found if abs(item.difference_s) > 1e-3] == []


@pytest.mark.external
def test_the_two_schedules_differ_so_that_they_can_tell_the_disciplines_apart(data: Path) -> None:
    crossed = compare_starts(data / "easy.csv", "conservative")
    assert sum(abs(item.difference_s) > 1e-3 for item in crossed) > 20
