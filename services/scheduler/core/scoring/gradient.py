"""Fragmentation gradient descent as a node score: where placing makes the least more of the free devices useless for the
usual work (Weng et al., "Beware of Fragmentation", USENIX ATC 2023).

The usual work is given, not guessed, by one of
  the option ``demands``              a list of mappings with ``popularity`` > 0 and any of ``cpus``, ``accelerators``,
                                      ``device_milli``, ``accelerator_types``
  the fact ``typical_demands``        (demand, popularity) pairs in a tuple
A change of the fact is seen when judgements are made anew (`View.generation`): scores of nodes do not follow facts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fragmentation import (
    ABSENT,
    SCORE_STEPS,
    Rule,
    ShareDemand,
    SharedNodes,
    TypicalClasses,
    fragmentation_rule,
)
from services.scheduler.core.options import numbers_of, refuse_unknown
from services.scheduler.core.scores import NEUTRAL
from services.scheduler.core.scoring.packing import scaled
from services.scheduler.core.scoring.shared import share_demand, shared_nodes
from services.scheduler.core.state import Demand
from services.scheduler.core.table import Floats, Ints, Table
from services.scheduler.core.view import View

_FIELDS = ("cpus", "accelerators", "device_milli")
_MANY = 128
"""From so many nodes on, each kind is looked at once."""
Popular = tuple[tuple[Demand, float], ...]


def typical_classes(table: Table, demands: Iterable[tuple[Demand, float]], coverage: float = 0.95) -> TypicalClasses:
    """The most popular classes of single ranks that together make up ``coverage`` of the popularity, scaled to 1.

    As `TypicalClasses.of`, with weights instead of counts. PolicyError without demands or for a popularity of 0 or less.
    """
    weights: dict[tuple[int, int, int, tuple[int, ...]], float] = defaultdict(float)
    for demand, popularity in demands:
        if not (math.isfinite(popularity) and popularity > 0):
            raise PolicyError(f"typical_demands: the popularity must be above 0 and finite, not {popularity!r}")
        one = share_demand(table, demand)
        weights[one.cpu_milli, one.device_milli, one.devices, one.models] += popularity
    if not weights:
        raise PolicyError("typical_demands: there are none")
    ranked = sorted(weights, key=lambda key: (weights[key], key), reverse=True)
    popular = np.array([weights[key] for key in ranked])
    enough = int(np.searchsorted(popular.cumsum(), coverage * popular.sum() * (1 - 1e-12))) + 1
    kept, popular = ranked[:enough], popular[:enough]
    accepts = np.zeros((len(kept), len(table.models) + 1), dtype=np.bool_)
    for index, (*_, models) in enumerate(kept):
        accepts[index, [column for column in models if column < len(table.models)] if models else slice(None)] = True
    numbers = np.array([key[:3] for key in kept], dtype=np.int64)
    return TypicalClasses(numbers[:, 0], numbers[:, 2], numbers[:, 1], accepts, popular / popular.sum())


def _alike(nodes: SharedNodes, asked: ShareDemand) -> tuple[SharedNodes, Ints]:
    """One node of each kind, and the kind of each node: in the same state but for the order of devices and the memory, which
    only has to suffice. A large fleet has few kinds."""
    devices = np.sort(nodes.device_free_milli, axis=1)
    enough = nodes.memory_free_bytes >= asked.memory_bytes
    states = np.column_stack([nodes.cpu_free_milli, enough, nodes.device_model, devices])
    order = np.lexsort(states.T)
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (states[order[1:]] != states[order[:-1]]).any(axis=1)
    kind_of = np.empty(len(order), dtype=np.int64)
    kind_of[order] = begins.cumsum() - 1
    return nodes.rows(order[begins]), kind_of


class GradientScore:
    """1 / (1 + exp(growth of fragmentation in devices)) in steps; chooses the device of a share too. See the module.

    Options: ``steps`` (100, as published; 0 for no rounding), ``coverage`` (0.95) of the popularity that the kept classes
    make up, ``demands``. Neutral while no usual work is known.
    """

    name = "fgd"
    dynamic = True

    def __init__(self, steps: float = SCORE_STEPS, coverage: float = 0.95, demands: Popular = ()) -> None:
        self._steps, self._coverage, self._demands = steps, coverage, demands
        self._known: tuple[Any, Table, Rule] | None = None

    def configured(self, options: Mapping[str, Any]) -> GradientScore:
        """With the options of a policy; PolicyError names the wrong one."""
        refuse_unknown(self.name, options, ("steps", "coverage", "demands"))
        numbers = {name: value for name, value in options.items() if name != "demands"}
        found = numbers_of(self.name, numbers, steps=0.0, coverage=0.0)
        coverage = found.get("coverage", self._coverage)
        if not 0 < coverage <= 1:
            raise PolicyError(f"options.{self.name}.coverage: must be above 0 and at most 1, not {coverage:g}")
        return GradientScore(found.get("steps", self._steps), coverage, _demands(self.name, options.get("demands", ())))

    def nodes(self, view: View, demand: Demand, rows: Any) -> Floats:
        rule = self._rule(view)
        nodes = shared_nodes(view, rows)
        if rule is None:
            return np.full(len(nodes.device_model), NEUTRAL)
        asked = share_demand(view.table, demand)
        if len(nodes.device_model) < _MANY:
            return self._values(rule, nodes, asked)
        kinds, kind_of = _alike(nodes, asked)
        values: Floats = self._values(rule, kinds, asked)[kind_of]
        return values

    def _values(self, rule: Rule, nodes: SharedNodes, asked: ShareDemand) -> Floats:
        scored = rule(nodes, asked)
        if self._steps:
            return scaled(scored)
        growth = np.where(np.isfinite(scored.score), -scored.score, np.inf) / 1000.0
        return np.where(np.isfinite(growth), 1.0 / (1.0 + np.exp(np.minimum(growth, 700.0))), 0.0)

    def devices(self, view: View, demand: Demand, columns: Ints, row: int) -> tuple[int, ...]:
        """The device of a share by which fragmentation grows least; no preference for whole devices."""
        rule = self._rule(view)
        asked = share_demand(view.table, demand)
        if rule is None or not asked.shares or not view.table.device_totals[row]:
            return ()
        nodes = shared_nodes(view, np.array([row]))
        accepted = np.isin(view.table.device_columns[row], columns)
        nodes.device_free_milli[0, ~accepted] = ABSENT
        scored = rule(nodes, asked)
        if not np.isfinite(scored.score[0]):
            return ()
        return (view.table.devices_of[row][int(scored.device[0])][0],)

    def _rule(self, view: View) -> Rule | None:
        demands = self._demands or view.facts.get("typical_demands") or None
        if demands is None:
            return None
        if self._known is None or self._known[0] is not demands or self._known[1] is not view.table:
            rule = fragmentation_rule(typical_classes(view.table, demands, self._coverage), int(self._steps))
            self._known = (demands, view.table, rule)
        return self._known[2]


def _demands(plugin: str, values: Any) -> Popular:
    if not isinstance(values, list | tuple):
        raise PolicyError(f"options.{plugin}.demands: a list of mappings is wanted, not {values!r}")
    found = []
    for place, value in enumerate(values):
        where = f"options.{plugin}.demands[{place}]"
        try:
            given = dict(value)
        except (TypeError, ValueError):
            raise PolicyError(f"{where}: a mapping is wanted, not {value!r}") from None
        unknown = [name for name in given if name not in {*_FIELDS, "accelerator_types", "popularity"}]
        if unknown:
            raise PolicyError(f"{where}.{unknown[0]}: unknown field")
        numbers = {name: given[name] for name in (*_FIELDS, "popularity") if name in given}
        for name, number in numbers.items():
            whole = name in {"accelerators", "device_milli"}
            good = isinstance(number, int if whole else int | float) and not isinstance(number, bool)
            if not (good and math.isfinite(number) and number >= 0):
                raise PolicyError(
                    f"{where}.{name}: a {'whole ' if whole else ''}number of at least 0 is wanted, not {number!r}"
                )
        if not numbers.get("popularity"):
            raise PolicyError(f"{where}.popularity: must be above 0")
        if not 1 <= numbers.get("device_milli", 1000) <= 1000:
            raise PolicyError(f"{where}.device_milli: must be 1-1000, not {numbers['device_milli']}")
        types = given.get("accelerator_types", ())
        if not isinstance(types, list | tuple) or not all(isinstance(item, str) for item in types):
            raise PolicyError(f"{where}.accelerator_types: a list of names is wanted, not {types!r}")
        demand = Demand(
            1, **{name: numbers[name] for name in _FIELDS if name in numbers}, accelerator_types=tuple(types)
        )
        found.append((demand, float(numbers["popularity"])))
    return tuple(found)
