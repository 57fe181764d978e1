"""What every registered score promises, on fleets, loads and demands drawn at random: finite values from 0 to 1, one per
domain or node asked for, the same for a node whichever others are asked for with it, and no change by placing where
``dynamic`` is False."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.scheduler.core.fleet import Device, Domain, Fleet, Link, Node, NodeState
from services.scheduler.core.scores import SCORES, DomainScore, NodeScore, SetScore
from services.scheduler.core.state import Demand
from services.scheduler.core.table import table_of
from services.scheduler.core.view import View
from simulation.interference import Interference, Pair, Profile
from simulation.model import Throughputs
from tests.unit.scheduler.scoring.fleets import GIB

NAMES = ("a", "b", "c")
MODELS = ("A100", "V100", "K80")
PROFILES = ("", "lm", "gan")
BUILT_IN = tuple(sorted(SCORES))

amounts = st.floats(0, 1e9, allow_nan=False)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    domains = {
        name: Domain(
            name,
            draw(st.integers(0, 3)),
            draw(st.sampled_from([0, 1, 1_000_000])),
            draw(st.sampled_from(["", "EUR", "USD"])),
            draw(st.sampled_from([0.0, 50.0, 600.0])),
            tuple(
                Link(
                    other,
                    draw(st.sampled_from([0.0, 0.02])),
                    draw(st.sampled_from([0.0, 1e9])),
                    draw(st.integers(0, 9)),
                )
                for other in NAMES
                if other != name and draw(st.booleans())
            ),
            burst=draw(st.booleans()),
        )
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True))
    }
    nodes = {}
    for place in range(draw(st.integers(0, 7))):
        models = draw(st.lists(st.sampled_from(MODELS), max_size=4))
        topology = {level: draw(st.sampled_from("xy")) for level in ("rack", "spine") if draw(st.booleans())}
        nodes[f"n{place}"] = Node(
            f"n{place}",
            draw(st.sampled_from(NAMES)),
            draw(st.sampled_from([0.0, 1.0, 2.5, 96.0])),
            draw(st.sampled_from([0, GIB, 64 * GIB])),
            tuple(Device(index, "NVIDIA", model, emulated=index == 3) for index, model in enumerate(models)),
            state=draw(st.sampled_from([NodeState.HEALTHY, NodeState.DEGRADED, NodeState.ASLEEP, NodeState.FAILED])),
            topology=topology,
            idle_watts=draw(st.sampled_from([0.0, 300.0])),
            wake_s=draw(st.sampled_from([0.0, 120.0])),
        )
    return Fleet(domains, nodes, expected_demand={"a": draw(amounts)})


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    profile = draw(st.sampled_from(PROFILES))
    return Demand(
        ranks=draw(st.integers(1, 5)),
        cpus=draw(st.sampled_from([0.0, 0.5, 2.0, 200.0])),
        memory_bytes=draw(st.sampled_from([0, GIB, 100 * GIB])),
        accelerators=draw(st.integers(0, 4)),
        accelerator_types=draw(st.sampled_from([(), ("a100",), ("v100", "k80"), ("h100",)])),
        real_accelerators=draw(st.booleans()),
        device_milli=draw(st.sampled_from([1, 300, 1000])),
        cross_domain=draw(st.booleans()),
        checkpoint_domain=draw(st.sampled_from(["", "a", "z"])),
        checkpoint_bytes=draw(st.integers(0, 10**13)),
        data=tuple(draw(st.lists(st.tuples(st.sampled_from(["a", "b", "z"]), amounts), max_size=3))),
        traffic_bytes_per_s=draw(st.sampled_from([0.0, 1e6, 1e12])),
        profile=profile,
        labels=frozenset({f"profile:{profile}", "devices:0"} if profile else {"devices:1"}),
    )


def facts_of(view: View, data: st.DataObject) -> dict[str, Any]:
    rates = Throughputs()
    rates.rates["lm", 1] = {"A100": 3.0, "K80": 1.0}
    pairs = Interference([Pair(Profile("lm"), Profile("gan"), "", 0.7, 0.9)])
    size, count = len(view.table.domain_ids), len(view.table.nodes)
    values = {
        "throughputs": rates,
        "interference": pairs,
        "typical_demands": (
            (Demand(1, cpus=1.0, accelerators=1, device_milli=300), 2.0),
            (Demand(1, accelerators=2), 1.0),
        ),
        "carbon_g_per_kwh": np.linspace(0.0, 500.0, size),
        "electricity_micro_units_per_kwh": np.linspace(0.0, 9.0, size),
        "share_gap": np.linspace(-2.0, 2.0, size),
        "asleep": np.arange(count) % 2,
    }
    kept = data.draw(st.lists(st.sampled_from(sorted(values)), unique=True))
    return {name: values[name] for name in kept}


def load(view: View, held: list[Demand]) -> None:
    """Place single ranks on the first node where they fit."""
    for demand in held:
        columns = view.columns(demand)
        rows = np.flatnonzero(view.ranks_that_fit(demand, columns))
        for row in rows[:1].tolist():
            whole = demand.device_milli == 1000 and demand.accelerators
            if whole and view.free_devices[row, columns].max(initial=0) < demand.accelerators:
                continue
            view.take(row, demand, columns)


def values_of(score: object, view: View, demand: Demand) -> np.ndarray:
    if isinstance(score, DomainScore):
        values = score.domains(view, demand)
        assert values.shape == (len(view.table.domain_ids),)
    elif isinstance(score, NodeScore):
        values = score.nodes(view, demand, slice(None))
        assert values.shape == (len(view.table.nodes),)
        every = np.arange(len(view.table.nodes))
        for rows in (every[::2], every[::-1], every[:1]):
            np.testing.assert_array_equal(score.nodes(view, demand, rows), values[rows])
    else:
        assert isinstance(score, SetScore)
        ids = range(len(view.table.domain_ids))
        sets = [(one,) for one in ids] + [(one, other) for one in ids for other in ids if one != other]
        values = np.array([score.domain_set(view, demand, domains) for domains in [*sets, tuple(ids)] if domains])
        values = np.where(values == -math.inf, 0.0, values)
    assert np.isfinite(values).all(), (score, values)
    assert ((values >= 0) & (values <= 1)).all(), (score, values)
    return np.array(values)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(fleet=fleets(), held=st.lists(demands(), max_size=5), demand=demands(), more=demands(), data=st.data())
def test_values_are_as_promised(
    fleet: Fleet, held: list[Demand], demand: Demand, more: Demand, data: st.DataObject
) -> None:
    view = View(table_of(fleet))
    view.facts.update(facts_of(view, data))
    load(view, held)
    for name in BUILT_IN:
        values_of(SCORES[name], view, demand)
    # Nodes that were down when the table was made come up: more is free than the table counted.
    view.set_up(range(len(view.table.nodes)), up=True)
    before = {name: values_of(SCORES[name], view, demand) for name in BUILT_IN}
    load(view, [more, demand])
    for name in BUILT_IN:
        after = values_of(SCORES[name], view, demand)
        if not getattr(SCORES[name], "dynamic", False):
            np.testing.assert_array_equal(before[name], after, err_msg=name)
