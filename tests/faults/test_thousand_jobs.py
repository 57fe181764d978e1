"""1,000 jobs at once, with any one process killed -9 meanwhile: all finish, none is lost, none runs twice."""

from __future__ import annotations

import os
import threading
import time

import pytest

from bench.event_log import read_and_audit
from bench.jobs import marks_left, tiny_job, wait_until_final
from meridian.settings import SERVICES
from tests.network import PATIENCE_S, Network, network, seeded

JOBS = int(os.environ.get("MERIDIAN_FAULT_JOBS", "1000"))
SHORT = 150


def run_jobs(running: Network, count: int, victim: str | None) -> None:
    marks = running.folder
    killed: list[tuple[str, int]] = []

    def kill_soon() -> None:
        time.sleep(seeded(f"{victim}").uniform(0.1, 1.0 + count / 300))
        assert victim is not None
        killed.append((victim, running.kill(victim)))

    fault = threading.Thread(target=kill_soon) if victim else None
    if fault:
        fault.start()
    specs = [tiny_job(marks, index) for index in range(count)]
    ids = [job["job_id"] for job in running.client.submit_many(specs)]
    wait_until_final(running.client, set(ids), timeout_s=PATIENCE_S + count)
    if fault:
        fault.join()
        assert killed
        running.wait_until_back(*killed[0])
    audited = read_and_audit(running.state.urls["kafka"], ids)
    assert audited.problems == []
    assert audited.succeeded == count
    assert audited.repeated_because == []
    assert audited.repeated_runs == 0
    assert marks_left(marks, count) == []
    print(f"\n{count} jobs, killed {victim}: {count / audited.elapsed_s:.1f} jobs/s, {audited.elapsed_s:.1f} s")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("victim", [None, *SERVICES, "broker", "postgres", "valkey"])
def test_thousand_jobs_survive_the_death_of(victim: str | None) -> None:
    with network() as running:
        run_jobs(running, JOBS, victim)


@pytest.mark.timeout(1800)
def test_jobs_survive_the_death_of_each_part_in_turn() -> None:
    """The short version: one network, a batch of jobs for each part that is killed."""
    with network() as running:
        for victim in ("scheduler", "broker", "gateway"):
            for path in running.folder.iterdir():
                path.unlink()
            run_jobs(running, SHORT, victim)
