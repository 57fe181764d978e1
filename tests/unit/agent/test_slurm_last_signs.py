"""When ranks count as ended of which nobody told the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.engines.base import LaunchRequest, RankPlacement
from agent.engines.local.gang import Gang
from agent.engines.own_scheduler import UnitName
from agent.engines.slurm.following import FollowedRun
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


async def test_a_step_whose_beat_cannot_be_read_for_a_moment_has_spoken(tmp_path: Path) -> None:
    """A file that another takes the place of may be stale on NFS; nothing of that says that no step began there."""
    request = LaunchRequest("run-1", "job-1", 0, 1, "acme", (RankPlacement(0, "north/n1"),), 1, ("true",))
    run = FollowedRun(Gang(request), UnitName("job-1", 0, 1), 7, tmp_path, {"n1": "north/n1"}, 0.0)
    assert run.silent_since_s("n1", "", 1.0) == 1.0
    assert not run.sign_of("n1", 2.0, confirmed=False).heard
    assert run.silent_since_s("n1", "1", 5.0) == 5.0
    assert run.silent_since_s("n1", "", 6.0) == 5.0
    assert run.sign_of("n1", 7.0, confirmed=False) == LastSign(heard=True, silent_s=2.0)
    assert run.silent_since_s("n1", "1", 8.0) == 5.0
    assert run.silent_since_s("n1", "2", 9.0) == 9.0
