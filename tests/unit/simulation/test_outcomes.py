"""What happens to each job under every policy is pinned: making decisions faster must not change one of them.

``outcomes.json`` holds a digest per policy of when each job of the shipped trace began and ended, and how often it was
interrupted. A change that means to decide otherwise writes it anew, and says so:

    python -m tests.unit.simulation.test_outcomes
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

import pytest

from services.scheduler.core.decide import decide
from simulation import engine
from simulation.domains import read_network
from simulation.engine import Simulation
from simulation.policies import SETTINGS
from simulation.traces import limited, load, scaled

ROOT = Path(__file__).parents[3]
KNOWN = Path(__file__).with_name("outcomes.json")
JOBS = 90
NAMES = [name for name, setting in SETTINGS.items() if not setting.policy.planner]


def outcomes(name: str) -> list[tuple[str, str, float, float, int]]:
    """Per job, in the order of their ends: name, domain, begin and end in milliseconds, interruptions."""
    network = read_network(ROOT / "simulation" / "networks" / "small.yaml")
    trace = load(ROOT / "examples" / "traces" / "synthetic.csv", "csv")
    measures = Simulation(network, scaled(limited(trace, jobs=JOBS), network, 1.6), SETTINGS[name]).run()
    return [
        (job.job_id, job.domain_id, round(job.first_start_s, 3), round(job.finish_s, 3), job.interruptions)
        for job in measures.jobs
    ]


def digest(found: list[tuple[str, str, float, float, int]]) -> str:
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", NAMES)
def test_outcomes_are_what_they_were(name: str) -> None:
    assert digest(outcomes(name)) == json.loads(KNOWN.read_text())[name]


@pytest.mark.parametrize("name", NAMES)
def test_cycles_that_explain_decide_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They look at every unit that waits; those that nobody asks to explain leave out what has no room."""
    unexplained = outcomes(name)

    def explained(*state: object, explain: bool, keep_memory: bool) -> object:
        assert not explain
        assert not keep_memory
        return partial(decide, explain=True)(*state)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "decide", explained)
    assert outcomes(name) == unexplained


if __name__ == "__main__":
    KNOWN.write_text(json.dumps({name: digest(outcomes(name)) for name in NAMES}, indent=2) + "\n")
