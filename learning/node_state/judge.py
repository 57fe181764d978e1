"""How good is a file that serves, with faults of kinds that were trained on, on topologies and load series that were not?

    python -m learning.node_state.judge [MODEL.onnx ...] [--seeds 3] [--first-seed 901] [--fabrics 50] [--json OUT]

Without a file the one that serves. For each seed as many simulated fabrics of the test split; macro-F1 over six states with the facts
of failover first, the error of the load one interval later, and how often a confidence from which the service lets the model raise
an alarm alone (`Limits.certain`) calls a node degraded or failing: of those that are, and of sound ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from learning.node_state.compare import data_folder, recorded, with_facts
from learning.node_state.dataset import CLASSES, UNKNOWN_LOAD, Snapshot, snapshots, sources
from learning.node_state.faults import Kind
from learning.node_state.scores import interval, macro_f1
from meridian.result import DataSource, Row, Setting, command_line, print_table, write
from services.graph.node_state import NodeState
from services.graph.recognition.features import Quantity
from services.graph.recognition.judgement import ALARMS, Limits
from services.graph.recognition.model import SHIPPED, NodeStateModel
from services.graph.recognition.neighbourhood import neighbourhood


def figures(model: NodeStateModel, looks: list[Snapshot]) -> dict[tuple[str, str], float]:
    """By measure and slice."""
    answers = [
        model.answer(look.windows, neighbourhood(look.switch_of, look.site_of, look.site_links, look.sites))
        for look in looks
    ]
    likely = np.concatenate([answer.probabilities for answer in answers])
    told, sure = np.array(model.card.classes)[likely.argmax(axis=1)], likely.max(axis=1) >= Limits().certain
    facts = np.concatenate([look.windows[:, -1] for look in looks])[:, [Quantity.SUSPECTED, Quantity.DECLARED_ASLEEP]]
    label, truth, kind = (np.concatenate([getattr(look, name) for look in looks]) for name in ("label", "load", "kind"))
    load, known = np.concatenate([answer.load for answer in answers]), truth != UNKNOWN_LOAD
    state = np.array(CLASSES)[label]
    alarm = sure & np.isin(told, [int(each) for each in ALARMS])
    sound = (kind < 0) & np.isin(state, [int(NodeState.HEALTHY), int(NodeState.BUSY)])
    number = np.array([CLASSES.index(each) for each in model.card.classes])[likely.argmax(axis=1)]
    return {
        ("f1_macro_ratio", "all"): macro_f1(label, with_facts(number, facts == 1.0)),
        ("load_mae_ratio", "all"): float(np.abs(load - truth)[known].mean()),
        ("alarm_alone_share", "degraded or failing"): float(
            alarm[np.isin(state, [int(each) for each in ALARMS])].mean()
        ),
        ("alarm_alone_share", "sound nodes"): float(alarm[sound].mean()),
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m learning.node_state.judge", description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, default=[SHIPPED])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=901)
    parser.add_argument("--fabrics", type=int, default=50)
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args()
    found = sources(data_folder())
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    tests = [snapshots(found, "test", list(Kind), options.fabrics, seed) for seed in seeds]
    rows = []
    for path in options.models:
        model = NodeStateModel(path)
        every = [figures(model, looks) for looks in tests]
        for measure, part in every[0]:
            values = [each[measure, part] for each in every]
            low, high = interval(values)
            subject = f"{model.card.name} {model.card.sha256[:8]}"
            rows.append(Row(subject, measure, float(np.mean(values)), part, low, high, n=len(values)))
    print_table(rows)
    if options.json:
        data = [*recorded(data_folder(), found), *(DataSource.of(path) for path in options.models)]
        write(
            options.json, command_line("learning.node_state.judge"), data, options.first_seed, Setting.SIMULATED, rows
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
