"""`meridian evaluate cost-model`: how far off the cost model is on measured runs. Method: docs/cost-model.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meridian.cli.evaluation import SHOWN, USER_FILE, one_thread, refused, result_option, write_result
from meridian.result import Row, print_table

if TYPE_CHECKING:
    from services.forecast.cost_model.evaluation.runs import Run
    from services.forecast.cost_model.evaluation.table import Rejected

# Times what is predicted: rather another unit than slow software.
_SLOW = 100


@click.command("cost-model")
@click.argument("rows_path", metavar="ROWS.csv", type=USER_FILE)
@click.option(
    "--calibrate",
    "probes",
    type=click.IntRange(0, 64),
    default=3,
    show_default=True,
    help="Runs of each group that calibrate: those that tell most of its others, whatever they take; they are not scored.",
)
@click.option(
    "--measure",
    "only_choose",
    is_flag=True,
    help="Name the runs of each group to measure, as many as calibrate, the one that tells most first; and stop.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of the drawings: in each, four random runs of a group for each that calibrates (at most 80 %) can be chosen.",
)
@result_option
@click.option("--rows", "list_rows", is_flag=True, help="Also list each run: predicted, measured, what was derived.")
def cost_model(rows_path: Path, probes: int, only_choose: bool, seed: int, out: Path | None, list_rows: bool) -> None:
    """Predict the step time and memory of each run in ROWS.csv and compare with what was measured.

    Columns: accelerator, n_accel, seq, tp, pp, vpp, dp, cp, ep, mbs, gbs, precision, recompute, step_s, mem_gib ("oom"
    where it ran out), group; the model as `model` (a name of the catalogue, or the path of a Hugging Face config.json) or
    as layers, hidden, heads, kv_heads, ffn, gated, vocab, tied (1 where input and output embedding are one), experts, top_k.
    Optional: recompute_share (of the layers), zero, gradients (fp32, bf16+fp32, bf16 or both: docs/cost-model.md),
    stage_layers (of each pipeline stage: 16;16;16;13), context (how chips that share a sequence come to its keys: ring, gather or
    exchange), repeated_keys (1 where they are repeated for all heads before), sp, attention (unfused, fused, or a generation of FlashAttention: flash1, flash2, flash3), eager (1 where norms, rotary
    embedding and activation are not fused), captured (1 where a step is one CUDA graph), expert_overlap (1 where the
    exchange with experts overlaps computation), dispatch_once (0 where a token is sent to each of its experts instead of
    once to each chip), fused_experts (1 where one kernel runs an expert), fabric_gbps (GB/s per accelerator between nodes),
    node_size, memory_gbps (GB/s of an accelerator's memory), power_w (where it is held below what the chip may draw). Other
    columns are named and not used.
    """
    one_thread()
    import numpy as np

    from services.forecast.cost_model.efficiency import fitted
    from services.forecast.cost_model.evaluation.report import rows_of
    from services.forecast.cost_model.evaluation.runs import runs_of
    from services.forecast.cost_model.evaluation.table import read_table

    table = read_table(rows_path)
    if table.unused:
        click.echo(f"columns that are not used: {', '.join(table.unused)}", err=True)
    runs, rejected = runs_of(table, rows_path.parent)
    _say_what_was_left_aside(rejected)
    if not runs:
        raise refused("ROWS.csv", f"{rows_path.name}: none of {len(rejected)} rows can be used")
    _say_what_was_assumed(runs)
    _say_what_is_slow(runs)
    if only_choose:
        _say_what_to_measure(runs, probes)
        return
    rows = rows_of(runs, rejected, fitted(), probes, np.random.default_rng(seed))
    write_result(out, [rows_path], seed, rows)
    if list_rows:
        _list(runs)
    print_table([row for row in rows if row.value is not None or row.slice == "all"])


def _say_what_was_left_aside(rejected: list[Rejected]) -> None:
    for item in rejected[:SHOWN]:
        click.echo(f"line {item.line} is left aside: {item.reason}", err=True)
    if len(rejected) > SHOWN:
        counts = Counter(field for item in rejected for field in (item.fields or ("row",)))
        fields = ", ".join(f"{field} {count}" for field, count in counts.most_common())
        lines = " ".join(str(item.line) for item in rejected[SHOWN:])
        click.echo(f"and {len(rejected) - SHOWN} more ({fields}): lines {lines}", err=True)


def _say_what_was_assumed(runs: list[Run]) -> None:
    from services.forecast.cost_model.estimate import assumptions_of

    derived = Counter(name for run in runs for name in run.derived)
    for name, count in sorted(derived.items()):
        click.echo(f"{name}: derived in {count} of {len(runs)} rows", err=True)
    assumed = Counter(note for run in runs for note in assumptions_of(run.shape, run.layout, run.machine))
    for note, count in sorted(assumed.items()):
        click.echo(f"{note} ({count} rows)", err=True)


def _say_what_is_slow(runs: list[Run]) -> None:
    from services.forecast.cost_model.efficiency import fitted
    from services.forecast.cost_model.evaluation.scores import predicted_steps

    timed = [(run, run.step_s) for run in runs if run.step_s is not None]
    predicted = predicted_steps([run for run, _ in timed], fitted())
    slow = [
        f"line {run.line}: {measured:,.6g} s measured, {expected:.3g} s predicted: is step_s in seconds?"
        for (run, measured), expected in zip(timed, predicted, strict=True)
        if measured > _SLOW * expected
    ]
    for text in slow[:SHOWN]:
        click.echo(text, err=True)
    if len(slow) > SHOWN:
        click.echo(f"and {len(slow) - SHOWN} more rows that took more than {_SLOW} times what is predicted", err=True)


def _say_what_to_measure(runs: list[Run], count: int) -> None:
    from services.forecast.cost_model.efficiency import fitted
    from services.forecast.cost_model.evaluation.scores import to_measure

    for group, positions in to_measure(runs, fitted(), count).items():
        chosen = ", ".join(f"line {runs[position].line} ({runs[position].model})" for position in positions)
        click.echo(f"{group or 'all rows'}: {chosen}")


def _list(runs: list[Run]) -> None:
    from services.forecast.cost_model.estimate import estimate

    rows = []
    for run in runs:
        found = estimate(run.shape, run.layout, run.machine)
        name = f"line={run.line}"
        rows.append(Row(run.model, "predicted_step_s", found.step.total_s, name))
        if run.step_s is not None:
            rows.append(Row(run.model, "measured_step_s", run.step_s, name))
        rows.append(Row(run.model, "predicted_memory_gib", found.memory.total / 2**30, name))
        if run.memory_bytes is not None:
            rows.append(Row(run.model, "measured_memory_gib", run.memory_bytes / 2**30, name))
    print_table(rows)
