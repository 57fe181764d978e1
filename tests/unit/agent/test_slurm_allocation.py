"""Constraints as options of sbatch (by its manual page), and node lists as Slurm writes them."""

from __future__ import annotations

import pytest

from agent.engines.own_scheduler import Constraints, Refusal
from agent.engines.slurm.allocation import Site, allocation_options, hosts_of, submitted_job, time_limit

GIB = 2**30
SITE = Site(
    partition="gpu",
    gres_types={"a100": "a100-80g", "h100": "h100"},
    gres=frozenset({"fpga"}),
    licences=frozenset({"matlab"}),
    account="meridian",
    qos="low",
    features="ib&avx",
)


def test_one_rank_asks_per_node() -> None:
    wanted = Constraints(
        1, cpus=7.5, memory_bytes=10 * GIB, accelerators=2, accelerator_types=("a100",), time_limit_s=5400.5
    )
    assert allocation_options(wanted, SITE, "job-1.0.1") == (
        (
            "--job-name=job-1.0.1",
            "--ntasks=1",
            "--cpus-per-task=8",
            "--nodes=1",
            "--mem=10240M",
            "--gres=gpu:a100-80g:2",
            "--time=01:30:01",
            "--partition=gpu",
            "--account=meridian",
            "--qos=low",
            "--constraint=ib&avx",
        ),
    )


def test_several_ranks_ask_per_task_and_types_are_tried_in_order() -> None:
    wanted = Constraints(
        16,
        cpus=4,
        memory_bytes=6 * GIB,
        accelerators=1,
        accelerator_types=("h100", "b200", "a100"),
        resources=(("matlab", 2.0),),
        topology="leaf",
        topology_required=True,
        excluded_nodes=frozenset({"n2", "n1"}),
    )
    found = allocation_options(wanted, SITE, "j")
    assert not isinstance(found, Refusal)
    first, second = found
    assert first[1:8] == (
        "--ntasks=16",
        "--cpus-per-task=4",
        "--mem-per-cpu=1536M",
        "--gpus-per-task=h100:1",
        "--licenses=matlab:32",
        "--switches=1@24:00:00",
        "--exclude=n1,n2",
    )
    assert second == tuple(item.replace("h100", "a100-80g") for item in first)


def test_types_are_named_by_words_as_everywhere_and_one_that_is_declared_so_goes_first() -> None:
    site = Site(gres_types={"NVIDIA A100-80GB": "a100-80g", "A100": "a100-40g", "Ascend 910B": "910b"})

    def asked(*types: str) -> list[str]:
        found = allocation_options(Constraints(1, accelerators=1, accelerator_types=types), site, "j")
        assert not isinstance(found, Refusal), found
        return [item.removeprefix("--gres=gpu:") for options in found for item in options if item.startswith("--gres=")]

    assert asked("a100-80gb") == asked("NVIDIA A100-80GB") == ["a100-80g:1"]
    assert asked("A100") == ["a100-40g:1", "a100-80g:1"]
    assert asked("h100", "910b") == ["910b:1"]


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (Constraints(1, accelerators=1, accelerator_types=("b200",)), "Slurm knows no accelerators of b200 here"),
        (Constraints(1, accelerators=1, accelerator_milli=250), "parts of an accelerator are not given out here"),
        (Constraints(1, resources=(("wine", 1.0),)), "does not count wine"),
        (Constraints(1, resources=(("fpga", 0.5),)), "in whole numbers, not 0.5"),
        (Constraints(2, resources=(("fpga", 1.0),)), "per node, so for one rank only"),
        (Constraints(1, avoid=frozenset({"inference"})), "keeps no units apart"),
    ],
)
def test_what_slurm_cannot_be_asked_is_refused(wanted: Constraints, reason: str) -> None:
    found = allocation_options(wanted, SITE, "j")
    assert isinstance(found, Refusal)
    assert reason in found.reason


def test_a_part_of_an_accelerator_is_hundredths_of_mps() -> None:
    site = Site(mps=True)
    found = allocation_options(Constraints(1, accelerators=1, accelerator_milli=255), site, "j")
    assert not isinstance(found, Refusal)
    assert "--gres=mps:26" in found[0]
    assert isinstance(allocation_options(Constraints(2, accelerators=1, accelerator_milli=255), site, "j"), Refusal)


@pytest.mark.parametrize(
    ("seconds", "text"), [(1, "00:00:01"), (3600, "01:00:00"), (86399.2, "1-00:00:00"), (200_000, "2-07:33:20")]
)
def test_time_limits(seconds: float, text: str) -> None:
    assert time_limit(seconds) == text


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n1,n2", ("n1", "n2")),
        ("n[08-10],m", ("n08", "n09", "n10", "m")),
        ("n[1,3-4]-ib", ("n1-ib", "n3-ib", "n4-ib")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
    ],
)
def test_node_lists(text: str, hosts: tuple[str, ...]) -> None:
    assert hosts_of(text) == hosts


@pytest.mark.parametrize("text", ["n[1-", "n1]", "n[3-1]", "n[a-b]", "n1,,n2", "n[]", "n[[1]]"])
def test_broken_node_lists_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="node list"):
        hosts_of(text)


def test_the_submitted_job_is_read() -> None:
    assert submitted_job("12\n") == 12
    assert submitted_job("12;cluster-a\n") == 12
    assert submitted_job("sbatch: error: Batch job submission failed: Invalid partition name specified") is None
