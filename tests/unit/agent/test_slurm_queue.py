"""What the agent does with a queue of which a line cannot be read: a program in squeue's place prints one."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from agent.engines.slurm.cluster import Cluster, SlurmSettings, SlurmSilentError
from agent.engines.slurm.words import SEPARATOR

OWN = SEPARATOR.join(("1", "RUNNING", "2026-11-22T01:42:01", "n1", "meridian:north:job-1:0:1", "None"))
ODD = SEPARATOR.join(("7", "RUNNING", "N/A", "n2", "two\nlines", "None"))


def _cluster(folder: Path, said: str) -> Cluster:
    (folder / "said").write_text(said)
    squeue = folder / "squeue"
    squeue.write_text(f"#!/bin/sh\ncat {folder}/said\n")
    squeue.chmod(0o755)
    return Cluster(SlurmSettings("north", folder, {"north/n1": "n1"}, programs_dir=str(folder)))


def test_an_odd_line_is_told_once_and_the_others_are_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = _cluster(tmp_path, f"{ODD}\n{OWN}\n")

    async def look_twice() -> None:
        await cluster.look_at_jobs()
        await cluster.look_at_jobs()

    with caplog.at_level(logging.WARNING):
        asyncio.run(look_twice())
    assert cluster.unit_of(cluster.jobs[1]) is not None
    assert cluster.jobs[7].state == "RUNNING"
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2  # a name of two lines
    assert "7\\x1fRUNNING" in told[0]
    assert "lines" in told[1]


def test_an_answer_without_a_line_of_that_form_leaves_what_was_known(tmp_path: Path) -> None:
    cluster = _cluster(tmp_path, f"{OWN}\n")

    async def look() -> None:
        await cluster.look_at_jobs()
        (tmp_path / "said").write_text("slurm_load_jobs error: Unable to contact slurm controller\n")
        with pytest.raises(SlurmSilentError, match="form"):
            await cluster.look_at_jobs()

    asyncio.run(look())
    assert cluster.jobs.keys() == {1}
