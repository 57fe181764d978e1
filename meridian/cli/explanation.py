"""A scheduler's explanation (`GET /v1/jobs/{id}/explanation`) as text for people."""

from __future__ import annotations

from typing import Any

from meridian.cli.output import console, print_table, state

Json = dict[str, Any]


def print_explanation(found: Json, *, units: int = 5) -> None:
    """Say for each of the first ``units`` units why it is where it is, or why it waits."""
    console.print(
        f"[bold]{found['job_id']}[/bold]",
        state(found["state"]),
        found["reason"] or "",
        f"(policy {found['policy_version']})",
    )
    for unit in found["units"][:units]:
        _print_unit(unit)
    left = len(found["units"]) - units
    if left > 0:
        console.print(f"... and {left} more units; --json shows them all")


def _print_unit(unit: Json) -> None:
    name = unit.get("name") or unit["unit_index"]
    console.print(
        f"\nunit {name}:",
        state(unit["state"]),
        unit.get("reason") or "",
        f"(epoch {unit.get('epoch', 0)})",
        soft_wrap=True,
    )
    run = unit.get("run")
    if run:
        nodes: dict[str, int] = {}
        for rank in run.get("ranks", []):
            nodes[rank["node_id"]] = nodes.get(rank["node_id"], 0) + 1
        places = ", ".join(f"{node} ({count} rank{'s' * (count > 1)})" for node, count in nodes.items())
        console.print(f"  run {run['run_id']} on {places}")
    waiting = unit.get("waiting") or {}
    if waiting:
        console.print(f"  waits: {waiting['reason']}", soft_wrap=True)
    explanation = waiting.get("explanation") or unit.get("placement")
    if explanation:
        _print_decision(explanation)


def _print_decision(explanation: Json) -> None:
    console.print(
        f"  decided: {explanation['reason']} ({explanation['nodes_considered']} nodes considered)", soft_wrap=True
    )
    for item in explanation.get("filters", []):
        why = "; ".join(f"{node['node_id']}: {node['reason']}" for node in item["nodes"][:3])
        console.print(f"  filter {item['filter']} rejected {item['rejected']}: {why}", soft_wrap=True)
    weights: Json = explanation["weights"]
    for level in ("domains", "nodes"):
        candidates = explanation.get(level, [])
        plugins = list(dict.fromkeys(name for item in candidates for name in item["parts"]))
        if not candidates:
            continue
        print_table(
            [f"  {level[:-1].upper()}", ">SCORE", ">ROOM", *(f">{name} x{weights.get(name, 0):g}" for name in plugins)],
            (
                [
                    f"  {item['place']}",
                    f"{item['score']:.2f}",
                    item["ranks_that_fit"],
                    *(f"{item['parts'].get(name, 0):.2f}" for name in plugins),
                ]
                for item in candidates
            ),
            empty="",
        )
