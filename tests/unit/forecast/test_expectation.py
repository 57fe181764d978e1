"""What known jobs let expect of domains, tenants, models of accelerators and jobs."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from services.forecast import ledger
from services.forecast.expectation import Expectation, Expected
from services.forecast.ledger import Amount, Job, Placement, Subject, SubjectKind, Unit
from services.forecast.progress import Progress
from services.forecast.work_store import Arrived, AskingJob, Ended, Learned

NOW = 1_000_000.0
NORTH, SOUTH = (Subject(SubjectKind.DOMAIN, name) for name in ("north", "south"))
TENANT = Subject(SubjectKind.TENANT, "t")
CHIP = Subject(SubjectKind.CHIP, "a100")
NOTHING = Learned([], [], (0, 0))
HORIZONS = [600.0, 3600.0]


def job_of(name: str) -> Subject:
    return Subject(SubjectKind.JOB, name)


def waiting(name: str, accelerators: float, **fields: object) -> AskingJob:
    unit = Unit(0, Amount(accelerators), **fields)  # type: ignore[arg-type]
    return AskingJob(ledger.submit(Job(name), "t", [unit]), None, {})


def running(name: str, accelerators: float, since_s: float, progress: Progress | None = None) -> AskingJob:
    given = Placement({"north": accelerators}, {"north": 1}, {"north": {"a100": accelerators}}, NOW - since_s)
    job = ledger.place(waiting(name, accelerators).job, "t", 0, 1, given)
    return AskingJob(job, b"spec", {} if progress is None else {0: progress})


def steps_left(seconds: float) -> Progress:
    """A step per second, reported a minute ago."""
    run = Progress(NOW - 660, 0, 660 + seconds)
    for minute in range(1, 11):
        run = run.reported(NOW - 660 + 60 * minute, 60 * minute + 60 * (minute == 10), 660 + seconds)
    return run.reported(NOW, 660, 660 + seconds)


def expect(jobs: list[AskingJob], subjects: list[Subject], learned: Learned = NOTHING, **capacity: float) -> Expected:
    expectation = Expectation(lambda _spec, _chip: None)
    expectation.learn(learned, NOW)
    return expectation.expect(jobs, subjects, capacity, HORIZONS, 60.0, NOW)


def test_a_network_without_jobs_expects_nothing() -> None:
    found = expect([], [NORTH, TENANT])
    for part in (found.middle, found.low, found.high, found.spread):
        np.testing.assert_array_equal(part, np.zeros((2, 2)))


def test_a_run_with_steps_counts_until_they_are_done_for_all_that_it_counts_for() -> None:
    jobs = [running("a", 8, 660, steps_left(1200))]
    found = expect(jobs, [NORTH, SOUTH, TENANT, CHIP, job_of("a")])
    assert found.middle.tolist() == [[8, 0, 8, 8, 8], [0, 0, 0, 0, 0]]
    # Sure either way, so the band has no width.
    np.testing.assert_array_equal(found.low[0], found.middle[0])
    np.testing.assert_array_equal(found.high[1], found.middle[1])


def test_many_runs_give_a_mean_with_a_band() -> None:
    # Half of those that have lasted an hour last an hour more: nothing was learned, so h / (h + 1 h + 1 h) end.
    jobs = [running(f"j{number}", 1, 3600) for number in range(200)]
    found = expect(jobs, [NORTH])
    kept = 200 * 7200 / (7200 + 3600 - 30)
    assert found.middle[1, 0] == pytest.approx(kept, rel=0.05)
    deviation = (kept * (1 - kept / 200)) ** 0.5
    assert found.spread[1, 0] == pytest.approx(deviation, rel=0.05)
    assert found.high[1, 0] - found.low[1, 0] == pytest.approx(2 * 1.2816 * deviation, rel=0.05)


def test_what_users_did_before_tells_how_long_they_run() -> None:
    at = datetime.fromtimestamp(NOW, UTC)
    short = Learned([Ended("t", 8, 300.0, by_itself=True, at=at)] * 40, [], (40, 0))
    jobs = [running("a", 8, 60)]
    assert expect(jobs, [NORTH], short).middle[:, 0].tolist() == [0, 0]
    # Runs that were taken off say only that they lasted so long.
    taken = Learned([Ended("t", 8, 300.0, by_itself=False, at=at)] * 40, [], (40, 0))
    assert expect(jobs, [NORTH], taken).middle[0, 0] == 8


def test_a_predicted_run_time_speaks_where_no_steps_are_reported() -> None:
    asked = []

    def predict(spec: bytes, chip: str) -> tuple[float, float]:
        asked.append((spec, chip))
        return 5000.0, 0.1

    expectation = Expectation(predict)
    for since_s, middle in ((100.0, [8, 8]), (3000.0, [8, 0])):
        found = expectation.expect([running("a", 8, since_s)], [NORTH], {}, HORIZONS, 60.0, NOW)
        assert found.middle[:, 0].tolist() == middle
    assert asked == [(b"spec", "a100")]
    expectation.forget([])
    expectation.expect([running("a", 8, 100.0)], [NORTH], {}, HORIZONS, 60.0, NOW)
    assert len(asked) == 2


def test_a_time_limit_ends_a_run_for_sure() -> None:
    item = running("a", 8, 3000)
    unit = item.job.units[0]
    limited = AskingJob(
        ledger.Job("a", "t", True, False, {0: ledger.replace(unit, limit_s=3300.0)}), None, {0: steps_left(1e6)}
    )
    assert expect([limited], [NORTH]).high[:, 0].tolist() == [0, 0]


def test_waiting_work_counts_for_its_tenant_and_where_it_must_run() -> None:
    jobs = [waiting("a", 8, only_domain="north", only_chip="a100"), waiting("b", 4)]
    found = expect(jobs, [NORTH, SOUTH, TENANT, CHIP, job_of("a"), job_of("b")], north=0.0)
    # Nothing is free and nothing will be: it asks on.
    assert found.middle[1].tolist() == [8, 0, 12, 8, 8, 4]


def test_work_that_starts_when_room_is_expected_ends_later() -> None:
    at = datetime.fromtimestamp(NOW, UTC)
    short = Learned([Ended("t", 8, 300.0, by_itself=True, at=at)] * 40, [], (40, 0))
    queue = [waiting("b", 8, only_domain="north")]
    # Room at once: it runs for 300 s. Behind a run with half an hour left: it still asks at the first horizon.
    assert expect(queue, [job_of("b")], short, north=8.0).middle[:, 0].tolist() == [0, 0]
    behind = [running("a", 8, 660, steps_left(1800)), *queue]
    found = expect(behind, [job_of("a"), job_of("b")], short, north=8.0)
    assert found.middle.tolist() == [[8, 8], [0, 0]]


def test_a_unit_that_waits_for_another_asks_for_nothing_yet() -> None:
    units = [Unit(0, Amount(2)), Unit(1, Amount(4), depends_on=(0,))]
    item = AskingJob(ledger.submit(Job("w"), "t", units), None, {})
    assert expect([item], [TENANT], north=0.0).middle[:, 0].tolist() == [2, 2]


def test_arrivals_are_expected_at_their_rate() -> None:
    # A job of 4 that lasts for ever comes every 10 minutes to north, for ten days.
    stamps = [datetime.fromtimestamp(NOW - 600.0 * number, UTC) for number in range(1440)]
    learned = Learned(
        [Ended("t", 4, 9e5, by_itself=False, at=stamps[0])] * 50,
        [Arrived(NORTH, "t", 4.0, at) for at in stamps],
        (50, 1440),
    )
    found = expect([], [NORTH, SOUTH], learned)
    assert found.middle[1, 0] == pytest.approx(24, rel=0.15)
    assert found.middle[1, 1] == 0
    assert found.low[1, 0] < 20 < 28 < found.high[1, 0]
