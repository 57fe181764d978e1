"""Changing a trace to an experiment's needs: some of its days, fewer jobs, or another load."""

from __future__ import annotations

from dataclasses import replace

from simulation.model import Network, Trace
from simulation.traces.errors import TraceError

DAY_S = 86_400.0


def limited(trace: Trace, jobs: int) -> Trace:
    """The first ``jobs`` jobs by submission."""
    if jobs < 1:
        raise TraceError(f"a trace of {jobs} jobs cannot be simulated")
    return replace(trace, jobs=trace.jobs[:jobs])


def days(trace: Trace, first: int, last: int) -> Trace:
    """The jobs submitted on the days ``first`` to ``last``, both included. Days of 24 hours are counted from 0 at the first submission.

    So what is chosen on some days can be measured on others. Raises `TraceError`: no such days, or no job on them.
    """
    if not 0 <= first <= last:
        raise TraceError(f"days {first} to {last} are no range of days, which are counted from 0")
    begin_s = trace.jobs[0].submit_s
    jobs = [job for job in trace.jobs if first <= (job.submit_s - begin_s) // DAY_S <= last]
    if not jobs:
        raise TraceError(f"no job was submitted on the days {first} to {last} of the trace")
    return replace(trace, jobs=jobs)


def offered_load(trace: Trace, network: Network) -> float:
    """Demanded device-seconds / (devices x span of submissions); 1.0 is just what the network could do if it never idled.

    Devices are accelerators, counting shares; where no job has any, they are CPUs. The demand of a job is its size times its
    duration on the reference chip. Raises `TraceError`: fewer than two submission times, or no such device in the network.
    """
    span = trace.jobs[-1].submit_s - trace.jobs[0].submit_s if trace.jobs else 0.0
    if span <= 0:
        raise TraceError("load needs jobs of at least two submission times")
    demand = sum(job.devices * job.duration_s for job in trace.jobs)
    devices: float = network.accelerators
    if demand == 0:
        demand = sum(job.ranks * job.cpus * job.duration_s for job in trace.jobs)
        devices = sum(node.cpus for node in network.nodes)
    if demand == 0 or devices == 0:
        raise TraceError(f"load is undefined: demand {demand:g} device-seconds, {devices:g} devices")
    return demand / (devices * span)


def scaled(trace: Trace, network: Network, load: float) -> Trace:
    """The trace with its submissions closer together or further apart, so that `offered_load` is ``load``.

    The first submission stays where it is; durations and the time from submission to deadline stay as they are.
    """
    if not 0 < load < float("inf"):
        raise TraceError(f"load must be positive: {load}")
    factor = offered_load(trace, network) / load
    first = trace.jobs[0].submit_s
    jobs = []
    for job in trace.jobs:
        submit_s = first + (job.submit_s - first) * factor
        jobs.append(replace(job, submit_s=submit_s, deadline_s=submit_s + (job.deadline_s - job.submit_s)))
    return replace(trace, jobs=jobs)
