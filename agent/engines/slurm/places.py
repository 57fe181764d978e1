"""Which rank goes where in an allocation, from Slurm's own words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from agent.engines.base import RankPlacement
from agent.engines.own_scheduler import Constraints


class PlacesError(Exception):
    """Slurm gave what the run cannot use; the text says what."""


def rank_places(
    constraints: Constraints,
    nodes: Sequence[str],
    tasks: Sequence[int],
    given: Mapping[str, tuple[int, ...] | None],
    node_id_of: Callable[[str], str | None],
    in_use: Mapping[str, Collection[int]],
) -> tuple[RankPlacement, ...]:
    """Ranks numbered from 0, node after node, with their accelerators in the order of Slurm's indices.

    :param tasks: how many ranks Slurm put on each of ``nodes`` (Slurm's names).
    :param given: indices of accelerators by node; None: Slurm does not number them, and those are taken that are not ``in_use`` by
        other runs of this domain (by Meridian's node names).
    :raises PlacesError: a node that the domain does not declare; fewer ranks or accelerators than were asked for.
    """
    if len(nodes) != len(tasks):
        raise PlacesError(f"{len(nodes)} nodes and tasks on {len(tasks)}")
    ranks: list[RankPlacement] = []
    for name, count in zip(nodes, tasks, strict=True):
        node_id = node_id_of(name)
        if node_id is None:
            raise PlacesError(f"the domain does not declare Slurm's node {name}")
        here = min(count, constraints.ranks - len(ranks))
        whole = constraints.accelerator_milli >= 1000
        each = constraints.accelerators
        indices = given.get(name, ())
        if indices is None or (each and not whole):
            indices = _first_free(in_use.get(node_id, ()) if whole else (), here * each)
        if len(indices) < here * each:
            raise PlacesError(f"{len(indices)} accelerators on {name} for {here} ranks with {each} each")
        ranks += [
            RankPlacement(
                len(ranks) + local,
                node_id,
                local,
                indices[local * each : (local + 1) * each],
                constraints.accelerator_milli,
            )
            for local in range(here)
        ]
    if len(ranks) < constraints.ranks:
        raise PlacesError(f"{len(ranks)} of {constraints.ranks} ranks")
    return tuple(ranks)


def _first_free(in_use: Collection[int], count: int) -> tuple[int, ...]:
    found: list[int] = []
    number = 0
    while len(found) < count:
        if number not in in_use:
            found.append(number)
        number += 1
    return tuple(found)
