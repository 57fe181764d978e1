"""What running jobs share, and how fast that lets each go: devices with neighbours, links between domains with other traffic.

Both tell for a change who is concerned and the rate that each keeps, relative to running undisturbed: 0-1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.scheduler.core.state import UnitKey
from simulation.interference import Interference, Profile
from simulation.wan import Wan

Place = tuple[int, int]
"""Node row, device index."""


@dataclass(slots=True)
class _Resident:
    profile: Profile
    places: tuple[tuple[Place, str], ...]


class SharedDevices:
    """Jobs that take a share of their devices. A gang goes at the pace of its slowest device.

    A job that still waits for its data, or for its restart, counts as a neighbour: it holds its share. Units that take whole
    devices are not told.
    """

    def __init__(self, interference: Interference) -> None:
        self._interference = interference
        self._residents: dict[UnitKey, _Resident] = {}
        self._on: dict[Place, list[UnitKey]] = {}

    def began(self, key: UnitKey, profile: Profile, places: Iterable[tuple[Place, str]]) -> dict[UnitKey, float]:
        """A job holds shares of these devices (with the model of each); the rates of it and of its neighbours."""
        found = _Resident(profile, tuple(dict.fromkeys(places)))
        self._residents[key] = found
        for place, _ in found.places:
            self._on.setdefault(place, []).append(key)
        return self._rates(found, key)

    def ended(self, key: UnitKey) -> dict[UnitKey, float]:
        """A job holds nothing more; the rates of those that were its neighbours. Nothing for one that is not known."""
        gone = self._residents.pop(key, None)
        if gone is None:
            return {}
        for place, _ in gone.places:
            left = self._on[place]
            left.remove(key)
            if not left:
                del self._on[place]
        return self._rates(gone)

    def _rates(self, changed: _Resident, *also: UnitKey) -> dict[UnitKey, float]:
        concerned = dict.fromkeys(also)
        for place, _ in changed.places:
            concerned.update(dict.fromkeys(self._on.get(place, ())))
        return {key: self._rate(key) for key in concerned}

    def _rate(self, key: UnitKey) -> float:
        own = self._residents[key]
        return min(
            (
                self._interference.rate(
                    own.profile,
                    [self._residents[other].profile for other in self._on[place] if other != key],
                    model,
                )
                for place, model in own.places
            ),
            default=1.0,
        )


class GangFlows:
    """What the ranks of gangs that span domains exchange, as steady flows on the links.

    Between every two domains of the gang, in both directions, flows what the job says (``traffic_bytes_per_s``); it goes at
    the pace of the flow that is granted least. A job that one link slows down goes on asking for its full rate on its other
    links, so on links of unlike bandwidth the bytes counted are an upper bound.
    """

    def __init__(self, wan: Wan) -> None:
        self._wan = wan
        self._flows: dict[UnitKey, tuple[float, tuple[str, ...]]] = {}
        self._owner: dict[str, UnitKey] = {}

    def __contains__(self, key: UnitKey) -> bool:
        return key in self._flows

    def began(self, key: UnitKey, domains: Sequence[str], bytes_per_s: float, now_s: float) -> None:
        """The ranks in these domains begin to exchange. Errors: no link between two of them (`InvalidArgumentError`)."""
        pairs = [(one, other) for one in domains for other in domains if one != other]
        flows = tuple(f"{key}|{one}>{other}" for one, other in pairs)
        for flow_id, (one, other) in zip(flows, pairs, strict=True):
            self._wan.flow(flow_id, one, other, bytes_per_s, now_s)
            self._owner[flow_id] = key
        self._flows[key] = bytes_per_s, flows

    def ended(self, key: UnitKey, now_s: float) -> None:
        """The ranks exchange nothing more."""
        _, flows = self._flows.pop(key)
        for flow_id in flows:
            self._wan.cancel(flow_id, now_s)
            del self._owner[flow_id]

    def share(self, key: UnitKey) -> float:
        """The least part of what it asks for that the gang is granted."""
        wanted, flows = self._flows[key]
        return min(self._wan.rate(flow_id) for flow_id in flows) / wanted

    def changed(self) -> dict[UnitKey, float]:
        """The shares of the gangs whose grants may have changed since the last call."""
        touched = self._wan.take_changed_flows()
        keys = dict.fromkeys(self._owner[flow_id] for flow_id in sorted(touched) if flow_id in self._owner)
        return {key: self.share(key) for key in keys}
