"""domains, nodes, events, incidents, forecasts, kill-node."""

from __future__ import annotations

import json
from typing import Any

import click

from meridian.cli.main import Context, json_option
from meridian.cli.output import age, clock, console, money, print_json, print_table, state


@click.command()
@json_option
@click.pass_obj
def domains(context: Context) -> None:
    """List the domains of the network."""
    with context.client() as network:
        found = network.domains()
    if context.as_json:
        print_json(found)
        return
    print_table(
        ["DOMAIN", "REGION", "REACHABLE", ">NODES", ">ACCELERATORS", ">PRICE/H", ">gCO2/kWh", "LEVEL", ""],
        (
            [
                item["domain_id"],
                item["region"],
                state("healthy" if item["reachable"] else "unreachable"),
                item["nodes"],
                item["accelerators"],
                money(item["price_per_accelerator_hour"]),
                f"{item['carbon_g_per_kwh']:.0f}",
                item["security_level"],
                "emulated" if item["emulated"] else "",
            ]
            for item in found
        ),
        empty="No domain has joined yet.",
    )


def _accelerators(node: dict[str, Any]) -> str:
    models: dict[str, int] = {}
    for item in node["accelerators"]:
        models[item["model"]] = models.get(item["model"], 0) + 1
    return ", ".join(f"{count} x {model}" for model, count in models.items())


@click.command()
@click.argument("node_id", required=False)
@click.option("--domain", help="Only the nodes of this domain.")
@json_option
@click.pass_obj
def nodes(context: Context, node_id: str | None, domain: str | None) -> None:
    """List the nodes, or show one with the reason of its state."""
    with context.client() as network:
        found = [network.node(node_id)] if node_id else network.nodes(domain)
    if context.as_json:
        print_json(found[0] if node_id else found)
        return
    print_table(
        ["NODE", "DOMAIN", "STATE", ">CPUS", "ACCELERATORS", ">SEEN", "REASON"],
        (
            [
                item["node_id"],
                item["domain_id"],
                state(item["state"]),
                f"{item['cpus']:g}",
                _accelerators(item),
                age(item["updated_at"]),
                item["state_reason"],
            ]
            for item in found
        ),
        empty="No node is known.",
    )


@click.command()
@click.option("--job", help="Only events of this job.")
@click.option("--type", "kind", help="Only events of this type, e.g. JobPlaced.")
@click.option("--after", help="Go on behind this event id; 0 for all that are kept.")
@json_option
@click.pass_obj
def events(context: Context, job: str | None, kind: str | None, after: str | None) -> None:
    """Follow the events of the network until interrupted."""
    with context.client() as network:
        for event in network.events(job=job, kind=kind, after=after):
            if context.as_json:
                print(json.dumps(event, ensure_ascii=False), flush=True)
                continue
            subject = event.get("job_id") or event.get("domain_id") or ""
            data = event["data"]
            details = [
                f"{name}={data[name]}"
                for name in ("node_id", "run_id", "outcome", "step", "kind", "state", "reason")
                if data.get(name)
            ]
            console.print(
                f"{clock(event['time'])}  {event['type']:<24} {subject}  {' '.join(details)}",
                soft_wrap=True,
                markup=False,
            )


@click.command()
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@json_option
@click.pass_obj
def incidents(context: Context, limit: int) -> None:
    """List failures and what was done about them."""
    with context.client() as network:
        found = list(network.incidents(limit=limit))
    if context.as_json:
        print_json(found)
        return
    print_table(
        ["INCIDENT", "WHERE", "STATE", ">OPENED", ">RECOVERIES", "REASON"],
        (
            [
                item["incident_id"],
                item["node_id"] or item["domain_id"],
                state(item["state"]),
                age(item["opened_at"]),
                item["recoveries"],
                item["reason"],
            ]
            for item in found
        ),
        empty="No incident.",
    )


@click.command()
@click.argument("subject", required=False)
@json_option
@click.pass_obj
def forecasts(context: Context, subject: str | None) -> None:
    """Show the expected demand of domains and tenants, in accelerators."""
    with context.client() as network:
        found = network.forecasts(subject)
    if context.as_json:
        print_json(found)
        return

    def point(item: dict[str, Any], horizon_s: float) -> str:
        for candidate in item["points"]:
            if candidate["horizon_s"] == horizon_s:
                return f"{candidate['expected']:.1f}"
        return ""

    print_table(
        ["SUBJECT", "KIND", ">NOW", ">10 MIN", ">1 H", "METHOD", ">HISTORY"],
        (
            [
                item["subject_id"],
                item["subject_kind"],
                f"{item['current']:.1f}",
                point(item, 600.0),
                point(item, 3600.0),
                item["method"],
                f"{item['history_windows']} x {item['window_s']:g} s",
            ]
            for item in found
        ),
        empty="No forecast yet.",
    )


@click.command("kill-node")
@click.argument("node_id")
@json_option
@click.pass_obj
def kill_node(context: Context, node_id: str) -> None:
    """Kill an emulated node, as if the machine had died."""
    with context.client() as network:
        answer = network.kill_node(node_id)
    if context.as_json:
        print_json(answer)
    else:
        console.print(f"{node_id} of {answer['domain_id']} is being killed; `meridian events` shows what follows")
