"""Who is next to whom in a domain: behind one switch, at one site, at sites that are linked. Pure numpy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

SWITCH_LABEL = "switch"
SITE_LINKS_LABEL = "site_links"


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """As the network takes it. ``switch`` and ``site`` number the groups of each node from 0; inverse sizes are 1 / members
    (0 for a group without any); ``near [sites, sites]`` gives each site's neighbours equal weights that sum to 1, or 0."""

    switch: Integers
    site: Integers
    switch_inverse: Floats
    site_inverse: Floats
    near: Floats


def neighbourhood(
    switch_of: Integers, site_of: Integers, site_links: Iterable[tuple[int, int]], sites: int
) -> Neighbourhood:
    """From numbers: ``switch_of[node]``, ``site_of[switch]``, links between sites (both ways)."""
    switches = len(site_of)
    site = site_of[switch_of] if len(switch_of) else np.zeros(0, dtype=np.int64)
    near = np.zeros((sites, sites), dtype=np.float32)
    for a, b in site_links:
        near[a, b] = near[b, a] = 1.0
    # A site without nodes has nothing to tell.
    near[:, np.bincount(site, minlength=sites) == 0] = 0.0
    near /= np.maximum(near.sum(axis=1, keepdims=True), 1.0)
    return Neighbourhood(
        switch_of.astype(np.int64),
        site.astype(np.int64),
        _inverse(np.bincount(switch_of, minlength=switches)),
        _inverse(np.bincount(site, minlength=sites)),
        near,
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node stands: its site, the switch it hangs on ("" unknown: the site's), sites that its site is linked to."""

    site: str
    switch: str
    site_links: tuple[str, ...] = ()


def neighbourhood_of(places: Sequence[Place]) -> Neighbourhood:
    """From names. Nodes without a switch share the one of their site; links to sites without nodes are left out."""
    sites = {name: number for number, name in enumerate(dict.fromkeys(place.site for place in places))}
    switches: dict[tuple[str, str], int] = {}
    switch_of = [switches.setdefault((place.site, place.switch), len(switches)) for place in places]
    site_of = [sites[site] for site, _ in switches]
    links = {
        (sites[place.site], sites[other])
        for place in places
        for other in place.site_links
        if other in sites and other != place.site
    }
    return neighbourhood(np.asarray(switch_of, dtype=np.int64), np.asarray(site_of, dtype=np.int64), links, len(sites))


def _inverse(sizes: npt.NDArray[np.intp]) -> Floats:
    return np.where(sizes > 0, 1.0 / np.maximum(sizes, 1), 0.0).astype(np.float32)
