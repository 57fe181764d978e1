"""When ranks count as ended of which nobody told the end."""

from __future__ import annotations

import pytest

from agent.engines.slurm.last_signs import LastSign, nothing_runs, reaches, silence_limit_s
from agent.engines.slurm.words import nodes_of


@pytest.mark.parametrize(
    ("sign", "ended"),
    [
        (LastSign(heard=False, silent_s=0.0), True),  # no step began, and of an ended job none can
        (LastSign(heard=True, silent_s=0.5), False),
        (LastSign(heard=True, silent_s=0.5, confirmed=True), False),  # it beats, whatever Slurm says
        (LastSign(heard=True, silent_s=3.1, confirmed=True), True),
        (LastSign(heard=True, silent_s=3.1), False),  # Slurm gave the node up, or does not know the job any more
        (LastSign(heard=True, silent_s=15.9), False),
        (LastSign(heard=True, silent_s=16.1), True),
    ],
)
def test_an_ended_job_says_nothing_of_nodes_that_slurm_does_not_reach(sign: LastSign, *, ended: bool) -> None:
    assert silence_limit_s(6.0) == 16.0
    assert nothing_runs(sign, silence_limit_s(6.0)) is ended


@pytest.mark.parametrize(
    ("state", "reached"),
    [("IDLE", True), ("MIXED+DRAIN", True), ("DOWN", False), ("IDLE*", False), ("DOWN*", False), ("UNKNOWN", False)],
)
def test_which_nodes_slurm_reaches(state: str, *, reached: bool) -> None:
    assert reaches(nodes_of(f"NodeName=n1 State={state}")[0]["n1"]) is reached
    assert not reaches(None)
