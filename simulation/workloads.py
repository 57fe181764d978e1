"""What traces do not say, drawn from a seed and stated: where jobs' input data lies and how much it is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from meridian.errors import InvalidArgumentError
from simulation.model import Network, Trace


def with_data(
    trace: Trace,
    network: Network,
    *,
    seed: int,
    median_bytes: float = 50e9,
    sigma: float = 1.5,
    share: float = 1.0,
) -> Trace:
    """Gives jobs an input that lies in their home domain (jobs without one: any domain, evenly).

    Sizes are log-normal with this median (bytes) and ``sigma`` (of the natural logarithm; 1.5 spreads 80 % over a factor of
    47); ``share`` of the jobs have input. The draw depends on the seed and the number of jobs alone.
    """
    if not (median_bytes > 0 and math.isfinite(median_bytes)):
        raise InvalidArgumentError(f"median_bytes: must be above 0, not {median_bytes}")
    if not (0 <= share <= 1 and 0 <= sigma < math.inf):
        raise InvalidArgumentError("share must be in 0-1 and sigma at least 0")
    source = np.random.default_rng(seed)
    names = [domain.domain_id for domain in network.domains]
    sizes = np.exp(source.normal(math.log(median_bytes), sigma, len(trace.jobs)))
    has = source.random(len(trace.jobs)) < share
    anywhere = source.integers(0, len(names), len(trace.jobs))
    jobs = [
        replace(
            job,
            data_domain=(job.home_domain if job.home_domain in names else names[place]) if given else "",
            data_bytes=float(round(size)) if given else 0.0,
        )
        for job, size, given, place in zip(trace.jobs, sizes.tolist(), has.tolist(), anywhere.tolist(), strict=True)
    ]
    return replace(trace, jobs=jobs)


def repeated(trace: Trace, jobs: int) -> Trace:
    """The trace again and again, each time later by its span, until there are so many jobs: for measures of speed."""
    if not trace.jobs:
        raise InvalidArgumentError("jobs: the trace is empty")
    first, last = trace.jobs[0].submit_s, trace.jobs[-1].submit_s
    out = []
    for number in range(jobs):
        turn, place = divmod(number, len(trace.jobs))
        job = trace.jobs[place]
        shift = turn * (last - first + 1.0)
        out.append(replace(job, job_id=f"{job.job_id}+{turn}", submit_s=job.submit_s + shift) if turn else job)
    return replace(trace, jobs=out)
