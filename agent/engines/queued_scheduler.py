"""A domain's own scheduler with a queue: a unit becomes a job there, and what that job is given is the answer.

1. A unit is asked for, way after way. What the domain does not take is refused with its reason.
2. A job that holds its nodes in time is the grant.
3. One that waits longer is refused for now, with the domain's reason. Up to ``most_queued`` of them keep their place in the queue; when
   one gets its nodes, the unit is asked for again and has them at once.
4. A unit that is asked for with a newer epoch gives up what it held with an older one.

How jobs are made, read, and let go of is the matter of each domain.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Generic, TypeVar

from agent.engines.base import RankPlacement
from agent.engines.own_scheduler import Constraints, DeviceKind, OwnScheduler, Refusal, UnitName


@dataclass(slots=True)
class QueuedPlace:
    """A job of ours. ``given``: it is a grant. ``kept``: it waits in the queue though the unit was refused for now. ``asked``: somebody
    asks for it at this moment. ``wrong``: why it can be no grant any more."""

    constraints: Constraints
    _: KW_ONLY
    ranks: tuple[RankPlacement, ...] = ()
    given: bool = False
    kept: bool = False
    asked: bool = False
    ready_at_s: float | None = None
    wrong: str = ""


P = TypeVar("P", bound=QueuedPlace)
J = TypeVar("J", bound=Hashable)


class QueuedScheduler(OwnScheduler, Generic[P]):
    """See the module. ``devices`` are the accelerators of each node by index, as the domain declares them; ``node_names`` the domain's
    own names of nodes by their ids. ``answer_s``: so long a new job is waited for, seconds."""

    def __init__(
        self,
        devices: Mapping[str, tuple[DeviceKind, ...]],
        node_names: Mapping[str, str],
        *,
        answer_s: float,
        most_queued: int,
        emulated: bool,
    ) -> None:
        self._devices = devices
        self._node_names = node_names
        self._answer_s = answer_s
        self._most_queued = most_queued
        self._emulated = emulated
        self._places: dict[UnitName, P] = {}
        self._turns = 0
        # Since when jobs of ours are seen that nobody holds.
        self._stray: dict[Hashable, float] = {}

    # --- what each domain does its own way -------------------------------------------------------------------------

    @abstractmethod
    async def _ask_for(self, name: UnitName, constraints: Constraints, until_s: float) -> P | Refusal:
        """Make a job, way after way, and wait until it holds nodes or the time is over. What is there is looked at again."""

    @abstractmethod
    def _hopeless(self, place: P) -> bool:
        """The domain would never begin it as it is asked for."""

    @abstractmethod
    async def _why(self, place: P) -> str:
        """The domain's reason for which a job holds no nodes yet."""

    @abstractmethod
    async def _let_go(self, place: P) -> None:
        """End the job of a place."""

    async def _look_again(self) -> None:
        """New units were asked for: what is left may be read anew."""

    # --- what is asked ---------------------------------------------------------------------------------------------

    async def release(self, name: UnitName) -> None:
        place = self._places.get(name)
        if place is not None:
            self._forget(name, place)
            await self._let_go(place)

    async def place(self, name: UnitName, constraints: Constraints) -> tuple[RankPlacement, ...] | Refusal:
        return (await self.place_all({name: constraints}))[name]

    async def place_all(
        self, wanted: Mapping[UnitName, Constraints]
    ) -> dict[UnitName, tuple[RankPlacement, ...] | Refusal]:
        for name in list(self._places):
            if any(other.key == name.key and other.epoch > name.epoch for other in wanted):
                await self.release(name)
        new = not wanted.keys() <= self._places.keys()
        until_s = asyncio.get_running_loop().time() + self._answer_s
        asked = await asyncio.gather(*(self._ask_for(*item, until_s) for item in wanted.items()))
        if new:
            await self._look_again()
        answers: dict[UnitName, tuple[RankPlacement, ...] | Refusal] = {}
        gone = []
        # In this order: places in the queue are kept for those that come first.
        for name, place in zip(wanted, asked, strict=True):
            answers[name] = place if isinstance(place, Refusal) else await self._decide(place)
            if (
                not isinstance(place, Refusal)
                and not place.given
                and not place.kept
                and self._places.get(name) is place
            ):
                self._forget(name, place)
                gone.append(place)
        await asyncio.gather(*map(self._let_go, gone))
        return answers

    async def _decide(self, place: P) -> tuple[RankPlacement, ...] | Refusal:
        """Whether the job of a unit is a grant now, or the unit waits for it; else it is to be let go of."""
        place.asked = False
        if place.wrong:
            self._turns += place.kept
            place.kept = False
            return Refusal(place.wrong)
        if place.ranks:
            place.given, place.kept = True, False
            return place.ranks
        kept = sum(other.kept for other in self._places.values() if other is not place)
        place.kept = not self._hopeless(place) and kept < self._most_queued
        why = await self._why(place)
        return Refusal(f"{why}; it keeps its place in the queue" if place.kept else why)

    # --- steps -----------------------------------------------------------------------------------------------------

    @property
    def _may_queue(self) -> bool:
        """One more unit may wait."""
        return sum(place.kept for place in self._places.values()) < self._most_queued

    def _waits(self, name: UnitName, place: P) -> bool:
        return place.kept and not place.asked and self._places.get(name) is place

    def _forget(self, name: UnitName, place: P) -> None:
        del self._places[name]
        self._turns += place.kept

    def _in_own_names(self, constraints: Constraints) -> Constraints | Refusal:
        """The constraints with the domain's names of the nodes to be avoided."""
        if constraints.accelerators and constraints.real_accelerators and self._emulated:
            return Refusal("the domain's accelerators are emulated, and real ones are asked for")
        names = self._node_names
        avoided = frozenset(names[node_id] for node_id in constraints.excluded_nodes if node_id in names)
        return replace(constraints, excluded_nodes=avoided)

    def _taken(self) -> dict[str, set[int]]:
        """Indices of the accelerators that our places hold, by node."""
        taken: dict[str, set[int]] = {}
        for rank in (rank for place in self._places.values() for rank in place.ranks):
            taken.setdefault(rank.node_id, set()).update(rank.accelerator_indices)
        return taken

    def _strayed(self, found: Iterable[J], after_s: float) -> list[J]:
        """Which jobs of ``found``, held for nobody, have been so for ``after_s`` seconds; each is named once in so long."""
        now_s = asyncio.get_running_loop().time()
        jobs = list(found)
        self._stray = {job: self._stray.get(job, now_s) for job in jobs}
        due = [job for job in jobs if now_s - self._stray[job] >= after_s]
        self._stray |= dict.fromkeys(due, now_s)
        return due
