"""Fabrics: sites joined by links, switches in them, nodes behind the switches. From Topology Zoo, or generated.

Topology Zoo (Knight et al., "The Internet Topology Zoo", IEEE JSAC 29(9), 2011) names points of presence and their links;
each becomes a site here. Without its files ring, tree and random geometric shapes stand in.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
LEAST_SITES, MOST_SITES = 4, 40
_NODE = re.compile(r"^\s*node \[\s*$")
_EDGE = re.compile(r"^\s*edge \[\s*$")
_FIELD = re.compile(r"^\s*(id|source|target)\s+(-?\d+)\s*$")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sites and their links. ``family`` is the same for editions of one network, so that they fall into one split."""

    name: str
    family: str
    sites: int
    links: tuple[tuple[int, int], ...]

    @property
    def split(self) -> str:
        """``train``, ``validation`` or ``test``, fixed by the family's name: 6, 2 and 2 of ten."""
        number = int(hashlib.sha256(self.family.encode()).hexdigest(), 16) % 10
        return "train" if number < 6 else "validation" if number < 8 else "test"


@dataclass(frozen=True, slots=True)
class Fabric:
    """A shape with switches and nodes: ``switch_of[node]``, ``site_of[switch]``, links between sites."""

    shape: Shape
    switch_of: Integers
    site_of: Integers


def read_gml(path: Path) -> Shape:
    """The shape in a GML file of the Topology Zoo; ValueError when an edge names a node that is not there."""
    ids: dict[int, int] = {}
    edges: set[tuple[int, int]] = set()
    inside, ends = "", {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if _NODE.match(line):
            inside, ends = "node", {}
        elif _EDGE.match(line):
            inside, ends = "edge", {}
        elif (field := _FIELD.match(line)) and inside:
            ends[field[1]] = int(field[2])
            if inside == "node" and "id" in ends:
                ids.setdefault(ends["id"], len(ids))
                inside = ""
            elif inside == "edge" and {"source", "target"} <= ends.keys():
                if not {ends["source"], ends["target"]} <= ids.keys():
                    raise ValueError(f"{path.name}:{number}: the edge names a node that is not there")
                a, b = sorted((ids[ends["source"]], ids[ends["target"]]))
                if a != b:
                    edges.add((a, b))
                inside = ""
    family = re.sub(r"[\d-]+$", "", path.stem).lower()
    return Shape(path.stem, family, len(ids), tuple(sorted(edges)))


def zoo(folder: Path) -> list[Shape]:
    """The shapes in a folder that have between ``LEAST_SITES`` and ``MOST_SITES`` sites, by name."""
    found = [read_gml(path) for path in sorted(folder.glob("*.gml"))]
    return [shape for shape in found if LEAST_SITES <= shape.sites <= MOST_SITES]


def generated(count: int, seed: int) -> list[Shape]:
    """Rings, trees and random geometric shapes, each a family of its own."""
    chance = np.random.default_rng(seed)
    shapes = []
    for number in range(count):
        sites = int(chance.integers(LEAST_SITES, MOST_SITES // 2))
        kind = ("ring", "tree", "geometric")[number % 3]
        if kind == "ring":
            links = {(site, (site + 1) % sites) for site in range(sites)}
        else:
            places = chance.random((sites, 2))
            links = set()
            for site in range(1, sites):
                distance = np.linalg.norm(places[:site] - places[site], axis=1)
                nearest = np.argsort(distance)[: 1 if kind == "tree" else 3]
                links |= {(int(other), site) for other in nearest}
        ordered = tuple(sorted((min(pair), max(pair)) for pair in links))
        shapes.append(Shape(f"{kind}-{number}", f"{kind}-{number}", sites, ordered))
    return shapes


def populated(shape: Shape, chance: np.random.Generator, most_nodes: int = 160) -> Fabric:
    """The shape with 1-3 switches per site and 3-8 nodes behind each, cut off at ``most_nodes``."""
    switch_of: list[int] = []
    site_of: list[int] = []
    for site in chance.permutation(shape.sites):
        for _ in range(int(chance.integers(1, 4))):
            size = int(chance.integers(3, 9))
            if len(switch_of) + size > most_nodes:
                return _fabric(shape, switch_of, site_of)
            switch_of += [len(site_of)] * size
            site_of.append(int(site))
    return _fabric(shape, switch_of, site_of)


def _fabric(shape: Shape, switch_of: Sequence[int], site_of: Sequence[int]) -> Fabric:
    return Fabric(shape, np.asarray(switch_of, dtype=np.int64), np.asarray(site_of, dtype=np.int64))
