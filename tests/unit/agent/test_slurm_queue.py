"""What the agent does with a queue or nodes of which a line cannot be read: a program in the place of Slurm's prints one."""

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
    for name in ("squeue", "scontrol"):
        program = folder / name
        program.write_text(f"#!/bin/sh\ncat {folder}/said\n")
        program.chmod(0o755)
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


def test_a_node_that_cannot_be_read_is_told_once_and_counted_and_the_others_are_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = _cluster(tmp_path, "")

    async def look(load: str, amount: str) -> None:
        lines = (f"NodeName=n{n} CPUTot={cpus} CPULoad={load} State=IDLE" for n, cpus in ((1, "8"), (2, amount)))
        (tmp_path / "said").write_text("\n".join(lines))
        await cluster.look_at_nodes()

    async def look_often() -> None:
        # The load is another one at each look: that is no news of what cannot be read.
        for load in ("0.10", "0.20", "0.30"):
            await look(load, "8x")
        before_s = cluster.heard_at_s
        await look("0.40", "8")
        assert cluster.heard_at_s >= before_s
        await look("0.50", "8x")

    with caplog.at_level(logging.WARNING):
        asyncio.run(look_often())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2, "once for each time"
    assert all("n2" in text and "'8x'" in text for text in told)
    assert cluster.unreadable_count == 2
    assert {name: node.takes_jobs for name, node in cluster.nodes.items()} == {"n1": True, "n2": False}
