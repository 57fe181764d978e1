"""A domain in a process of its own, reached through a pipe, for bench/two_level.py.

Messages are short as those of the contracts are: a class of demands has a number that stands for it once it was told, a unit is
its key with the number of its class, and a summary gives room by number (`PlacementRequest`, `PlacementAnswer`).
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.two_level import Answer, Assignment, LocalDomain
from services.scheduler.core.waiting_unit import PendingUnit


class Numbers:
    """Numbers of classes that both ends of a pipe know."""

    def __init__(self) -> None:
        self.demands: list[Demand] = []
        self._places: dict[Demand, int] = {}

    def of(self, demand: Demand) -> int:
        """The number of a class; the next one for a new class."""
        place = self._places.setdefault(demand, len(self.demands))
        if place == len(self.demands):
            self.demands.append(demand)
        return place

    def learn(self, new: Iterable[Demand]) -> None:
        """The other end numbered these."""
        for demand in new:
            # Built anew: a demand carries the hash of the process that made it.
            self.of(replace(demand))


def serve(connection: Connection, local: Callable[[], LocalDomain]) -> None:
    """A domain's process: places what it is told until the pipe closes."""
    domain, numbers = local(), Numbers()
    name = domain.cluster.table.domain_ids[0]
    while True:
        try:
            kind, *body = connection.recv()
        except EOFError:
            return
        if kind == "begin":
            new, units, classes, now_s = body
            numbers.learn(new)
            assignments = [
                Assignment(PendingUnit(key, tenant, 0, now_s, numbers.demands[number]), name, first_rank, whole)
                for key, tenant, number, first_rank, whole in units
            ]
            domain.begin(assignments, [numbers.demands[number] for number in classes], now_s)
            answer = domain.answer()
            rooms = {numbers.of(demand): room for demand, room in answer.summary.ranks.items()}
            told = replace(answer.summary, ranks={})
            connection.send((answer.placed, answer.refused, told, rooms, time.process_time()))
        elif kind == "back":
            domain.give_back(*body)
        else:
            return


class RemoteDomain:
    """A domain in a process of its own; ``processor_s`` is what that took so far, as of its last answer."""

    def __init__(self, name: str, local: Callable[[], LocalDomain]) -> None:
        context = multiprocessing.get_context("fork")
        self._name, self._numbers, self._told = name, Numbers(), 0
        self.processor_s = 0.0
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, local), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, assignments: Sequence[Assignment], classes: Sequence[Demand], now_s: float) -> None:
        """Tell it."""
        numbers = self._numbers
        wanted = [numbers.of(demand) for demand in classes]
        units = [
            (item.unit.key, item.unit.tenant_id, numbers.of(item.unit.demand), item.first_rank, item.whole)
            for item in assignments
        ]
        new, self._told = numbers.demands[self._told :], len(numbers.demands)
        self._connection.send(("begin", new, units, wanted, now_s))

    def answer(self) -> Answer:
        """Wait for what it says."""
        placed, refused, told, rooms, self.processor_s = self._connection.recv()
        ranks = {self._numbers.demands[number]: room for number, room in rooms.items()}
        return Answer(self._name, placed, refused, replace(told, ranks=ranks))

    def give_back(self, keys: Sequence[UnitKey], now_s: float) -> None:
        """Runs end."""
        self._connection.send(("back", tuple(keys), now_s))

    def close(self) -> None:
        """End the process."""
        self._connection.send(("end",))
        self._process.join(10.0)
