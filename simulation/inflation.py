"""The experiment of the FGD paper: fill a cluster until 130 % of its accelerators have been asked for.

It shows that the placement rules of `services.scheduler.core.fragmentation` do what their authors' did: the share of
accelerators given away, over the load that has arrived, is compared with the results that the authors published (Weng et
al., USENIX ATC 2023; simulator hkust-adsl/kubernetes-scheduler-simulator). Their random numbers cannot be had again, so
means over seeds are compared.

    python -m simulation.inflation --data DIR [--workload NAME] [--policy NAME ...] [--seeds 10]

``DIR`` holds ``openb/`` (nodes, pods) and ``openb_expected/alloc.csv``.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meridian.errors import InvalidArgumentError
from services.scheduler.core.fragmentation import (
    WHOLE,
    IncrementalScores,
    Rule,
    Scored,
    ShareDemand,
    SharedNodes,
    TypicalClasses,
    best,
    best_fit,
    dot_product,
    fragmentation_rule,
    gpu_clustering,
    gpu_packing,
    random_place,
)

RULES: Mapping[str, Callable[[TypicalClasses], Rule]] = {
    "02-DotProd": lambda _: dot_product,
    "03-GpuClustering": lambda _: gpu_clustering,
    "04-GpuPacking": lambda _: gpu_packing,
    "05-BestFit": lambda _: best_fit,
    "06-FGD": fragmentation_rule,
}
RANDOM = "01-Random"
POLICIES = (RANDOM, *RULES)
"""Policies by the names of the published results."""

LAST_LOAD = 130
LOADS = (100, 130)
MIB = 1024**2
TOLERANCE = 1.0
"""Percentage points that the mean may be off."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Empty nodes: all sequences (N). ``model`` is "" without devices."""

    cpu_milli: tuple[int, ...]
    memory_bytes: tuple[int, ...]
    devices: tuple[int, ...]
    model: tuple[str, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """Names of device models; their order gives the indices of `ShareDemand.models`."""
        return tuple(sorted({name for name in self.model if name}))

    def nodes(self, order: Iterable[int]) -> SharedNodes:
        """The nodes, idle, in this order."""
        index = {name: number for number, name in enumerate(self.models)}
        rows = list(order)
        return SharedNodes.idle(
            [self.cpu_milli[row] for row in rows],
            [self.memory_bytes[row] for row in rows],
            [self.devices[row] for row in rows],
            [index.get(self.model[row], -1) for row in rows],
        )


@dataclass(frozen=True, slots=True)
class Inflation:
    """One run: ``allocation[p]`` is the percentage of accelerators given away when p % of them had been asked for."""

    policy: str
    seed: int
    allocation: tuple[float, ...]
    arrived: int
    refused: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Means over seeds of the allocation, in percent, at one load; ``seeds`` are ours."""

    workload: str
    policy: str
    load: int
    published: float
    ours: float
    seeds: int

    @property
    def difference(self) -> float:
        """Ours less published, in percentage points."""
        return self.ours - self.published


def read_cluster(path: Path) -> Cluster:
    """Nodes of an openb list (columns sn, cpu_milli, memory_mib, gpu, model). Raises `InvalidArgumentError` with the line."""
    rows = [
        (_number(row, "cpu_milli", at), _number(row, "memory_mib", at) * MIB, _number(row, "gpu", at), row["model"])
        for row, at in _rows(path, ("cpu_milli", "memory_mib", "gpu", "model"))
    ]
    if not rows:
        raise InvalidArgumentError(f"{path}: no nodes")
    cpu, memory, devices, model = zip(*rows, strict=True)
    return Cluster(cpu, memory, devices, model)


def read_pods(path: Path, models: Sequence[str]) -> list[ShareDemand]:
    """Pods of an openb list; ``gpu_spec`` ("A|B") names accepted models. Raises `InvalidArgumentError` with the line."""
    index = {name: number for number, name in enumerate(models)}
    pods = []
    for row, at in _rows(path, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")):
        devices = _number(row, "num_gpu", at)
        wanted = [name for name in row["gpu_spec"].split("|") if name]
        unknown = [name for name in wanted if name not in index]
        if unknown:
            raise InvalidArgumentError(f"{at}: gpu_spec names {unknown[0]!r}, which no node has")
        try:
            pods.append(
                ShareDemand(
                    cpu_milli=_number(row, "cpu_milli", at),
                    memory_bytes=_number(row, "memory_mib", at) * MIB,
                    devices=devices,
                    device_milli=min(_number(row, "gpu_milli", at), WHOLE) if devices else 0,
                    models=tuple(sorted(index[name] for name in wanted)) if devices else (),
                )
            )
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{at}: {error.detail}") from error
    if not pods:
        raise InvalidArgumentError(f"{path}: no pods")
    return pods


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[dict[str, str], str]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for column in columns:
            if column not in (reader.fieldnames or ()):
                raise InvalidArgumentError(f"{path}, line 1: no column {column}")
        for row in reader:
            at = f"{path}, line {reader.line_num}"
            if any(row[column] is None for column in columns):
                raise InvalidArgumentError(f"{at}: too few values")
            yield row, at


def _number(row: Mapping[str, str], column: str, at: str) -> int:
    try:
        return int(row[column])
    except ValueError:
        raise InvalidArgumentError(f"{at}: {column} must be a whole number, not {row[column]!r}") from None


def arrivals(
    pods: Sequence[ShareDemand], capacity_milli: int, tune: float, generator: np.random.Generator
) -> list[ShareDemand]:
    """The pods in random order; then more, drawn from them at random, until ``tune`` times the devices are asked for.

    The drawing ends at the first pod that would go beyond. If the pods ask for more than that already, pods drawn at
    random are left out instead. Raises `InvalidArgumentError` if no pod asks for devices.
    """
    target = tune * capacity_milli
    asked = sum(pod.total_milli for pod in pods)
    if asked <= 0:
        raise InvalidArgumentError("pods: none asks for devices")
    queue = [pods[index] for index in generator.permutation(len(pods))]
    while asked > target:
        asked -= queue.pop(int(generator.integers(len(queue)))).total_milli
    while asked < target:
        pod = pods[int(generator.integers(len(pods)))]
        if asked + pod.device_milli > target:
            break
        asked += pod.total_milli
        queue.append(pod)
    return queue


def inflate(pods: Sequence[ShareDemand], cluster: Cluster, policy: str, seed: int, tune: float = 1.3) -> Inflation:
    """Place ``arrivals`` one by one; none ever ends, and one that fits nowhere is refused for good.

    1. The usual classes are taken from ``pods`` (95 % of them).
    2. The nodes are put in random order: among equal scores the first node is taken.
    3. Every pod goes to the best node by ``policy``; after each, load and allocation are noted.
    """
    if policy not in POLICIES:
        raise InvalidArgumentError(f"policy must be one of {', '.join(POLICIES)}, not {policy}")
    generator = np.random.default_rng(seed)
    capacity = sum(cluster.devices) * WHOLE
    queue = arrivals(pods, capacity, tune, generator)
    nodes = cluster.nodes(generator.permutation(len(cluster.devices)))
    score, touched = _scoring(pods, cluster, nodes, policy, generator)
    asked = used = refused = 0
    load = np.zeros(len(queue))
    given = np.zeros(len(queue))
    for index, pod in enumerate(queue):
        place = best(score(pod))
        asked += pod.total_milli
        if place is None:
            refused += 1
        else:
            row, device = place
            nodes.place(row, pod, device)
            touched(row)
            used += pod.total_milli
        load[index], given[index] = asked, used
    return Inflation(policy, seed, curve(load / capacity, given / capacity), len(queue), refused)


def _scoring(
    pods: Sequence[ShareDemand], cluster: Cluster, nodes: SharedNodes, policy: str, generator: np.random.Generator
) -> tuple[Callable[[ShareDemand], Scored], Callable[[int], None]]:
    """Scores of a pod, and whom to tell of a node that changed."""
    if policy == RANDOM:
        return lambda pod: random_place(nodes, pod, generator), lambda _: None
    scores = IncrementalScores(nodes, RULES[policy](TypicalClasses.of(pods, len(cluster.models))))
    return scores.scores, scores.touched


def curve(load: np.ndarray, given: np.ndarray) -> tuple[float, ...]:
    """Mean of ``given`` where ``load`` rounds to 0, 1, ... 130 %, both fractions over arrivals; in percent.

    A load that never was takes the mean over the loads next to it; NaN if those never were either.
    """
    percent = np.rint(load * 100).astype(np.int64)
    values = np.round(given * 100, 2)
    means = []
    for point in range(LAST_LOAD + 1):
        here = percent == point
        if not here.any():
            here = np.abs(percent - point) <= 1
        means.append(round(float(values[here].mean()), 2) if here.any() else float("nan"))
    return tuple(means)


def read_published(path: Path) -> dict[tuple[str, str], dict[int, float]]:
    """Mean over seeds of the published allocation, in percent, by (workload, policy) and load in percent."""
    sums: dict[tuple[str, str], list[dict[int, float]]] = {}
    loads = [str(load) for load in range(LAST_LOAD + 1)]
    for row, at in _rows(path, ("workload", "sc_policy", *loads)):
        try:
            values = {int(load): float(row[load]) for load in loads}
        except ValueError as error:
            raise InvalidArgumentError(f"{at}: {error}") from error
        sums.setdefault((row["workload"], row["sc_policy"]), []).append(values)
    return {
        key: {load: float(np.mean([values[load] for values in runs])) for load in range(LAST_LOAD + 1)}
        for key, runs in sums.items()
    }


def compare(
    expected_csv: Path, results: Mapping[str, Iterable[Inflation]], loads: Sequence[int] = LOADS
) -> list[Comparison]:
    """Our means against the published ones; ``results`` are runs by workload.

    Raises `InvalidArgumentError` for a workload or policy that was not published.
    """
    published = read_published(expected_csv)
    rows = []
    for workload, runs in results.items():
        by_policy: dict[str, list[Inflation]] = {}
        for run in runs:
            by_policy.setdefault(run.policy, []).append(run)
        for policy, ours in sorted(by_policy.items()):
            if (workload, policy) not in published:
                raise InvalidArgumentError(f"{expected_csv}: nothing on {policy} with {workload}")
            rows += [
                Comparison(
                    workload,
                    policy,
                    load,
                    published[workload, policy][load],
                    float(np.mean([run.allocation[load] for run in ours])),
                    len(ours),
                )
                for load in loads
            ]
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; the exit status is 1 if a mean is further off than `TOLERANCE`."""
    parser = argparse.ArgumentParser(prog="python -m simulation.inflation", description="Allocation against FGD's.")
    parser.add_argument("--data", type=Path, required=True, help="folder with openb/ and openb_expected/")
    parser.add_argument("--workload", action="append", help="pod list without .csv (openb_pod_list_default)")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="default: all")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args(arguments)
    expected = options.data / "openb_expected/alloc.csv"
    print(f"{'workload':<28}{'policy':<18}{'load':>5}{'published':>11}{'ours':>8}{'diff':>7}{'s/run':>7}")
    far = 0
    try:
        cluster = read_cluster(options.data / "openb/openb_node_list_gpu_node.csv")
        for workload in options.workload or ["openb_pod_list_default"]:
            pods = read_pods(options.data / f"openb/{workload}.csv", cluster.models)
            for policy in options.policy or POLICIES:
                began = time.perf_counter()
                runs = [inflate(pods, cluster, policy, seed) for seed in range(options.seeds)]
                seconds = (time.perf_counter() - began) / max(len(runs), 1)
                for row in compare(expected, {workload: runs}):
                    far += abs(row.difference) > TOLERANCE
                    print(
                        f"{workload:<28}{policy:<18}{row.load:>5}{row.published:>11.2f}{row.ours:>8.2f}"
                        f"{row.difference:>+7.2f}{seconds:>7.1f}",
                        flush=True,
                    )
    except (InvalidArgumentError, OSError) as error:
        print(f"inflation: {error}", file=sys.stderr)
        return 2
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
