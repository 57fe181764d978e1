"""`meridian demo`: the main job of the network, from start to end, with what a person should see.

1. Start the embedded network: five emulated domains.
2. Submit the training job of examples/train_transformer over REST; it is placed and runs as real processes.
3. When a checkpoint exists, kill a node that holds ranks.
4. Watch: failure detected, run fenced, placed again with the next epoch, resumed from the checkpoint, finished.
5. Check that the job succeeded after exactly one resumption, and that no step of the loss curve is missing.
6. Show the explanation, the trace and the timeline; stop everything.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meridian.cli.explanation import print_explanation
from meridian.cli.job_files import read_job_file
from meridian.cli.main import Context
from meridian.cli.output import clock, console, parse_time, plain, print_json, print_table
from meridian.errors import NotFoundError

if TYPE_CHECKING:
    from meridian.client import Client, Json

EXAMPLE = Path("examples") / "train_transformer" / "job.yaml"
KILL_AFTER_STEP = 40
PATIENCE_S = 300.0
"""Ceiling of each wait: the demo shall end on a busy machine too, and one that hangs shall not last."""


def _example() -> Path:
    for folder in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (folder / EXAMPLE).is_file():
            return folder / EXAMPLE
    raise NotFoundError(f"{EXAMPLE} was not found; run the demo in the project's folder")


@contextmanager
def _network(context: Context, *, keep: bool) -> Iterator[Client]:
    from meridian.embedded import stack

    started = time.monotonic()
    _say("starting a network of five emulated domains on this machine")
    ready = False
    try:
        with stack.running(stack.StackOptions(context.data_dir), keep=keep) as running:
            ready = True
            _say(f"ready after {time.monotonic() - started:.1f} s, gateway at {running.urls['gateway']}")
            with context.client(patience_s=60.0) as network:
                yield network
    finally:
        if ready:
            stays = stack.is_up(context.data_dir)
            _say("the network keeps running; stop it with `meridian down`" if stays else "everything is stopped")


def _say(text: str) -> None:
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim]  {text}", soft_wrap=True)


def run_demo(context: Context, *, keep: bool) -> bool:
    """Run the demo; True when the job was resumed once and succeeded."""
    example = _example()
    with _network(context, keep=keep) as network:
        _wait_for_nodes(network)
        _show_domains(network)
        submitted_s = time.monotonic()
        job_id = network.submit(read_job_file(example))["job_id"]
        _say(f"submitted {example.name} as [bold]{job_id}[/bold]")
        before = _until(network, job_id, lambda unit: unit["step"] > 0)
        _say(f"first step {time.monotonic() - submitted_s:.1f} s after submission, on {_where(before)}")
        victim_unit = _until(
            network, job_id, lambda unit: unit["checkpoint"] is not None and unit["step"] >= KILL_AFTER_STEP
        )
        victim = victim_unit["placement"][-1]["node_id"]
        _say(
            f"step {victim_unit['step']}: killing node [bold]{victim}[/bold] (newest checkpoint: step {victim_unit['checkpoint']['step']})"
        )
        killed_s = time.monotonic()
        network.kill_node(victim)
        resumed = _until(
            network, job_id, lambda unit: unit["epoch"] > victim_unit["epoch"] and unit["state"] == "running"
        )
        first = _until(network, job_id, lambda unit: unit["epoch"] > victim_unit["epoch"] and unit["step"] > 0)
        _say(
            f"first step of the resumed run {time.monotonic() - killed_s:.1f} s after the kill, on {_where(resumed)} (step {first['step']})"
        )
        job = _with_last_step(network, _watch(network, job_id))
        _report(network, job)
        return _verdict(context, network, job, victim_unit["epoch"])


def _wait_for_nodes(network: Client) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        nodes = network.nodes()
        if len({node["domain_id"] for node in nodes}) >= 5:
            return
        time.sleep(0.2)
    raise TimeoutError(f"not all domains have joined within {PATIENCE_S:g} s")


def _show_domains(network: Client) -> None:
    print_table(
        ["DOMAIN", "REGION", ">NODES", ">ACCELERATORS"],
        ([item["domain_id"], item["region"], item["nodes"], item["accelerators"]] for item in network.domains()),
        empty="",
    )


def _where(unit: Json) -> str:
    ranks: dict[str, int] = {}
    for rank in unit["placement"]:
        ranks[rank["node_id"]] = ranks.get(rank["node_id"], 0) + 1
    return ", ".join(f"{node} ({count} rank{'s' * (count > 1)})" for node, count in ranks.items())


def _until(network: Client, job_id: str, reached: Any, timeout_s: float = PATIENCE_S) -> Json:
    deadline_s = time.monotonic() + timeout_s
    while True:
        job = network.job(job_id)
        unit: Json | None = job["units"][0] if job["units"] else None
        if unit is not None and reached(unit):
            return unit
        if job["state"] in {"failed", "cancelled", "succeeded"}:
            raise TimeoutError(f"the job ended too early: {job['state']} {job['reason']}")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the job did not get there within {timeout_s:g} s: {job['state']} {job['reason']}")
        time.sleep(0.1)


def _watch(network: Client, job_id: str) -> Json:
    from meridian.cli.job_commands import follow

    return follow(network, job_id, timeout_s=2 * PATIENCE_S)


def _with_last_step(network: Client, job: Json) -> Json:
    """A job that has succeeded, once its last step is known too: steps and ends of jobs are told on topics of their own."""
    deadline_s = time.monotonic() + PATIENCE_S
    while job["state"] == "succeeded" and job["units"][0]["step"] != job["units"][0]["total_steps"]:
        if time.monotonic() > deadline_s:
            break
        time.sleep(0.1)
        job = network.job(job["job_id"])
    return job


def _report(network: Client, job: Json) -> None:
    console.print("\n[bold]What happened[/bold] (meridian job ID)")
    for entry in job["timeline"]:
        console.print(f"  {clock(entry['at'])}  {entry['what']:<18} {plain(entry.get('detail'))}", soft_wrap=True)
    console.print("\n[bold]Incident[/bold] (meridian incidents)")
    for item in network.incidents(limit=1):
        console.print(f"  {item['node_id'] or item['domain_id']}: {item['state']}: {plain(item['reason'])}")
    console.print("\n[bold]Why it ran there[/bold] (meridian explain ID)")
    print_explanation(network.explanation(job["job_id"]))
    trace = network.trace(job["job_id"])
    counts: dict[str, int] = {}
    for event in trace["events"]:
        counts[event["type"]] = counts.get(event["type"], 0) + 1
    console.print(
        "\n[bold]Trace[/bold] (meridian trace ID): " + ", ".join(f"{name} x {count}" for name, count in counts.items())
    )


def _verdict(context: Context, network: Client, job: Json, first_epoch: int) -> bool:
    unit = job["units"][0]
    events = network.trace(job["job_id"])["events"]
    starts = [event for event in events if event["type"] == "RunStarted"]
    resumptions = unit["epoch"] - first_epoch
    took = (parse_time(job["finished_at"]), parse_time(job["submitted_at"]))
    elapsed_s = (took[0] - took[1]).total_seconds() if took[0] and took[1] else None
    good = bool(job["state"] == "succeeded" and resumptions == 1 and unit["step"] == unit["total_steps"])
    result = {
        "job_id": job["job_id"],
        "state": job["state"],
        "resumed": resumptions,
        "runs_started": len(starts),
        "steps": unit["step"],
        "metrics": unit["metrics"],
        "elapsed_s": elapsed_s,
    }
    console.print()
    if context.as_json:
        print_json(result)
    text = f"job {job['state']}, resumed {resumptions} time(s), {unit['step']} of {unit['total_steps']} steps, loss {unit['metrics'].get('loss', float('nan')):.4f}"
    _say(f"[green]{text}[/green]" if good else f"[red]{text}[/red]")
    return good
