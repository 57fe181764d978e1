"""The schedule of a simulation as CSV: every job, for whoever wants to check what a report says."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from simulation.experiment import Experiment, Run

SCHEDULE_COLUMNS = (
    *(
        "policy",
        "seed",
        "job_id",
        "state",
        "tenant",
        "home_domain",
        "domains",
        "nodes",
        "ranks",
        "accelerators",
        "cpus",
    ),
    *("submit_s", "first_start_s", "finish_s", "jct_s", "wait_s", "ran_s", "duration_s", "slowdown"),
    *("interruptions", "lost_s", "overhead_s", "deadline_s", "rho"),
)


def schedule_csv(experiment: Experiment, runs: Sequence[Run]) -> str:
    """Every job under every policy and seed, by submission (docs/simulating.md says what the columns mean)."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(SCHEDULE_COLUMNS)
    traces = {seed: experiment.trace_of(seed) for seed in experiment.seeds}
    for run in runs:
        measures = run.measures
        finished = {job.job_id: job for job in measures.jobs}
        for job in traces[run.seed].jobs:
            record = finished.get(job.job_id)
            domains, nodes, started_s = measures.placed.get(job.job_id, ((), (), math.nan))
            state = "finished" if record else "unfinished" if job.submit_s <= measures.now_s else "not submitted"
            after = (
                (record.finish_s, record.jct_s, record.wait_s, record.ran_s, job.duration_s, record.slowdown)
                if record
                else (math.nan, math.nan, math.nan, math.nan, job.duration_s, math.nan)
            )
            counted = (
                (record.interruptions, record.lost_s, record.overhead_s, job.deadline_s, record.rho)
                if record
                else ("", math.nan, math.nan, job.deadline_s, math.nan)
            )
            cells = (
                *(run.setting.name, run.seed, job.job_id, state, job.tenant, job.home_domain),
                *(
                    "|".join(domains),
                    "|".join(nodes),
                    job.ranks,
                    job.devices,
                    job.ranks * job.cpus,
                    job.submit_s,
                    started_s,
                ),
                *after,
                *counted,
            )
            writer.writerow(["" if isinstance(cell, float) and math.isnan(cell) else cell for cell in cells])
    return out.getvalue()
