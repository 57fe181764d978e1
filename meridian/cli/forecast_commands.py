"""phases: where training stands, and what it asks for."""

from __future__ import annotations

from typing import Any

import click

from meridian.cli.main import Context, json_option
from meridian.cli.output import console, print_json, print_table

_SHOWN = 50


def duration(seconds: float | None) -> str:
    """A time span for people; empty where it is not known."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def phase_line(unit: dict[str, Any]) -> str:
    """The phase of a unit in one line."""
    since = f" since step {unit['since_step']}" if unit["phase"] != "unknown" else ""
    return f"unit {unit['unit_index']}: {unit['phase']}{since}{': ' + unit['reason'] if unit['reason'] else ''}"


@click.command()
@click.argument("job_id")
@json_option
@click.pass_obj
def phases(context: Context, job_id: str) -> None:
    """Show the phase of a training job (warm-up, fast, stable), and what each phase asks for by its schedule."""
    with context.client() as network:
        found = network.phases(job_id)
    if context.as_json:
        print_json(found)
        return
    if not found["units"]:
        console.print("No loss was reported yet.")
    for unit in found["units"][:_SHOWN]:
        console.print(phase_line(unit))
        step = f"step {unit['step']}" + (f" of {unit['total_steps']}" if unit["total_steps"] else "")
        console.print(f"  {step}, {unit['reports']} reports, {unit['reports_left_aside']} left aside")
        if not found["schedule_known"]:
            continue
        print_table(
            ["PHASE", ">STEPS", ">ACCELERATORS BUSY", ">FLOPS", ">TRAINING", ">EVALUATION", ">CHECKPOINTS", ""],
            (
                [
                    need["phase"],
                    f"{need['first_step']}-{need['end_step']}",
                    f"{need['mean_busy_share'] * need['accelerators']:.1f} of {need['accelerators']:g}",
                    "" if need["flops"] is None else f"{need['flops']:.3g}",
                    duration(need["training_s"]),
                    duration(need["evaluation_s"]),
                    duration(need["checkpoint_s"]),
                    "" if need["told"] else "to come",
                ]
                for need in unit["demand"]
            ),
            empty="",
        )
    if not found["schedule_known"]:
        console.print(
            "The job declares no steps and batch in its section `model`: what its phases ask for is not known."
        )
