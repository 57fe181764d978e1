"""Trains the model that the graph serves, on all kinds of fault, and exports it with its card and fixtures.

    python -m learning.node_state.train --compared compare.json [--method gnn|mlp]

How well its kind of network does on faults it was not trained on is measured by `learning.node_state.compare`; those figures go into the
card from the file that program wrote. The score here is that on test topologies and series with faults of kinds that were trained on.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learning.node_state.compare import data_folder, with_facts
from learning.node_state.dataset import UNKNOWN_LOAD, snapshots, sources
from learning.node_state.export import exported, record, write_card
from learning.node_state.faults import Kind
from learning.node_state.scores import macro_f1
from learning.node_state.training import answers, calibration, trained
from meridian.result import read
from services.graph.recognition.features import Quantity
from services.graph.recognition.model import SHIPPED

FIXTURE = Path(__file__).resolve().parents[2] / "tests" / "unit" / "graph" / "node_state_answers.npz"


def figures(path: Path) -> dict[str, Any]:
    """What `compare` found, as the card keeps it: macro-F1 on unseen kinds and error of the load, by method."""
    body = read(path)
    kept = [
        {name: row[name] for name in ("subject", "measure", "slice", "value", "low", "high", "n")}
        for row in body["rows"]
        if row["measure"] in {"f1_macro_ratio", "f1_macro_gap_ratio", "mae_ratio"}
    ]
    return {"command": body["command"], "first_seed": body["seed"], "rows": kept}


def reason(compared: dict[str, Any], method: str) -> str:
    """Why this method serves: what the network with neighbours gains over the others on kinds that were not trained on."""
    gaps = [
        f"{row['subject']} {row['value']:+.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        for row in compared["rows"]
        if row["measure"] == "f1_macro_gap_ratio"
    ]
    return f"{method} serves; macro-F1 on kinds that were not trained on: {'; '.join(gaps)}"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m learning.node_state.train", description="Train and export.")
    parser.add_argument("--method", choices=("gnn", "mlp"), default="mlp")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fabrics", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=32)
    parser.add_argument("--compared", type=Path, help="result of learning.node_state.compare, for the card")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--fixture", type=Path, default=FIXTURE)
    options = parser.parse_args()
    compared = figures(options.compared) if options.compared else None
    torch.set_num_threads(1)
    found = sources(data_folder())
    kinds = list(Kind)
    train = snapshots(found, "train", kinds, options.fabrics, options.seed)
    validation = snapshots(found, "validation", kinds, options.fabrics // 4, options.seed)
    test = snapshots(found, "test", kinds, options.fabrics // 4, options.seed)
    network = trained(train, validation, options.seed, neighbours=options.method == "gnn", epochs=options.epochs)
    temperature = calibration(network, validation)
    logits, load = answers(network, test)
    newest = np.concatenate([look.windows[:, -1] for look in test])
    facts = newest[:, [Quantity.SUSPECTED, Quantity.DECLARED_ASLEEP]] == 1.0
    label, truth = (np.concatenate([getattr(look, name) for look in test]) for name in ("label", "load"))
    known = truth != UNKNOWN_LOAD
    options.out.parent.mkdir(parents=True, exist_ok=True)
    exported(network, options.out)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    write_card(
        options.out,
        f"node-state-{options.method}/2",
        temperature,
        {
            "method": options.method,
            "seed": options.seed,
            "commit": commit,
            "command": f"python -m learning.node_state.train --method {options.method} --seed {options.seed} "
            f"--fabrics {options.fabrics} --epochs {options.epochs}",
            "data": {
                "shapes": "Topology Zoo (CC-BY-4.0), simulated faults" if found.real else "generated, simulated faults",
                "loads": "Helios, Earth cluster, 10 virtual clusters" if found.real else "generated",
                "train_nodes": int(sum(len(look.label) for look in train)),
                "split": "topologies by the hash of their family (6:2:2), load series by name (6:2:2)",
            },
            "seen_kinds": {
                "macro_f1": round(macro_f1(label, with_facts(logits.argmax(axis=1), facts)), 4),
                "load_mae": round(float(np.abs(load - truth)[known].mean()), 4),
                "nodes": len(label),
            },
            "unseen_kinds": compared,
            "why": reason(compared, options.method) if compared else "not compared",
            "limits": "Faults, and the metrics of nodes under them, are simulated; no recording of real faults with neighbours was at hand.",
        },
    )
    record(network, options.fixture)
    print(options.out.with_suffix(".card.json").read_text(encoding="utf-8")[:1500])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
