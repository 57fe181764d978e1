"""Why a unit runs where it does, from both levels: the shard chose the domains, each domain its nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from services.scheduler.core.apart.rounds import Carried


def placed_json(item: Carried, place: str, reason: str, version: str) -> dict[str, Any]:
    """The explanation of a placement as decisions keep it; `explanation.rederive` makes both choices again from it.

    ``domains`` and ``weights`` are the shard's, with the filters that kept domains out in ``domains_rejected``. ``filters``, ``nodes``
    and ``node_weights`` are what the domains said of their nodes, ``said_by`` by which policies. Of a domain that said nothing, only
    what it chose is known.
    """
    body: dict[str, Any] = {"stage": "scores", "weights": {}, "domains": []}
    if item.explanation is not None:
        body = item.explanation.as_json()
        body["domains_rejected"] = [
            {"filter": filtered["filter"], "domain_id": row["node_id"], "reason": row["reason"]}
            for filtered in body["filters"]
            for row in filtered["nodes"]
        ]
    body |= {"reason": reason, "levels": "two", "policy_version": version, "ranks": len(item.ranks)}
    body |= {"filters": [], "nodes_considered": 0}
    parts: dict[str, dict[str, int]] = {}
    for rank in item.ranks:
        nodes = parts.setdefault(rank.domain_id, {})
        nodes[rank.node_id] = nodes.get(rank.node_id, 0) + 1
    chosen: dict[str, Any] = {**body.get("chosen", {}), "place": place, "nodes": {}, "ranks": {}}
    chosen["nodes_taken"] = sum(len(nodes) for nodes in parts.values())
    for domain_id, nodes in parts.items():
        said = json.loads(item.said.get(domain_id, "null"))
        if said is not None and said["chosen"]["place"] == domain_id:
            _add_nodes(body, domain_id, said, several=len(parts) > 1)
            chosen["nodes"] |= said["chosen"]["nodes"]
            chosen["ranks"][domain_id] = sum(nodes.values())
        else:
            chosen["nodes"] |= nodes
    body["chosen"] = chosen
    return body


def _add_nodes(body: dict[str, Any], domain_id: str, said: Mapping[str, Any], *, several: bool) -> None:
    own = said.get("node_weights", {}).get(domain_id) or said.get("weights", {})
    body.setdefault("node_weights", {})[domain_id] = own
    body.setdefault("said_by", {})[domain_id] = {"policy_version": said.get("policy_version", "")}
    body["nodes_considered"] += said.get("nodes_considered", 0)
    body["filters"] += said.get("filters", [])
    rows = [{**row, "domain": domain_id} if several else dict(row) for row in said["nodes"]]
    body.setdefault("nodes", []).extend(rows)
