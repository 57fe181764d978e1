"""submit, jobs, job, logs, explain, cancel, trace."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meridian.cli.amounts import Amount
from meridian.cli.job_files import read_job_file
from meridian.cli.main import FAILED, Context, json_option
from meridian.cli.output import age, bar, clock, console, plain, print_json, print_table, state

if TYPE_CHECKING:
    from meridian.client import Client


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--wait", "-w", is_flag=True, help="Show progress until the job is final; exit code 1 unless it succeeds."
)
@click.option("--timeout", "timeout_s", type=Amount(), help="With --wait: give up after so many seconds.")
@click.option("--idempotency-key", help="Submitting again with the same key gives the same job.")
@click.option("--what-if", is_flag=True, help="Only ask where it would go now; nothing is submitted.")
@json_option
@click.pass_obj
def submit(
    context: Context, file: Path, wait: bool, timeout_s: float | None, idempotency_key: str | None, what_if: bool
) -> None:
    """Submit the job that FILE (YAML) describes."""
    spec = read_job_file(file)
    with context.client() as network:
        if what_if:
            print_json(network.post("/v1/what-if", spec))
            return
        job = network.submit(spec, idempotency_key=idempotency_key)
        if not context.as_json:
            console.print(f"submitted [bold]{job['job_id']}[/bold] ({plain(job['name'])}, {job['kind']})")
        if wait:
            job = follow(network, job["job_id"], quiet=context.as_json, timeout_s=timeout_s)
    if context.as_json:
        print_json(job)
    if wait and job["state"] != "succeeded":
        sys.exit(FAILED)


def follow(network: Client, job_id: str, *, quiet: bool = False, timeout_s: float | None = None) -> dict[str, Any]:
    """Wait for a job with a live progress bar."""
    if quiet:
        return network.wait(job_id, timeout_s=timeout_s)
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.fields[state]:<10}"),
        BarColumn(30),
        TextColumn("{task.fields[what]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=False) as progress:
        task = progress.add_task("", total=1.0, state="submitted", what="")

        def show(job: dict[str, Any]) -> None:
            progress.update(task, completed=job["progress"] or 0.0, state=job["state"], what=_what(job))

        job = network.wait(job_id, on_change=show, timeout_s=timeout_s)
    console.print(state(job["state"]), plain(job["reason"]))
    return job


def _what(job: dict[str, Any]) -> str:
    if job["units_total"] > 1:
        return f"{job['units_succeeded']} of {job['units_total']} units"
    for unit in job.get("units", [])[:1]:
        parts = []
        if unit["total_steps"]:
            parts.append(f"step {unit['step']}/{unit['total_steps']}")
        parts += [f"{name} {value:.4g}" for name, value in sorted(unit["metrics"].items())]
        if unit["domains"]:
            parts.append(f"in {', '.join(unit['domains'])}")
        return "  ".join(parts)
    return ""


@click.command()
@click.option("--state", "wanted", help="Only jobs in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@json_option
@click.pass_obj
def jobs(context: Context, wanted: str | None, limit: int) -> None:
    """List jobs, newest first."""
    with context.client() as network:
        found = list(network.jobs(state=wanted, limit=limit))
    if context.as_json:
        print_json(found)
        return
    print_table(
        ["JOB", "NAME", "KIND", "STATE", "PROGRESS", ">UNITS", ">RESTARTS", ">AGE", "REASON"],
        (
            [
                item["job_id"],
                item["name"],
                item["kind"],
                state(item["state"]),
                bar(item["progress"], 12),
                f"{item['units_succeeded']}/{item['units_total']}",
                item["restarts"],
                age(item["submitted_at"]),
                item["reason"],
            ]
            for item in found
        ),
        empty="No jobs.",
    )


@click.command()
@click.argument("job_id")
@click.option("--watch", "-w", is_flag=True, help="Show progress until the job is final.")
@json_option
@click.pass_obj
def job(context: Context, job_id: str, watch: bool) -> None:
    """Show one job: its units, where they run, and what happened."""
    with context.client() as network:
        if watch:
            follow(network, job_id, quiet=context.as_json)
        found = network.job(job_id)
        training = [] if context.as_json else _training(network, found)
    if context.as_json:
        print_json(found)
        return
    console.print(
        f"[bold]{found['job_id']}[/bold]  {plain(found['name'])}  ({found['kind']}, tenant {found['tenant_id']})"
    )
    console.print(state(found["state"]), bar(found["progress"], 30), plain(found["reason"]))
    console.print()
    print_table(
        ["UNIT", "STATE", ">EPOCH", "WHERE", ">STEP", "METRICS", "CHECKPOINT", "REASON"],
        (
            [
                unit["name"] or unit["unit_index"],
                state(unit["state"]),
                unit["epoch"],
                ", ".join(dict.fromkeys(rank["node_id"] for rank in unit["placement"])),
                f"{unit['step']}/{unit['total_steps']}" if unit["total_steps"] else "",
                " ".join(f"{name}={value:.5g}" for name, value in sorted(unit["metrics"].items())),
                f"step {unit['checkpoint']['step']}" if unit["checkpoint"] else "",
                unit["reason"],
            ]
            for unit in found["units"][:50]
        ),
        empty="",
    )
    for line in training:
        console.print(f"training, {line}")
    if found["units_total"] > 50:
        console.print(f"... and {found['units_total'] - 50} more units")
    console.print()
    for entry in found["timeline"][-30:]:
        console.print(f"  {clock(entry['at'])}  {entry['what']:<18} {plain(entry.get('detail'))}", soft_wrap=True)


def _training(network: Client, job: dict[str, Any]) -> list[str]:
    """Lines about the phases of a job that reports a loss; none where forecast does not answer."""
    from meridian.cli.forecast_commands import phase_line
    from meridian.client import ApiError

    if not any(unit["metrics"] for unit in job["units"]):
        return []
    try:
        return [phase_line(unit) for unit in network.phases(job["job_id"])["units"][:50]]
    except ApiError:
        return []


@click.command()
@click.argument("job_id")
@click.option("--unit", default=0, show_default=True)
@click.option("--rank", default=0, show_default=True)
@click.option("--follow", "-f", "following", is_flag=True, help="Wait for more until the run has ended.")
@click.pass_obj
def logs(context: Context, job_id: str, unit: int, rank: int, following: bool) -> None:
    """Print what a rank has written."""
    offset = 0
    with context.client() as network:
        while True:
            piece = network.log(job_id, unit=unit, rank=rank, offset=offset)
            sys.stdout.write(piece["text"])
            sys.stdout.flush()
            moved = piece["next_offset"] > offset
            offset = piece["next_offset"]
            if not moved and (piece["complete"] or not following):
                return
            if not moved:
                time.sleep(0.3)


@click.command()
@click.argument("job_id")
@click.option("--unit", type=click.IntRange(0), help="Only this unit.")
@click.option("--counterfactuals", is_flag=True, help="Also what would have to be otherwise; takes longer.")
@json_option
@click.pass_obj
def explain(context: Context, job_id: str, unit: int | None, counterfactuals: bool) -> None:
    """Say why a job is where it is, or why it waits, for whom and until when."""
    with context.client() as network:
        found = network.explanation(job_id, unit=unit, counterfactuals=counterfactuals)
    if context.as_json:
        print_json(found)
        return
    from meridian.cli.explanation import print_explanation

    print_explanation(found)


@click.command()
@click.argument("job_id")
@json_option
@click.pass_obj
def trace(context: Context, job_id: str) -> None:
    """Show every event of a job, from all services, in order."""
    with context.client() as network:
        found = network.trace(job_id)
    if context.as_json:
        print_json(found)
        return
    console.print(f"trace {', '.join(found['trace_ids'])}")
    print_table(
        ["TIME", "EVENT", "FROM", "TOPIC", "RUN"],
        (
            [clock(item["time"]), item["type"], item["source"], item["topic"], item["data"].get("run_id", "")]
            for item in found["events"]
        ),
        empty="No event yet.",
    )


@click.command()
@click.argument("job_id")
@click.option("--reason", default="", help="Why.")
@json_option
@click.pass_obj
def cancel(context: Context, job_id: str, reason: str) -> None:
    """Cancel a job."""
    with context.client() as network:
        found = network.cancel(job_id, reason)
    if context.as_json:
        print_json(found)
    else:
        console.print(f"{job_id}: cancellation requested (now {found['state']})")
