"""Allocation on the openb cluster against the results that the authors of FGD published, within a percentage point."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.inflation import POLICIES, TOLERANCE, compare, inflate, read_cluster, read_pods
from tests.public_data import public_data

WORKLOAD = "openb_pod_list_default"
SEEDS = 2


@pytest.fixture(scope="module")
def data() -> Path:
    return public_data()


@pytest.mark.external
@pytest.mark.parametrize("policy", POLICIES)
def test_mean_allocation_is_the_published_one(data: Path, policy: str) -> None:
    cluster = read_cluster(data / "openb/openb_node_list_gpu_node.csv")
    assert sum(cluster.devices) == 6212
    pods = read_pods(data / f"openb/{WORKLOAD}.csv", cluster.models)
    runs = [inflate(pods, cluster, policy, seed) for seed in range(SEEDS)]
    rows = compare(data / "openb_expected/alloc.csv", {WORKLOAD: runs})
    assert [row.load for row in rows] == [100, 130]
    for row in rows:
        assert abs(row.difference) <= TOLERANCE, row
