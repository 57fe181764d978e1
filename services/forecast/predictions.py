"""Run times that job files let predict (`waveform.durations`), for what the structure of jobs lets expect."""

from __future__ import annotations

from meridian.contracts.job.v1.job_pb2 import JobSpec
from services.forecast.waveform.durations import RunTime, Source, run_time


def predicted(spec: bytes, accelerator_type: str) -> tuple[float, float] | None:
    """Seconds that a run of a job's file takes on a model of accelerators, and the spread of its logarithm.

    None where only a time limit tells, which is known besides.
    """
    found = run_time(JobSpec.FromString(spec), accelerator_type)
    if not isinstance(found, RunTime) or found.source is Source.LIMIT:
        return None
    return found.expected_s, found.spread
