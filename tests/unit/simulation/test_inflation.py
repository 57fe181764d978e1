"""The inflation experiment on clusters small enough to work out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meridian.errors import InvalidArgumentError
from services.scheduler.core.fragmentation import ShareDemand
from simulation.inflation import (
    MIB,
    POLICIES,
    Cluster,
    Inflation,
    arrivals,
    compare,
    curve,
    inflate,
    main,
    read_cluster,
    read_pods,
)

WHOLE = ShareDemand(1000, 0, 1, 1000)
HALF = ShareDemand(1000, 0, 1, 500)
CPU = ShareDemand(1000)
ONE_DEVICE = Cluster((8000,), (0,), (1,), ("A",))


def test_arrivals_are_a_permutation_and_then_draws() -> None:
    pods = [WHOLE, HALF, HALF, CPU]  # 2 devices of 10
    queue = arrivals(pods, 10_000, 1.3, np.random.default_rng(0))
    assert sorted(queue[:4], key=repr) == sorted(pods, key=repr)
    assert set(queue) <= set(pods)
    # The drawing ends at the first pod that would go beyond 13: at least 12.5 devices, or 12.001 before a whole one.
    assert 12_000 < sum(pod.total_milli for pod in queue) <= 13_000


def test_arrivals_leave_pods_out_where_too_many_ask() -> None:
    queue = arrivals([WHOLE] * 20, 10_000, 1.3, np.random.default_rng(0))
    assert len(queue) == 13


def test_arrivals_need_devices() -> None:
    with pytest.raises(InvalidArgumentError, match="pods"):
        arrivals([CPU], 1000, 1.3, np.random.default_rng(0))


@pytest.mark.parametrize("policy", POLICIES)
def test_one_device_is_given_once(policy: str) -> None:
    run = inflate([WHOLE], ONE_DEVICE, policy, seed=3, tune=1.0)
    assert (run.arrived, run.refused, run.allocation[100]) == (1, 0, 100.0)
    run = inflate([WHOLE], ONE_DEVICE, policy, seed=3, tune=2.0)
    assert (run.arrived, run.refused) == (2, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_run(policy: str) -> None:
    cluster = Cluster((8000,) * 4, (0,) * 4, (1, 2, 4, 0), ("A", "B", "A", ""))
    pods = [WHOLE, HALF, HALF, CPU, ShareDemand(2000, 0, 1, 300, (1,))]
    first, again, other = (inflate(pods, cluster, policy, seed) for seed in (1, 1, 2))
    assert first.allocation == pytest.approx(again.allocation, nan_ok=True)
    assert first.arrived > len(pods)
    assert (first.arrived, first.allocation) != (other.arrived, other.allocation)


def test_a_gradient_keeps_a_device_whole_where_random_need_not() -> None:
    # Two devices; two halves, then a whole one: FGD puts the halves together, so that the whole one fits.
    pods = [HALF, HALF, WHOLE]
    cluster = Cluster((9000, 9000), (0, 0), (1, 1), ("A", "A"))
    refused = {
        policy: [inflate(pods, cluster, policy, seed, tune=1.0).refused for seed in range(20)] for policy in POLICIES
    }
    assert sum(refused["06-FGD"]) == 0
    assert sum(refused["01-Random"]) > 0


def test_curve_is_the_mean_by_rounded_load() -> None:
    means = curve(np.array([0.004, 0.0071, 0.0129, 0.03]), np.array([0.004, 0.0071, 0.0071, 0.02]))
    # 0 %: 0.4. 1 %: both 0.71. 2 %: never, so the mean over 1 and 3 %: (0.71 + 0.71 + 2) / 3. 5 %: nothing near.
    assert means[:4] == (0.4, 0.71, 1.14, 2.0)
    assert len(means) == 131
    assert np.isnan(means[5])


def test_compare_takes_means_over_seeds(tmp_path: Path) -> None:
    published = tmp_path / "alloc.csv"
    loads = ",".join(map(str, range(131)))
    lines = [f"w,06-FGD,1.3,{seed},6212," + ",".join([value] * 131) for seed, value in ((42, "90"), (43, "92"))]
    published.write_text(f"workload,sc_policy,tune,seed,total_gpus,{loads}\n" + "\n".join(lines) + "\n", "utf-8")
    runs = [Inflation("06-FGD", seed, (value,) * 131, 1, 0) for seed, value in ((0, 91.0), (1, 94.0))]
    rows = compare(published, {"w": runs})
    assert [(row.load, row.published, row.ours, row.difference, row.seeds) for row in rows] == [
        (100, 91.0, 92.5, 1.5, 2),
        (130, 91.0, 92.5, 1.5, 2),
    ]
    with pytest.raises(InvalidArgumentError, match="nothing on 06-FGD with v"):
        compare(published, {"v": runs})


NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def test_reading(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(NODES + "a,32000,2,2,T4\nb,1000,1,0,\n", "utf-8")
    cluster = read_cluster(path)
    assert cluster == Cluster((32000, 1000), (2 * MIB, MIB), (2, 0), ("T4", ""))
    path.write_text(PODS + "p,100,1,1,250,T4|\nq,100,1,0,0,\n", "utf-8")
    assert read_pods(path, cluster.models) == [ShareDemand(100, MIB, 1, 250, (0,)), ShareDemand(100, MIB)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,cpu_milli\n", "line 1: no column memory_mib"),
        (PODS, "no pods"),
        (PODS + "p,x,1,1,1,\n", "line 2: cpu_milli must be a whole number, not 'x'"),
        (PODS + "p,1,1,1,1,\np,1,1,2,500,\n", "line 3: device_milli must be 1000"),
        (PODS + "p,1,1,1,1,T9\n", "line 2: gpu_spec names 'T9'"),
        (PODS + "p,1\n", "line 2: too few values"),
    ],
)
def test_a_bad_list_names_the_line_and_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(InvalidArgumentError, match=message):
        read_pods(path, ["T4"])


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="policy must be one of"):
        inflate([WHOLE], ONE_DEVICE, "07-Best", seed=0)


def test_the_command_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "--seeds", "1"]) == 2
    assert "openb_node_list_gpu_node.csv" in capsys.readouterr().err
