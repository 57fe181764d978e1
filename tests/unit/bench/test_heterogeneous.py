"""Figures of planners for unlike accelerators, of a run by hand."""

from __future__ import annotations

import pytest

from bench.heterogeneous import Task, outcome
from simulation.engine import Simulation
from simulation.model import Network, SimDomain, SimNode, Trace, TraceJob
from simulation.policies import setting


def test_a_makespan_counts_from_the_first_submission() -> None:
    """Two jobs of an hour on one accelerator, the first of them submitted after half an hour."""
    network = Network([SimDomain("d", [SimNode("n", "d", 64.0, 1 << 40, 1, "t4")])])
    jobs = [TraceJob(name, 1800.0, 3600.0, 1, 1) for name in "ab"]
    measures = Simulation(network, Trace("by hand", jobs), setting("fifo")).run()
    found = outcome(Task("sia", "fifo", "1", 0.0, 2), measures)
    assert found.makespan_h == pytest.approx(2.0)
    assert found.mean_h == pytest.approx(1.5)
    assert found.finished == 2
