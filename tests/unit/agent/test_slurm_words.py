"""Slurm's words, as Slurm 22.05 on Debian printed them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent.engines.slurm.words import (
    SEPARATOR,
    QueuedJob,
    given_of,
    indices_of,
    nodes_of,
    queue_of,
    refusal_of,
    tasks_of,
)

JOB = (
    "JobId=1 JobName=job.sh UserId=root(0) JobState=RUNNING Reason=None NodeList=n[1-2] NumNodes=2 NumCPUs=12 "
    "TRES=cpu=12,mem=1200M,node=2,billing=12 JOB_GRES=gpu:h100:8   Nodes=n[1-2] CPU_IDs=0-5 Mem=600 "
    "GRES=gpu:h100:4(IDX:0-3) MinCPUsNode=3 TresPerTask=gres:gpu:h100:2 \n"
)
NODES = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=8  CPUAlloc=6 CPUEfctv=8 CPUTot=8 CPULoad=6.62 Gres=gpu:h100:4 GresDrain=N/A "
    "GresUsed=gpu:h100:3(IDX:0-1,3) NodeAddr=127.0.0.1 OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=16000 "
    "AllocMem=600 FreeMem=14950 State=MIXED BootTime=2026-11-21T18:43:51 SlurmdStartTime=2026-11-22T01:41:34 "
    "CfgTRES=cpu=8,mem=16000M,billing=8 AllocTRES=cpu=6,mem=600M\n"
    "NodeName=n2 CPUAlloc=0 CPUTot=8 CPULoad=N/A Gres=(null) GresUsed=gpu:0 RealMemory=16000 AllocMem=0 FreeMem=N/A "
    "State=IDLE*+DRAIN BootTime=None SlurmdStartTime=None Reason=disk State of things [root@2026-11-22T01:41:34]\n"
)


def test_nodes() -> None:
    nodes, odd = nodes_of(NODES)
    first, second = nodes.values()
    assert odd == {}
    assert (first.cpus, first.cpus_in_use, first.memory_mib, first.memory_in_use_mib) == (8, 6, 16000, 600)
    assert (first.gres, first.used, first.indices_in_use) == ({"h100": 4}, {"h100": 3}, {0, 1, 3})
    assert first.booted_at_s == int(datetime(2026, 11, 21, 18, 43, 51, tzinfo=UTC).timestamp())
    assert first.lives
    assert first.takes_jobs
    assert (second.gres, second.booted_at_s, second.states) == ({}, 0, {"IDLE", "DRAIN", "NOT_RESPONDING"})
    assert second.lives
    assert not second.takes_jobs
    assert not nodes_of("NodeName=n3 State=DOWN*+DRAIN")[0]["n3"].lives


@pytest.mark.parametrize(
    ("sound", "spoiled", "why"),
    [
        ("CPUTot=8 CPULoad=N/A", "CPUTot=8x CPULoad=N/A", "'8x' is no number"),
        ("Gres=(null)", "Gres=gpu:h100:", "GRES 'gpu:h100:' cannot be read"),
        ("GresUsed=gpu:0", "GresUsed=gpu:1(IDX:a-b)", "'a' is no number"),
    ],
)
def test_a_node_of_which_amounts_cannot_be_read_takes_no_jobs_and_lives(sound: str, spoiled: str, why: str) -> None:
    """The others are known, and nobody takes its runs for lost."""
    assert sound in NODES
    nodes, odd = nodes_of(NODES.replace(sound, spoiled).replace("IDLE*+DRAIN", "IDLE"))
    assert nodes["n1"] == nodes_of(NODES)[0]["n1"]
    assert nodes["n1"].takes_jobs
    assert nodes["n2"].lives
    assert not nodes["n2"].takes_jobs
    assert (nodes["n2"].cpus, nodes["n2"].gres, nodes["n2"].indices_in_use) == (0, {}, set())
    assert list(odd) == ["n2"]
    assert why in odd["n2"]
    assert nodes_of(NODES.replace("IDLE*+DRAIN", "IDLE"))[0]["n2"].takes_jobs


def test_what_stands_in_a_reason_is_no_state() -> None:
    """``scontrol update reason=`` takes any words, and ``Reason`` comes after what Slurm says itself."""
    said = (
        "NodeName=n1 CPUTot=8 State=IDLE+DRAIN BootTime=2026-11-21T18:43:51 Reason=was NodeName=n9 State=DOWN CPUTot=x"
    )
    nodes, odd = nodes_of(said)
    assert nodes.keys() == {"n1"}
    assert (nodes["n1"].lives, nodes["n1"].cpus, odd) == (True, 8, {})


def test_lines_of_no_node_are_told_and_an_answer_of_nothing_else_is_none() -> None:
    comment = "second line of a comment"
    nodes, odd = nodes_of(f"{NODES}{comment}\n")
    assert nodes == nodes_of(NODES)[0]
    assert odd == {comment: "is no node"}
    assert nodes_of("") == ({}, {})
    with pytest.raises(ValueError, match="scontrol show node"):
        nodes_of("slurm_load_node error: Unable to contact slurm controller")


def test_what_a_job_was_given() -> None:
    assert given_of(JOB) == {"n1": (0, 1, 2, 3), "n2": (0, 1, 2, 3)}
    unequal = "Nodes=n1 CPU_IDs=0-5 Mem=0 GRES=gpu:h100:2(IDX:1,3) Nodes=n[2-3] CPU_IDs=0 Mem=0 GRES= x=y"
    assert given_of(unequal) == {"n1": (1, 3), "n2": (), "n3": ()}
    assert given_of("Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(CNT:2) x=y") == {"n1": None}
    assert given_of("JobId=3 JobState=PENDING") == {}


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("gpu:h100:3(IDX:0-1,3)", (0, 1, 3)),
        ("gpu:0(IDX:N/A)", ()),
        ("gpu:h100:1(IDX:0),gpu:a100:2(IDX:4-5),nic:1(IDX:7)", (0, 4, 5)),
        ("", ()),
    ],
)
def test_indices(text: str, indices: tuple[int, ...]) -> None:
    assert indices_of(text) == indices


def test_the_queue() -> None:
    rows = [
        ("3", "PENDING", "N/A", "", "wrap", "PartitionTimeLimit"),
        ("1", "RUNNING", "2026-11-22T01:42:01", "n[1-2]", "meridian:north:job-1:0:1", "None"),
        ("7", "PENDING", "2026-11-22T02:00:00", "", "wrap", "Resources"),
    ]
    jobs, odd = queue_of("\n".join(SEPARATOR.join(row) for row in rows) + "\n")
    assert not odd
    assert jobs[1] == QueuedJob(
        1, "RUNNING", "", datetime(2026, 11, 22, 1, 42, 1, tzinfo=UTC), ("n1", "n2"), "meridian:north:job-1:0:1"
    )
    assert [jobs[number].hopeless for number in (3, 1, 7)] == [True, False, False]
    assert jobs[7].starts_at == datetime(2026, 11, 22, 2, tzinfo=UTC)
    with pytest.raises(ValueError, match="squeue"):
        queue_of("slurm_load_jobs error: Unable to contact slurm controller")


OWN = SEPARATOR.join(("1", "RUNNING", "2026-11-22T01:42:01", "n[1-2]", "meridian:north:job-1:0:1", "None"))


@pytest.mark.parametrize("name", ["a" + SEPARATOR + "b", SEPARATOR, SEPARATOR * 9, "%j|,;", "x:y"])
def test_a_name_may_hold_what_separates_words(name: str) -> None:
    """``sbatch --job-name`` takes any character, and other jobs of the user are named by others."""
    row = SEPARATOR.join(("7", "PENDING", "N/A", "", name, "Resources"))
    jobs, odd = queue_of(f"{row}\n{OWN}\n")
    assert (jobs[7].state, jobs[7].name, jobs[7].reason) == ("PENDING", name, "Resources")
    assert jobs[1].name == "meridian:north:job-1:0:1"
    assert not odd


def test_a_line_that_cannot_be_read_costs_itself_only_and_is_told() -> None:
    broken = SEPARATOR.join(("7", "RUNNING", "2026-11-22T02:00:00", "n3", "two\nlines", "None"))
    nodes = SEPARATOR.join(("8", "RUNNING", "N/A", "n[1-", "wrap", "None"))
    for text in (f"{broken}\n{OWN}\n{nodes}\n", f"{OWN}\nfree words\n{nodes}\n{broken}\n"):
        jobs, odd = queue_of(text)
        assert jobs[1].nodes == ("n1", "n2")
        assert (jobs[7].state, jobs[7].nodes, jobs[8].state, jobs[8].nodes) == ("RUNNING", ("n3",), "RUNNING", ())
        assert set(odd) == {line for line in text.split("\n") if line and not line.startswith("1" + SEPARATOR)}
    cut, odd = queue_of(f"{OWN}\n7{SEPARATOR}COMP")
    assert cut.keys() == {1}
    assert odd == ("7" + SEPARATOR + "COMP",)


@pytest.mark.parametrize(
    ("reason", "hopeless"),
    [
        ("Resources", False),
        ("Priority", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("AssocGrpCpuLimit", False),
        ("Licenses", False),
        ("BeginTime", False),
        ("ReqNodeNotAvail,_UnavailableNodes:n1", False),
        ("QOSMaxCpuPerJobLimit", True),
        ("AssocMaxWallDurationPerJobLimit", True),
        ("BadConstraints", True),
        ("InvalidAccount", True),
    ],
)
def test_which_reasons_are_for_ever(reason: str, hopeless: bool) -> None:
    assert QueuedJob(1, "PENDING", reason).hopeless is hopeless
    assert not QueuedJob(1, "RUNNING", reason).hopeless


def test_tasks_per_node() -> None:
    assert tasks_of("2(x3),1") == (2, 2, 2, 1)
    assert tasks_of("1") == (1,)
    with pytest.raises(ValueError, match="SLURM_TASKS_PER_NODE"):
        tasks_of("2(x")


def test_refusals() -> None:
    said = "sbatch: error: invalid partition specified: nix\nsbatch: error: Batch job submission failed: Invalid partition name specified\n"
    assert refusal_of(said) == "Invalid partition name specified"
    assert refusal_of("") == "sbatch failed and said nothing"
