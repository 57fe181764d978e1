"""Recorded jobs as the table that `meridian evaluate demand` replays: `python bench/job_lists.py SOURCE OUT [--days N]`.

SOURCE is a log in the Standard Workload Format (.swf: one processor is one accelerator) or a list of pods of the openb cluster
(.csv: those that ask for GPUs, a share of one by its thousandths; the user is their class of service). Jobs without a start,
a length or a size are left out. The column ``submitted`` is not read by it, but by `demand_bounds.py`. ``--days`` keeps the last days of starts.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# Start and length in seconds, size, user, submission.
Job = tuple[float, float, float, str, float]
_DAY_S = 86_400.0
# Fields of the Standard Workload Format, from 0: submission, wait, run time, processors allocated, user.
_SUBMITTED, _WAIT, _RUN, _PROCESSORS, _USER, _FIELDS = 1, 2, 3, 4, 11, 18


def of_swf(path: Path) -> Iterator[Job]:
    """Start and length in seconds, processors, user."""
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            fields = line.split()
            if line.startswith(";") or len(fields) < _FIELDS:
                continue
            start_s = float(fields[_SUBMITTED]) + max(0.0, float(fields[_WAIT]))
            yield (
                start_s,
                float(fields[_RUN]),
                float(fields[_PROCESSORS]),
                f"u{fields[_USER]}",
                float(fields[_SUBMITTED]),
            )


def of_openb(path: Path) -> Iterator[Job]:
    """Start and length in seconds, GPUs, class of service."""
    with path.open(encoding="utf-8", newline="") as stream:
        for pod in csv.DictReader(stream):
            if pod["scheduled_time"] and pod["deletion_time"] and int(pod["num_gpu"] or 0):
                start_s, end_s = float(pod["scheduled_time"]), float(pod["deletion_time"])
                size = int(pod["num_gpu"]) * float(pod["gpu_milli"] or 1000) / 1000
                yield start_s, end_s - start_s, size, pod["qos"], float(pod["creation_time"] or start_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--days", type=float, default=float("inf"), help="of starts, the last ones")
    options = parser.parse_args(arguments)
    read = of_swf if options.source.suffix == ".swf" else of_openb
    jobs = [job for job in read(options.source) if job[1] > 0 and job[2] > 0]
    first_s = max((job[0] for job in jobs), default=0.0) - options.days * _DAY_S
    with options.out.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(("start", "duration_s", "accelerators", "user", "submitted", "domain"))
        table.writerows((*job, options.source.stem) for job in jobs if job[0] > first_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
