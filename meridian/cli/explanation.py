"""A scheduler's explanation (`GET /v1/jobs/{id}/explanation`) as text for people: at most `MOST_LINES` lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from meridian.cli.output import console

Json = dict[str, Any]

MOST_LINES = 30
_LEFT = "... {} more lines; --json shows all"


def print_explanation(found: Json, *, units: int = 3) -> None:
    """Say for each of the first ``units`` units why it is where it is, or why it waits, for whom and until when."""
    for line in lines(found, units=units):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def lines(found: Json, *, units: int = 3) -> list[str]:
    """The text, line by line; what does not fit is counted in the last one."""
    out = [
        f"{found['job_id']}: {found['state']} {found.get('reason') or ''}".rstrip()
        + f" (policy {found['policy_version']})"
    ]
    shown = found["units"][:units]
    for unit in shown:
        out += _unit(unit)
    left = len(found["units"]) - len(shown)
    if left > 0:
        out.append(f"and {left} more units; --unit N shows one, --json all")
    if len(out) > MOST_LINES:
        out = [*out[: MOST_LINES - 1], _LEFT.format(len(out) - MOST_LINES + 1)]
    return out


def _unit(unit: Json) -> Iterator[str]:
    name = unit.get("name") or unit["unit_index"]
    yield f"unit {name}: {unit['state']} {unit.get('reason') or ''}".rstrip() + f" (epoch {unit.get('epoch', 0)})"
    run = unit.get("run")
    if run:
        nodes: dict[str, int] = {}
        for rank in run.get("ranks", []):
            nodes[rank["node_id"]] = nodes.get(rank["node_id"], 0) + 1
        places = [f"{node} ({count} rank{'s' * (count > 1)})" for node, count in nodes.items()]
        yield f"  run {run['run_id']} on {_some(places, 6)}"
    waiting = unit.get("waiting") or {}
    if waiting:
        yield from _waiting(waiting)
    explanation = waiting.get("explanation") or unit.get("placement")
    if explanation:
        yield from _decision(explanation, waiting.get("sentences") or unit.get("sentences") or [])
    for item in unit.get("counterfactuals", []):
        yield f"  if: {item['sentence']}"
    searched = unit.get("counterfactuals_search") or {}
    if searched.get("not_searched"):
        yield f"  not searched further: {', '.join(searched['not_searched'])} (time for {searched['decisions']} decisions)"


def _waiting(waiting: Json) -> Iterator[str]:
    yield f"  waits: {waiting.get('reason', 'to be looked at')}"
    if waiting.get("too_large"):
        yield f"  {waiting['too_large']}"
    ahead = waiting.get("ahead")
    if ahead:
        place = f"place {waiting['position']} in the queue; " if waiting.get("position") else ""
        yield f"  {place}ahead: {ahead['units']} units, {ahead['accelerators']:g} accelerators"
    start = waiting.get("prediction")
    if start:
        if start["start"]:
            band = f"between {start['low']} and {start['high'] or 'later than can be said'}"
            yield f"  likely to start {start['start']} ({band}, if nobody with a better claim comes)"
        elif start.get("never"):
            yield "  would not start even if all that runs had ended"
        else:
            yield f"  will start later than {start['later_than']}; {start.get('note') or 'no more can be said'}"
    if waiting.get("reserved_from"):
        yield f"  nodes are reserved for it from {waiting['reserved_from']}"
    blocked = waiting.get("blocked_by") or {}
    for item in blocked.get("shortages", [])[:3]:
        short = ", ".join(f"{count} short of {name}" for name, count in item["nodes_short_of"].items())
        nodes = item["nodes_that_qualify"]
        yield f"  {item['domain_id']}: room for {item['ranks_that_fit']} ranks; of {nodes} nodes {short or 'none is short'}"
    for item in blocked.get("holders", [])[:3]:
        amount = f"{item['accelerators']:g} accelerators" if item["accelerators"] else f"{item['cpus']:g} cpus"
        yield f"  held by {item['unit']} ({item['tenant_id']}): {amount} until {item['until'] or 'unknown'}"
    kept = [f"{item['unit']} from {item['from']}" for item in blocked.get("reservations", [])]
    if kept:
        yield f"  reserved for {_some(kept, 3)}"


def _decision(explanation: Json, said: list[str]) -> Iterator[str]:
    for sentence in said or [explanation["reason"]]:
        yield f"  {sentence}"
    weights: Json = explanation.get("weights", {})
    alike: Json = explanation.get("everywhere", {})
    if alike:
        yield f"  for every domain: {_weighed(alike, weights)}"
    # Nodes of one domain do not say which: it is the one that was chosen.
    place = explanation.get("chosen", {}).get("place", "")
    for level in ("sets", "domains", "nodes"):
        candidates = explanation.get(level, [])[:3]
        for item in candidates:
            of_nodes = (
                explanation.get("node_weights", {}).get(item.get("domain", place), {}) if level == "nodes" else {}
            )
            own = {**weights, **of_nodes}
            parts = _weighed(item["parts"], own)
            yield f"  {level[:-1]} {item['place']}: {item['score']:.2f}, room {item['ranks_that_fit']}: {parts}"


def _weighed(parts: Json, weights: Json) -> str:
    return " + ".join(f"{name} {value:.2f} x {weights.get(name, 0):g}" for name, value in parts.items())


def _some(items: Iterable[str], most: int) -> str:
    listed = list(items)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
