"""The openb cluster filled through the scheduler's real core: its node scores give away what the plain rules give away.

The same pods arrive in the same order at the same order of nodes as in simulation/inflation.py; every pod goes through
`decide` by itself. Random places are drawn otherwise there (a generator's stream, not a digest), so for them only the
outcome is alike; all others give the same curve.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

import services.scheduler.core.builtin  # noqa: F401
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.decide import decide
from services.scheduler.core.fleet import Device, Domain, Fleet, Node
from services.scheduler.core.fragmentation import ShareDemand
from services.scheduler.core.policy import Policy
from services.scheduler.core.scoring.shared import kind_label
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.table import table_of
from services.scheduler.core.waiting_unit import PendingUnit
from simulation import inflation
from tests.public_data import public_data

SEED = 1
POINT = 0.5
SCORES = {
    "01-Random": "random",
    "02-DotProd": "dot_product",
    "03-GpuClustering": "gpu_clustering",
    "04-GpuPacking": "gpu_packing",
    "05-BestFit": "best_fit",
    "06-FGD": "fgd",
}


@pytest.fixture(scope="module")
def openb() -> tuple[inflation.Cluster, list[ShareDemand]]:
    cluster = inflation.read_cluster(public_data("openb", "openb_node_list_gpu_node.csv"))
    return cluster, inflation.read_pods(public_data("openb", "openb_pod_list_default.csv"), cluster.models)


def demand_of(pod: ShareDemand, models: tuple[str, ...]) -> Demand:
    demand = Demand(
        ranks=1,
        cpus=pod.cpu_milli / 1000,
        memory_bytes=pod.memory_bytes,
        accelerators=pod.devices,
        accelerator_types=tuple(models[model] for model in pod.models),
        device_milli=pod.device_milli if pod.devices else 1000,
    )
    return replace(demand, labels=frozenset({kind_label(demand)} - {""}))


def core_of(cluster: inflation.Cluster, order: np.ndarray, policy: Policy) -> Cluster:
    """One domain; node ids sort in ``order``, as the first of equal nodes is taken."""
    nodes = {}
    for place, row in enumerate(order):
        devices = tuple(Device(index, model=cluster.model[row]) for index in range(cluster.devices[row]))
        name = f"{place:05d}"
        nodes[name] = Node(name, "openb", cluster.cpu_milli[row] / 1000, cluster.memory_bytes[row], devices)
    return Cluster(table_of(Fleet({"openb": Domain("openb")}, nodes)), policy)


def inflate_core(
    pods: list[ShareDemand], cluster: inflation.Cluster, score: str, seed: int
) -> tuple[tuple[float, ...], int, float]:
    """As `inflation.inflate`: allocation by load, refused pods, and mean seconds per pod for deciding and carrying out."""
    generator = np.random.default_rng(seed)
    capacity = sum(cluster.devices) * 1000
    queue = inflation.arrivals(pods, capacity, 1.3, generator)
    policy = Policy(
        filters=("accelerator", "capacity"), scores=((score, 1.0),), options=(("random", (("seed", seed),)),)
    )
    core = core_of(cluster, generator.permutation(len(cluster.devices)), policy)
    core.view.facts["typical_demands"] = tuple((demand_of(pod, cluster.models), 1.0) for pod in pods)
    asked = used = refused = 0
    load, given = np.zeros(len(queue)), np.zeros(len(queue))
    spent_s = 0.0
    for index, pod in enumerate(queue):
        demand = demand_of(pod, cluster.models)
        if score == "random":
            # Every pod draws for itself: a class of its own. Judgements about it are of no more use.
            demand = replace(demand, labels=demand.labels | {f"pod:{index}"})
            core.view.forget_touched()
        key = UnitKey(f"{index:06d}", 0)
        began = time.perf_counter()
        core.add(PendingUnit(key, "t", 0, float(index), demand))
        decisions = decide(core, policy, float(index), explain=False)
        core.apply(decisions, float(index))
        spent_s += time.perf_counter() - began
        asked += pod.total_milli
        if decisions.placed:
            used += pod.total_milli
        else:
            core.withdraw(key)
            refused += 1
        load[index], given[index] = asked, used
    return inflation.curve(load / capacity, given / capacity), refused, spent_s / len(queue)


@pytest.mark.external
@pytest.mark.parametrize("name", SCORES)
def test_the_core_gives_away_what_the_rule_does(openb: tuple[inflation.Cluster, list[ShareDemand]], name: str) -> None:
    cluster, pods = openb
    wanted = inflation.inflate(pods, cluster, name, SEED)
    allocation, refused, seconds = inflate_core(pods, cluster, SCORES[name], SEED)
    print(
        f"{name}: at 100 and 130 % load {wanted.allocation[100]:.2f} and {wanted.allocation[130]:.2f} by the rule, "
        f"{allocation[100]:.2f} and {allocation[130]:.2f} by the core; refused {wanted.refused} and {refused}; "
        f"{seconds * 1e3:.2f} ms a pod"
    )
    assert abs(allocation[100] - wanted.allocation[100]) <= POINT
    assert abs(allocation[130] - wanted.allocation[130]) <= POINT
    if name != inflation.RANDOM:
        # The very same places: nothing is drawn.
        assert refused == wanted.refused
        assert allocation == wanted.allocation
