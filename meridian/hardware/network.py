"""Interconnects and node shapes: facts of the same kind as those of chips."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meridian.hardware.facts import Tier

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Interconnect:
    """A way between chips, or between a node and others; rates are per direction, of all links together."""

    id: str
    name: str
    vendor: str
    kind: str
    """``chip`` (within a package), ``host``, ``node``, ``rack`` or ``fabric``: how far it reaches."""
    per_link_bytes_per_s: float
    links: int
    bytes_per_s: float
    year: int
    tier: Tier
    source: str


@dataclass(frozen=True, slots=True)
class Topology:
    """The shape of a node, and how many such nodes share its fast interconnect."""

    id: str
    name: str
    chip_id: str
    chips_per_node: int
    link_id: str
    fabric_id: str | None
    nics_per_node: int | None
    nodes_in_scale_up: int
    year: int
    tier: Tier
    source: str


@cache
def interconnects() -> Mapping[str, Interconnect]:
    """All interconnects by id."""
    with (_FOLDER / "interconnects.csv").open(encoding="utf-8", newline="") as stream:
        return {
            row["id"]: Interconnect(
                row["id"],
                row["name"],
                row["vendor"],
                row["kind"],
                float(row["per_link_gbps"]) * 1e9,
                int(row["links"]),
                float(row["total_gbps"]) * 1e9,
                int(row["year"]),
                Tier(row["evidence_tier"]),
                row["source"],
            )
            for row in csv.DictReader(stream)
        }


@cache
def topologies() -> Mapping[str, Topology]:
    """All node shapes by id."""
    with (_FOLDER / "topologies.csv").open(encoding="utf-8", newline="") as stream:
        return {
            row["id"]: Topology(
                row["id"],
                row["name"],
                row["chip"],
                int(row["chips_per_node"]),
                row["link"],
                row["fabric"] or None,
                int(row["nics_per_node"]) if row["nics_per_node"] else None,
                int(row["nodes_in_scale_up"]),
                int(row["year"]),
                Tier(row["evidence_tier"]),
                row["source"],
            )
            for row in csv.DictReader(stream)
        }
