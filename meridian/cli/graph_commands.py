"""graph: the network as a tree or table, now or in the past, live; and why a node is in its state."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC
from typing import Any

import click
from rich.markup import escape
from rich.tree import Tree

from meridian.cli.main import Context, json_option
from meridian.cli.output import age, clock, console, money, parse_time, print_json, print_table, state
from meridian.errors import InvalidArgumentError, NotFoundError

Json = dict[str, Any]


@click.group(invoke_without_command=True)
@click.option("--as-of", metavar="TIME", help="The graph as it was known then (RFC 3339, e.g. 2026-11-21T10:00:00Z).")
@click.option("--watch", is_flag=True, help="Follow the changes until interrupted.")
@click.option("--after", type=click.IntRange(min=0), help="With --watch: go on behind this version.")
@click.option("--table", "as_table", is_flag=True, help="Tables of nodes and links instead of a tree.")
@click.option("--domain", help="Only this domain.")
@json_option
@click.pass_context
def graph(
    ctx: click.Context, as_of: str | None, watch: bool, after: int | None, as_table: bool, domain: str | None
) -> None:
    """Show domains, sites, nodes, accelerators and links."""
    if ctx.invoked_subcommand is not None:
        return
    context: Context = ctx.obj
    if watch:
        if as_of is not None:
            raise InvalidArgumentError("--as-of: the past does not change, it cannot be watched")
        _watch(context, after, domain)
        return
    when = _time(as_of)
    with context.client() as network:
        found = network.graph(when)
    found = only(found, domain)
    if domain is not None and not found["domains"]:
        raise NotFoundError(f"there is no domain {domain!r} in the graph")
    if context.as_json:
        print_json(found)
        return
    moment = f" as of {as_of}" if as_of else ""
    console.print(f"version {found['version']}{moment}")
    if as_table:
        _tables(found)
    else:
        console.print(tree(found))


@graph.command()
@click.argument("node_id")
@json_option
@click.pass_obj
def node(context: Context, node_id: str) -> None:
    """Show why a node is in its state, and the readings behind it."""
    with context.client() as network:
        found = network.node_state(node_id)
    if context.as_json:
        print_json(found)
        return
    console.print(f"{found['node_id']} of {found['domain_id']}:", state(found["state"]))
    console.print(f"  because   {found['state_reason'] or 'nothing speaks against it'}", markup=False)
    decided = "the model" if found["rule"].startswith("model-") else "the rule"
    console.print(f"  decided   by {decided} {found['rule']}, {age(found['state_since'])} ago", markup=False)
    if found["model"] is not None:
        word = found["model"]
        console.print(
            f"  model     {word['name']} says {word['state']} with confidence {word['confidence']:.2f}", markup=False
        )
    if found["expected_load"] is not None:
        console.print(f"  expected  {found['expected_load']:.0%} utilised at the next observation", markup=False)
    console.print(f"  certified {'yes' if found['certified'] else 'no'}")
    for line in found["bad_readings"]:
        console.print(f"  set aside {line}", markup=False)
    print_table(
        ["METRIC", "ACCELERATOR", ">VALUE", ">READ"],
        (
            [
                item["metric"],
                "" if item["accelerator_index"] is None else item["accelerator_index"],
                f"{item['value']:.6g}",
                age(item["observed_at"]),
            ]
            for item in found["readings"]
        ),
        empty="Nothing is read of it at present.",
    )


def _time(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        moment = parse_time(text)
    except ValueError:
        raise InvalidArgumentError(f"--as-of: {text!r} is no time such as 2026-11-21T10:00:00Z") from None
    assert moment is not None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


def only(found: Json, domain: str | None) -> Json:
    """The graph, or one domain of it with the links that begin or end there."""
    if domain is None:
        return found
    ends = ("from_domain_id", "to_domain_id")
    return {
        "version": found["version"],
        "domains": [item for item in found["domains"] if item["domain_id"] == domain],
        "nodes": [item for item in found["nodes"] if item["domain_id"] == domain],
        "links": [item for item in found["links"] if domain in {item[end] for end in ends}],
    }


def tree(found: Json) -> Tree:
    """Domain, site, node with its accelerators; below each domain its links."""
    root = Tree("network")
    for domain in found["domains"]:
        domain_id = domain["domain_id"]
        states = ", ".join(f"{count} {name}" for name, count in sorted(domain["nodes_by_state"].items()))
        branch = root.add(escape(f"{domain_id}  {domain['region']}  {states or 'no nodes'}"))
        nodes = [item for item in found["nodes"] if item["domain_id"] == domain_id]
        for site in sorted({item["site"] for item in nodes}):
            place = branch.add(escape(f"site {site}" if site else "no site"))
            for item in nodes:
                if item["site"] == site:
                    _add_node(place, item)
        links = [item for item in found["links"] if item["from_domain_id"] == domain_id]
        if links:
            ways = branch.add("links")
            for item in links:
                ways.add(escape(f"to {item['to_domain_id']}  {link_text(item)}"))
    return root


def _add_node(place: Tree, node: Json) -> None:
    label = state(node["state"])
    label.append(f"  {node['node_id']}", style="default")
    if node["state_reason"]:
        label.append(f"  {node['state_reason']}", style="dim")
    branch = place.add(label)
    for text in accelerator_texts(node):
        branch.add(escape(text))


def accelerator_texts(node: Json) -> list[str]:
    """What a node has: ``2 x H100``, and of a divided one its parts, ``1 x H100 in parts 3g.40gb, 1g.10gb``."""
    return [f"{count} x {name}" for name, count in Counter(map(_accelerator, node["accelerators"])).items()]


def _accelerator(item: Json) -> str:
    if not item.get("partitioned"):
        return str(item["model"])
    profiles = ", ".join(part["profile"] or part["id"] for part in item["parts"])
    return f"{item['model']} in parts {profiles or 'that are not known'}"


def link_text(link: Json) -> str:
    """Round trip, bandwidth, loss, price and how old the measurement is."""
    parts = []
    if link["rtt_s"]:
        parts.append(f"{1000 * link['rtt_s']:.1f} ms")
    if link["bandwidth_bytes_per_s"]:
        parts.append(f"{8e-9 * link['bandwidth_bytes_per_s']:.2f} Gbit/s")
    if link["loss"]:
        parts.append(f"{link['loss']:.1%} lost")
    if link["price_per_gb"] and link["price_per_gb"]["micro_units"]:
        parts.append(f"{money(link['price_per_gb'])}/GB")
    parts.append(f"measured {age(link['measured_at'])} ago" if link["measured_at"] else "declared")
    return ", ".join(parts)


def _tables(found: Json) -> None:
    print_table(
        ["NODE", "DOMAIN", "SITE", "STATE", "ACCELERATORS", ">EXPECTED LOAD", "REASON"],
        (
            [
                item["node_id"],
                item["domain_id"],
                item["site"],
                state(item["state"]),
                ", ".join(accelerator_texts(item)),
                "" if item["expected_load"] is None else f"{item['expected_load']:.0%}",
                item["state_reason"],
            ]
            for item in found["nodes"]
        ),
        empty="No node is known.",
    )
    print_table(
        ["FROM", "TO", "LINK"],
        ([item["from_domain_id"], item["to_domain_id"], link_text(item)] for item in found["links"]),
        empty="No link is known.",
    )


def _watch(context: Context, after: int | None, domain: str | None) -> None:
    with context.client() as network:
        for change in network.graph_changes(after):
            if domain is not None and change.get("domain_id") not in {domain, None}:
                continue
            if context.as_json:
                print(json.dumps(change, ensure_ascii=False), flush=True)
                continue
            for line in change_lines(change):
                console.print(line, soft_wrap=True, markup=False)


def change_lines(change: Json) -> list[str]:
    """A change in words: one line for it, and one for each node whose structure or state it tells."""
    if "reset" in change:
        return [f"changes are missing; the graph is at version {change['reset']}"]
    head = f"{clock(change['at'])}  {change['version']:>8}  {change['domain_id']}"
    what = [f"{len(change['nodes'])} nodes"] if change["nodes"] else []
    what += [f"{len(change['removed_node_ids'])} gone"] if change["removed_node_ids"] else []
    what += [f"{len(change['links'])} links"] if change["links"] else []
    lines = [f"{head}  {'whole' if change['full'] else change['kind']}: {', '.join(what) or 'the domain itself'}"]
    if change["kind"] == "structure" and not change["full"]:
        lines += [f"    {node['node_id']}  {node['state']}  {node['state_reason']}" for node in change["nodes"]]
    return lines
