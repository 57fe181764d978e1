"""phases, waveform, advice: where training stands, what planned jobs ask for and cost, when work should shift."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import click

from meridian.cli.amounts import Amount
from meridian.cli.job_files import read_job_file
from meridian.cli.main import Context, json_option
from meridian.cli.output import console, money, parse_time, print_json, print_table
from meridian.cli.yaml_files import read_yaml
from meridian.errors import InvalidArgumentError

_SHOWN = 50


def duration(seconds: float | None) -> str:
    """A time span for people; empty where it is not known."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _moment(text: str | None) -> str:
    """A day and time of day, in the local zone."""
    moment = parse_time(text)
    return "" if moment is None else moment.astimezone().strftime("%m-%d %H:%M")


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


_PLAN = click.Path(exists=True, dir_okay=False, path_type=Path)
_PLANNED = {"job", "start", "after", "copies"}


def read_plan(path: Path) -> list[dict[str, Any]]:
    """The planned jobs of a file: a job file, or a mapping ``planned`` of a list of ``{job, start, after, copies}``.

    ``job`` is the job itself or the path of its file, relative to the plan. InvalidArgumentError names the place.
    """
    content = read_yaml(path)
    if not isinstance(content, dict) or set(content) != {"planned"}:
        return [{"job": read_job_file(path)}]
    if not isinstance(content["planned"], list):
        raise InvalidArgumentError(f"{path}: planned is a list")
    found = []
    for place, item in enumerate(content["planned"]):
        where = f"{path}: planned[{place}]"
        if not isinstance(item, dict) or "job" not in item or set(item) - _PLANNED:
            raise InvalidArgumentError(f"{where} has a job and at most start, after and copies")
        job = item["job"]
        if isinstance(job, str):
            file = path.parent / job
            if not file.is_file():
                raise InvalidArgumentError(f"{where}.job: there is no file {file}")
            job = read_job_file(file)
        start = item.get("start")
        if start is not None:
            if not isinstance(start, str | date):
                raise InvalidArgumentError(f"{where}.start: {start!r} is no time such as 2026-11-21T10:00:00Z")
            start = start if isinstance(start, str) else start.isoformat()
        found.append({**item, "job": job, "start": start})
    return found


def _amount(band: dict[str, float] | None, currency: str) -> str:
    if band is None:
        return ""
    low, high = (money({"micro_units": round(band[end]), "currency": currency}) for end in ("low", "high"))
    return f"{money({'micro_units': round(band['expected']), 'currency': currency})} ({low} to {high})"


@click.command()
@click.argument("files", nargs=-1, required=True, type=_PLAN)
@click.option("--domain", help="Only what this domain offers.")
@click.option("--window", "window_s", type=Amount(60, 7 * 86_400), help="Seconds of a window of the curve.")
@json_option
@click.pass_obj
def waveform(context: Context, files: tuple[Path, ...], domain: str | None, window_s: float | None) -> None:
    """Show what planned jobs ask for and cost over time, with 80 % bands, before any is submitted.

    FILES are job files, or plans: planned: [{job: FILE, start: TIME, after: [NAME], copies: N}].
    """
    plan = [item for file in files for item in read_plan(file)]
    with context.client() as network:
        found = network.waveform(plan, domain=domain, window_s=window_s)
    if context.as_json:
        print_json(found)
        return
    print_table(
        ["", "DOMAIN", "ACCELERATOR", ">PEAK", ">ACCELERATOR-HOURS", "COST", ">ENDS AFTER", "NOT KNOWN"],
        (
            [
                "best" if place == found["best"] else "",
                offer["domain_id"],
                offer["accelerator_type"],
                f"{offer['peak_accelerators']['high']:.0f}" if offer["peak_accelerators"] else "",
                _band(offer["accelerator_hours"]),
                _amount(offer["cost_micro_units"], offer["currency"]),
                duration(offer["end_s"]["expected"]) if offer["end_s"] else "",
                "; ".join(f"{item['name']}: {item['reason']}" for item in offer["unknown"][:3]),
            ]
            for place, offer in enumerate(found["offers"])
        ),
        empty="No domain offers accelerators.",
    )
    if found["best"] is None:
        return
    offer = found["offers"][found["best"]]
    console.print()
    for job in offer["jobs"]:
        time = job["run_time_s"]
        console.print(
            f"{job['name']}: {job['accelerators']:g} accelerators for {duration(time['expected'])} "
            f"({duration(time['low'])} to {duration(time['high'])}), from {job['rests_on']}",
            markup=False,
        )
    if window_s is not None and found["window_s"] > window_s:
        console.print(
            f"The plan is too long for windows of {duration(window_s)}: they are of {duration(found['window_s'])}."
        )
    top = max((item["accelerators"]["high"] for item in found["curve"]), default=0.0) or 1.0
    print_table(
        ["FROM", "", ">ACCELERATORS", ">80 %", "SPENT BY ITS END"],
        (
            [
                _moment(item["start"]),
                "█" * round(20 * item["accelerators"]["expected"] / top),
                f"{item['accelerators']['expected']:.1f}",
                f"{item['accelerators']['low']:.0f}-{item['accelerators']['high']:.0f}",
                _amount(item["cost_micro_units"], offer["currency"]),
            ]
            for item in found["curve"]
        ),
        empty="",
    )


def _band(band: dict[str, float] | None) -> str:
    return "" if band is None else f"{band['expected']:.1f} ({band['low']:.1f}-{band['high']:.1f})"


@click.command()
@click.argument("domain")
@click.argument("files", nargs=-1, type=_PLAN)
@click.option("--hours", type=Amount(0, 336, min_open=True), default=24.0, show_default=True)
@json_option
@click.pass_obj
def advice(context: Context, domain: str, files: tuple[Path, ...], hours: float) -> None:
    """Show a domain's peaks and valleys to come, which waiting jobs (and planned ones in FILES) could shift, and what it saves."""
    planned = [item for file in files for item in read_plan(file)]
    with context.client() as network:
        found = network.advice(domain, planned=planned, hours=hours)
    if context.as_json:
        print_json(found)
        return
    basis = f"the daily profile of {found['history_days']} days" if found["history_days"] else "the present level"
    console.print(f"{domain}: {found['capacity_accelerators']:g} accelerators; expected load by {basis}")
    for name in ("peaks", "valleys"):
        for item in found[name][:10]:
            console.print(
                f"  {name[:-1]} {_moment(item['start'])} to {_moment(item['end'])}: {item['accelerators']:.1f} accelerators"
            )
    print_table(
        ["JOB", "TENANT", ">ACCELERATORS", ">RUN TIME", "START AT", ">LATER BY", "DEADLINE"],
        (
            [
                item["job_id"],
                item["tenant_id"],
                f"{item['accelerators']:g}",
                duration(item["run_time_s"]["expected"]),
                _moment(item["advised_start"]),
                duration(item["delay_s"]),
                _moment(item["deadline"]),
            ]
            for item in found["moves"]
        ),
        empty="No job should start later.",
    )
    for item in found["fixed"][:10]:
        console.print(f"  {item['job_id']} cannot shift: {item['reason']}", markup=False)
    saves = found["saves"]
    worth = ""
    if saves["micro_units"] is not None:
        worth = f", worth {money({'micro_units': saves['micro_units'], 'currency': saves['currency']})}"
    console.print(
        f"as submitted: peak {found['as_submitted']['peak_accelerators']:.1f}, "
        f"{found['as_submitted']['above_capacity_accelerator_hours']:.1f} accelerator-hours above the capacity; "
        f"as advised: peak {found['as_advised']['peak_accelerators']:.1f}, "
        f"{saves['above_capacity_accelerator_hours']:.1f} accelerator-hours fewer above it{worth}"
    )
