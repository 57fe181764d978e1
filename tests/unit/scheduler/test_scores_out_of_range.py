"""Scores that do not keep to 0-1: they order badly, but nothing goes where it does not fit, and every decision comes to its end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.scheduler.core.policy import Policy
from services.scheduler.core.scores import SCORES
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Floats
from services.scheduler.core.view import View
from tests.unit.scheduler.world import World, a_fleet, gang, task


class RefusingNodes:
    """A node score of a third party that says the same of every node."""

    name = "refusing_nodes"
    dynamic = False

    def __init__(self, value: float) -> None:
        self._value = value

    def nodes(self, view: View, _demand: Demand, rows: Any) -> Floats:
        return np.full(len(view.free_cpus[rows]), self._value)


class RefusingDomains:
    """A domain score of a third party that says the same of every domain."""

    name = "refusing_domains"
    dynamic = False

    def __init__(self, value: float) -> None:
        self._value = value

    def domains(self, view: View, _demand: Demand) -> Floats:
        return np.full(len(view.table.domain_ids), self._value)


@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
@pytest.mark.parametrize("plugin", [RefusingNodes, RefusingDomains])
def test_only_what_has_room_is_chosen(
    value: float, plugin: type[RefusingNodes | RefusingDomains], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCORES, plugin.name, plugin(value))
    world = World(a_fleet({"a": 2, "b": 2}, devices=4), Policy(scores=((plugin.name, 1.0),)))
    for name in ("first", "second"):
        world.submit(name, task(accelerators=4))
        world.cycle()
    world.submit("gang", gang(6, accelerators=1))
    world.cycle()
    world.submit("third", task(accelerators=4))
    world.submit("fourth", task(accelerators=4))
    world.cycle()
    taken = [
        (rank.node_id, device) for run in world.book.runs.values() for rank in run.ranks for device in rank.devices
    ]
    assert len(taken) == len(set(taken)) <= 16
    assert {run.key.job_id for run in world.book.runs.values()} >= {"first", "second"}
    assert np.all(world.book.cluster.view.free_devices >= 0)
