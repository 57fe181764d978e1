"""The readers on the public data sets themselves: counts and sums that the sets' authors (or a plain awk) give."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from simulation.domains import read_network, read_region_prices
from simulation.made_networks import philly_network
from simulation.traces import (
    batsim_schedule,
    load,
    offered_load,
    openb_nodes,
    scaled,
    sia_tables,
    spot_series,
    swf_machines,
)
from tests.public_data import public_data

pytestmark = pytest.mark.external

NETWORKS = Path(__file__).parents[3] / "simulation" / "networks"


@pytest.fixture(scope="module")
def data() -> Path:
    return public_data()


def test_philly(data: Path) -> None:
    started = time.process_time()
    trace = load(data / "philly" / "october_5_clusters.csv", "philly")
    assert time.process_time() - started < 2.0
    assert len(trace.jobs) == 23_531
    # awk -F, '{s += $2 * $3}': jobs of 16 GPUs are two whole nodes, so nothing is rounded up.
    assert sum(job.devices * job.duration_s for job in trace.jobs) == pytest.approx(677_383_622.0)
    network = read_network(NETWORKS / "philly-5.yaml")
    assert {domain.domain_id: len(domain.nodes) for domain in network.domains} == {
        domain.domain_id: len(domain.nodes) for domain in philly_network(trace).domains
    }
    assert {job.home_domain for job in trace.jobs} == {domain.domain_id for domain in network.domains}
    assert offered_load(trace, network) == pytest.approx(677_383_622.0 / (176 * 3_696_331.0))
    assert offered_load(scaled(trace, network, 0.9), network) == pytest.approx(0.9)


def test_gavel(data: Path) -> None:
    trace = load(data / "gavel" / "seed=0", "gavel")
    assert len(trace.jobs) == 15_264
    assert len({job.home_domain for job in trace.jobs}) == 15
    rates = trace.throughputs
    assert rates is not None
    assert rates.rates["ResNet-18 (batch size 16)", 1]["k80"] == pytest.approx(4.795294551566172)
    assert "k80" not in rates.rates["ResNet-50 (batch size 128)", 2]
    one = "ResNet-18 (batch size 16)"
    assert rates.pairs[one, 1, "k80"]["ResNet-50 (batch size 16)", 1] == pytest.approx(
        (2.4539953436775868, 0.9827032498016068)
    )
    assert all(job.duration_s > 0 for job in trace.jobs)


def test_swf(data: Path) -> None:
    trace = load(data / "swf" / "hpc2n.swf", "swf")
    assert (len(trace.jobs), trace.skipped) == (3_145, {"unknown duration": 25})
    assert max(job.ranks for job in trace.jobs) <= 240
    machines = swf_machines(data / "swf" / "hpc2n.swf.machines")
    shipped = read_network(NETWORKS / "hpc2n.yaml")
    assert [(node.node_id, node.cpus, node.memory_bytes) for node in machines.nodes] == [
        (node.node_id, node.cpus, node.memory_bytes) for node in shipped.nodes
    ]


def test_openb(data: Path) -> None:
    trace = load(data / "openb" / "openb_pod_list_default.csv", "openb", pending=True)
    assert len(trace.jobs) + sum(trace.skipped.values()) == 8_152
    assert openb_nodes(data / "openb" / "openb_node_list_gpu_node.csv").accelerators == 6_212
    assert len(openb_nodes(data / "openb" / "openb_node_list_all_node.csv").nodes) == 1_523
    for share in (20, 40, 60, 80, 100):
        load(data / "openb" / f"openb_pod_list_gpushare{share}.csv", "openb")


def test_sia(data: Path) -> None:
    files = sorted((data / "sia" / "workloads" / "philly").glob("*.csv"))
    assert sum(len(load(file, "sia").jobs) for file in files) == 998 + 111 + 86 + 59 + 26
    scale = load(data / "sia" / "workloads" / "scale" / "scale_32x" / "workload-1.csv", "sia")
    assert scale.skipped == {}
    rates = scale.throughputs
    assert rates is not None
    assert rates.rate("cifar10/4096", 8, "a100") > rates.rate("cifar10/4096", 8, "t4") > 0
    tables = sia_tables(data / "sia" / "traces")
    assert tables.placements["imagenet", "t4"][1,].at(20) == pytest.approx((0.14740917682647706, 0.0012090879917144776))
    assert tables.convergence["imagenet"][1600].steps == 78_453


def test_chronus(data: Path) -> None:
    trace = load(data / "chronus" / "MIX1.csv", "chronus")
    assert (len(trace.jobs), trace.skipped) == (30_756, {"no processors": 184})
    dated = [job for job in trace.jobs if job.deadline_s == job.deadline_s]
    assert all(job.deadline_s >= job.submit_s + 1.1 * job.duration_s for job in dated)


@pytest.mark.parametrize("name", ["easy", "conservative"])
def test_batsim(data: Path, name: str) -> None:
    schedule = batsim_schedule(data / "batsim" / f"{name}.csv")
    assert len(schedule.trace.jobs) == 801
    for job in schedule.trace.jobs:
        assert schedule.finish_s[job.job_id] - schedule.start_s[job.job_id] == pytest.approx(job.duration_s, abs=1e-5)


def test_spot_and_prices(data: Path) -> None:
    files = sorted((data / "spot").rglob("*.json"))
    assert len(files) == 27
    for file in files:
        steps = spot_series(file)
        assert all(0 <= count <= 4 for _, count in steps)
        assert all(one[1] != other[1] for one, other in pairwise(steps))
    prices = read_region_prices(data / "prices" / "aws_transfer_costs.csv")
    assert prices["ap-northeast-1", "us-east-1"] == 0.09
    network = read_network(NETWORKS / "philly-5.yaml")
    region = {domain.domain_id: domain.region for domain in network.domains}
    for link in network.links:
        per_gb = prices[region[link.from_domain], region[link.to_domain]]
        assert link.price_micro_units_per_gib == round(per_gb * 1.073741824 * 1e6)
