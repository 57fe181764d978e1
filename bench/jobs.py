"""1,000 tiny jobs at once through the whole network: jobs per second, and the proof from the event log.

`python bench/jobs.py [--jobs 1000] [--json OUT]` starts the embedded network in a temporary directory, submits the jobs
in one request, waits for the last, and audits them against the event log and against the marks the programs left.
Baseline: the same commands started one after the other, and two at a time, without any control plane.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import result
from bench.event_log import Audit, read_and_audit
from meridian.client import Client
from meridian.embedded import stack


def tiny_job(marks: Path, index: int) -> dict[str, object]:
    """A job whose program leaves one line in a file of its own each time it runs."""
    return {
        "name": f"tiny-{index}",
        "kind": "task",
        "command": ["sh", "-c", f'echo "$MERIDIAN_RUN_ID" >> {marks}/job-{index}'],
        "working_dir": str(marks),
        "resources": {"cpus": 0.1, "memory_bytes": 16 << 20},
    }


def marks_left(marks: Path, count: int) -> list[str]:
    """Problems seen in the files that the programs wrote: missing ones, and ones written twice."""
    problems = []
    for index in range(count):
        path = marks / f"job-{index}"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if len(lines) != 1:
            problems.append(f"job-{index} ran {len(lines)} times: {lines}")
    return problems


def submit_and_wait(network: Client, marks: Path, count: int, timeout_s: float) -> list[str]:
    """Submit ``count`` tiny jobs in batches of up to 1,000 and wait until none is unfinished; returns their ids."""
    specs = [tiny_job(marks, index) for index in range(count)]
    ids = [job["job_id"] for start in range(0, count, 1000) for job in network.submit_many(specs[start : start + 1000])]
    wait_until_final(network, set(ids), timeout_s)
    return ids


def wait_until_final(network: Client, ids: set[str], timeout_s: float) -> None:
    """Wait until the gateway shows every job as final."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        waiting = {
            job["job_id"] for state in ("submitted", "queued", "running") for job in network.jobs(state=state)
        } & ids
        if not waiting:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(
                f"{len(waiting)} of {len(ids)} jobs are not final after {timeout_s:g} s, e.g. {sorted(waiting)[:3]}"
            )
        time.sleep(0.25)


def without_meridian(count: int, at_once: int) -> float:
    """Seconds that the same commands take when a plain program starts them, ``at_once`` at a time."""
    with tempfile.TemporaryDirectory() as folder:

        def run(index: int) -> None:
            subprocess.run(["sh", "-c", f"echo x >> {folder}/job-{index}"], check=True)

        started = time.monotonic()
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(run, range(count)))
        return time.monotonic() - started


def measure(count: int, timeout_s: float) -> tuple[Audit, list[str], float]:
    """Run the jobs on a fresh network; returns the audit, what is wrong with the marks, and the seconds until ready."""
    with tempfile.TemporaryDirectory(prefix="meridian-bench-") as folder:
        Path(folder).chmod(0o755)
        data_dir, marks = Path(folder) / "data", Path(folder) / "marks"
        marks.mkdir()
        started = time.monotonic()
        running = stack.start_detached(stack.StackOptions(data_dir))
        ready_s = time.monotonic() - started
        try:
            with Client.from_environment(data_dir) as network:
                while len(network.domains()) < 5:
                    time.sleep(0.1)
                ids = submit_and_wait(network, marks, count, timeout_s)
            audited = read_and_audit(running.urls["kafka"], ids)
            return audited, marks_left(marks, count), ready_s
        finally:
            stack.stop(data_dir)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    os.environ.pop("MERIDIAN_URL", None)
    audited, wrong_marks, ready_s = measure(chosen.jobs, chosen.timeout)
    serial_s, paired_s = without_meridian(chosen.jobs, 1), without_meridian(chosen.jobs, 2)
    everywhere = f"jobs={chosen.jobs}"
    rows = [
        result.Row("meridian", "jobs_per_s", chosen.jobs / audited.elapsed_s, slice=everywhere, n=chosen.jobs),
        result.Row("meridian", "time_until_ready_s", ready_s, slice=everywhere, n=1),
        result.Row("meridian", "jobs_succeeded", float(audited.succeeded), slice=everywhere, n=chosen.jobs),
        result.Row("meridian", "jobs_run_twice", float(audited.repeated_runs), slice=everywhere, n=chosen.jobs),
        result.Row(
            "plain processes, one at a time",
            "jobs_per_s",
            chosen.jobs / serial_s,
            slice=everywhere,
            n=chosen.jobs,
            baseline=True,
        ),
        result.Row(
            "plain processes, two at a time",
            "jobs_per_s",
            chosen.jobs / paired_s,
            slice=everywhere,
            n=chosen.jobs,
            baseline=True,
        ),
    ]
    result.print_table(rows)
    problems = [*audited.problems, *wrong_marks]
    for problem in problems[:20]:
        print(f"problem: {problem}", file=sys.stderr)
    if chosen.json:
        command = f"bench/jobs.py --jobs {chosen.jobs}"
        result.write(chosen.json, command=command, data=[], seed=0, setting="real", rows=rows)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
