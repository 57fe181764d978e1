"""Does the network earn its place? Every fault kind is left out of training once; topologies and load series are split too.

    python -m learning.node_state.compare --seeds 5 --json OUT

For each seed and each of the three folds of kinds: training on the other kinds, training topologies and series; the epoch is
chosen on validation topologies with the same kinds; tested on test topologies and series with the kinds left out. The
answers of the folds are pooled per seed, so that all states occur; the table gives the mean over seeds with its bootstrap interval.
As in the service, facts come before every method (`with_facts`): a node that failover suspects is unreachable, one that was
declared asleep is asleep; the slice "without facts" gives each method's own word.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from learning.node_state import rivals
from learning.node_state.dataset import CLASSES, UNKNOWN_LOAD, Snapshot, Sources, snapshots, sources
from learning.node_state.faults import FOLDS, Kind
from learning.node_state.loads import SERIES_FILE
from learning.node_state.scores import f1_scores, interval, macro_f1
from learning.node_state.training import answers, trained
from meridian.result import DataSource, Row, Setting, command_line, print_table, write
from services.graph.node_state import NodeState
from services.graph.recognition.features import Quantity

METHODS = ("gnn", "mlp", "boosting on 1-hop means", "rule")
# Those that can be served, each compared with the methods after it.
LEARNED = ("gnn", "mlp")
LOADS = ("gnn", "mlp", "linear", "persistence")


@dataclass(slots=True)
class Pool:
    """Truth and answers of one seed, fold after fold."""

    truth: list[npt.NDArray[np.int64]] = field(default_factory=list)
    kind: list[npt.NDArray[np.int64]] = field(default_factory=list)
    facts: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    answer: dict[str, list[npt.NDArray[np.int64]]] = field(default_factory=lambda: {name: [] for name in METHODS})
    load_truth: list[npt.NDArray[np.float32]] = field(default_factory=list)
    load: dict[str, list[npt.NDArray[np.float32]]] = field(default_factory=lambda: {name: [] for name in LOADS})

    def states(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Truth and what would be served by a method."""
        return np.concatenate(self.truth), with_facts(np.concatenate(self.answer[name]), np.concatenate(self.facts))


def with_facts(answer: npt.NDArray[np.int64], facts: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """``facts [nodes, 2]``: suspected by failover, declared asleep."""
    answer = np.where(facts[:, 1], CLASSES.index(NodeState.ASLEEP), answer)
    return np.where(facts[:, 0], CLASSES.index(NodeState.UNREACHABLE), answer)


def play(found: Sources, seed: int, fabrics: int, epochs: int) -> Pool:
    """All folds of one seed."""
    pool = Pool()
    for number, unseen in enumerate(FOLDS):
        seen = [kind for kind in Kind if kind not in unseen]
        began_s = time.process_time()
        train = snapshots(found, "train", seen, fabrics, 1000 * seed + number)
        validation = snapshots(found, "validation", seen, fabrics // 4, 1000 * seed + number)
        test = snapshots(found, "test", sorted(unseen), fabrics // 2, 1000 * seed + number)
        facts = np.concatenate([look.windows[:, -1] for look in test])
        networks = {
            name: trained(train, validation, seed, neighbours=name == "gnn", epochs=epochs) for name in ("gnn", "mlp")
        }
        for name, network in networks.items():
            logits, load = answers(network, test)
            pool.answer[name].append(logits.argmax(axis=1))
            pool.load[name].append(load)
        machine = rivals.boosted([*train, *validation], seed)
        pool.answer["boosting on 1-hop means"].append(machine.predict(rivals.table(test)).astype(np.int64))
        pool.answer["rule"].append(rivals.by_rule(test))
        pool.load["linear"].append(rivals.LinearLoad(train)(test))
        pool.load["persistence"].append(rivals.persistence(test))
        pool.facts.append(facts[:, [Quantity.SUSPECTED, Quantity.DECLARED_ASLEEP]] == 1.0)
        pool.truth.append(_all(test, "label"))
        pool.kind.append(_all(test, "kind"))
        pool.load_truth.append(_all(test, "load"))
        shown = {name: round(macro_f1(pool.truth[-1], pool.answer[name][-1]), 3) for name in METHODS}
        print(f"seed {seed} fold {number}: {shown} {time.process_time() - began_s:.0f} s", flush=True)
    return pool


def kept(pool: Pool) -> dict[str, npt.NDArray[np.generic]]:
    """A pool as plain arrays, fold after fold put together."""
    plain = {"truth": pool.truth, "kind": pool.kind, "facts": pool.facts, "load_truth": pool.load_truth}
    plain |= {f"answer {name}": values for name, values in pool.answer.items()}
    plain |= {f"load {name}": values for name, values in pool.load.items()}
    return {name: np.concatenate(values) for name, values in plain.items()}


def restored(arrays: Mapping[str, npt.NDArray[np.generic]]) -> Pool:
    """The pool of `kept`."""
    pool = Pool()
    for name in ("truth", "kind", "facts", "load_truth"):
        getattr(pool, name).append(arrays[name])
    for name in METHODS:
        pool.answer[name].append(arrays[f"answer {name}"])
    for name in LOADS:
        pool.load[name].append(arrays[f"load {name}"])
    return pool


def played(found: Sources, seed: int, fabrics: int, epochs: int, folder: Path | None) -> Pool:
    """One seed, from ``folder`` where it was played before with the same sizes."""
    if folder is None:
        return play(found, seed, fabrics, epochs)
    path = folder / f"seed-{seed}-{fabrics}-{epochs}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **kept(play(found, seed, fabrics, epochs)))
    with np.load(path) as arrays:
        return restored(arrays)


def _all(looks: Sequence[Snapshot], name: str) -> npt.NDArray[np.generic]:
    return np.concatenate([getattr(look, name) for look in looks])


def rows_of(pools: Sequence[Pool]) -> list[Row]:
    """The table: macro-F1 over all and over nodes with a fault, F1 per state, error of the load."""
    rows = []
    for name in METHODS:
        scores: dict[str, list[float]] = {"all": [], "without facts": [], "nodes with a fault": []}
        for pool in pools:
            truth, answer = pool.states(name)
            scores["without facts"].append(macro_f1(truth, np.concatenate(pool.answer[name])))
            struck = np.concatenate(pool.kind) >= 0
            sound = ~struck & (truth <= CLASSES.index(NodeState.BUSY))
            alarmed = np.isin(answer, [CLASSES.index(NodeState.DEGRADED), CLASSES.index(NodeState.FAILING)])
            scores.setdefault("false alarms", []).append(float(alarmed[sound].mean()))
            scores["all"].append(macro_f1(truth, answer))
            scores["nodes with a fault"].append(macro_f1(truth[struck], answer[struck]))
            for state, value in zip(CLASSES, f1_scores(truth, answer), strict=True):
                scores.setdefault(f"state={state.name.lower()}", []).append(float(value))
            for kind in Kind:
                at = np.concatenate(pool.kind) == list(Kind).index(kind)
                right = float((truth[at] == answer[at]).mean()) if at.any() else float("nan")
                scores.setdefault(f"accuracy at {kind.value}", []).append(right)
        for part, values in scores.items():
            measure = "accuracy_ratio" if part.startswith("accuracy") else "f1_macro_ratio"
            if part.startswith("state="):
                measure = "f1_ratio"
            elif part == "false alarms":
                measure, part = "false_alarm_ratio", "sound nodes"  # noqa: PLW2901 - the name in the table
            rows.append(_row(name, measure, part, values, baseline=name != "gnn"))
    for name in LOADS:
        errors = []
        for pool in pools:
            truth = np.concatenate(pool.load_truth)
            known = truth != UNKNOWN_LOAD
            errors.append(float(np.abs(np.concatenate(pool.load[name]) - truth)[known].mean()))
        rows.append(_row(f"load: {name}", "mae_ratio", "all", errors, baseline=name != "gnn"))
    for number, better in enumerate(LEARNED):
        for name in (other for other in METHODS if other not in LEARNED[: number + 1]):
            gap = [macro_f1(*pool.states(better)) - macro_f1(*pool.states(name)) for pool in pools]
            rows.append(_row(f"{better} less {name}", "f1_macro_gap_ratio", "all", gap, baseline=False))
    return rows


def _row(subject: str, measure: str, part: str, values: Sequence[float], *, baseline: bool) -> Row:
    low, high = interval(values)
    return Row(subject, measure, float(np.mean(values)), part, low, high, n=len(values), baseline=baseline)


def data_folder() -> Path | None:
    """The folder that MERIDIAN_DATA names, None where none is named or it is not there."""
    named = os.environ.get("MERIDIAN_DATA")
    return Path(named) if named and Path(named).is_dir() else None


def recorded(folder: Path | None, found: Sources) -> list[DataSource]:
    """The recorded data that ``found`` was made of: the load series, and all topologies as one (names and contents in order)."""
    if folder is None or not found.real:
        return []
    digest = hashlib.sha256()
    for path in sorted((folder / "net/topologyzoo").glob("*.gml")):
        digest.update(f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return [
        DataSource.of(folder / "figures" / SERIES_FILE),
        DataSource("topologyzoo", digest.hexdigest()),
    ]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m learning.node_state.compare", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument(
        "--fabrics", type=int, default=100, help="simulated fabrics for training; half as many for the test"
    )
    parser.add_argument("--epochs", type=int, default=32)
    parser.add_argument(
        "--keep", type=Path, help="folder for the answers of each seed; seeds found there are not played again"
    )
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = sources(data_folder())
    print(f"{len(found.shapes)} topologies, {len(found.series)} load series, recorded: {found.real}", flush=True)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows = rows_of([played(found, seed, options.fabrics, options.epochs, options.keep) for seed in seeds])
    print_table(rows)
    if options.json:
        command = command_line("learning.node_state.compare")
        write(options.json, command, recorded(data_folder(), found), options.first_seed, Setting.SIMULATED, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
