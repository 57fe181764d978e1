"""The network that is made for a trace: large enough for its load by every resource, and for its greatest job."""

from __future__ import annotations

import pytest

from meridian.errors import InvalidArgumentError
from simulation.experiment import AUTO, network_of
from simulation.model import Trace, TraceJob

GIB = 2**30


def jobs(**each: object) -> Trace:
    """Ten jobs of 72 s, one every 10 s: 720 job-seconds in 90 s, 8 at a time."""
    return Trace("ten", [TraceJob(f"job-{n}", 10.0 * n, 72.0, **each) for n in range(10)], None, {}, "")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("each", "nodes"),
    [
        # 8 jobs at a time, 10 at a load of 0.8: as many accelerators are two nodes of 8.
        ({"accelerators": 1}, 2),
        ({"accelerators": 1, "cpus": 8.0}, 2),
        # A node has 64 CPUs and 512 GiB.
        ({"accelerators": 1, "cpus": 64.0}, 10),
        ({"accelerators": 1, "cpus": 32.0}, 5),
        ({"accelerators": 1, "memory_bytes": 512 * GIB}, 10),
        ({"accelerators": 1, "ranks": 8, "cpus": 16.0}, 20),
    ],
)
def test_nodes_by_the_scarcest_resource(each: dict[str, object], nodes: int) -> None:
    assert len(network_of(AUTO, jobs(**each)).nodes) == nodes


def test_nodes_are_as_large_as_the_greatest_rank() -> None:
    network = network_of(AUTO, jobs(accelerators=1, cpus=95.5, memory_bytes=600 * GIB), accelerators=16)
    assert {(node.cpus, node.memory_bytes) for node in network.nodes} == {(96.0, 600 * GIB)}


def test_room_for_the_greatest_gang_by_its_cpus() -> None:
    trace = jobs(accelerators=1, ranks=8, cpus=64.0)
    trace.jobs[:] = trace.jobs[:1]
    assert len(network_of(AUTO, trace).nodes) == 8
    with pytest.raises(InvalidArgumentError, match="needs 1,000,000 nodes"):
        trace.jobs[0].ranks = 1_000_000
        network_of(AUTO, trace)
