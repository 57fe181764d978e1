"""What placing by energy saves on recorded jobs, beside the baselines: first-fit and least-loaded with and without sleeping nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simulation.domains import read_network
from simulation.engine import Simulation
from simulation.experiment import NETWORKS
from simulation.policies import setting
from simulation.traces import limited, load, scaled

pytestmark = [pytest.mark.external, pytest.mark.timeout(300)]

JOBS = 600
LOAD = 0.4
POLICIES = (
    "first-fit",
    "least-loaded",
    "first-fit-sleeping",
    "least-loaded-sleeping",
    "meridian-sleeping",
    "meridian-energy",
)


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, float]]:
    """Figures by policy: 600 jobs of the Philly log on five domains with watts and carbon, seed 1."""
    named = os.environ.get("MERIDIAN_DATA")
    if not named:
        pytest.skip("MERIDIAN_DATA does not name the folder of public data sets")
    path = Path(named) / "philly" / "october_5_clusters.csv"
    if not path.exists():
        pytest.skip(f"there is no {path}")
    network = read_network(NETWORKS / "philly-5.yaml")
    trace = scaled(limited(load(path, "philly"), JOBS), network, LOAD)
    found = {name: Simulation(network, trace, setting(name), seed=1).run().figures() for name in POLICIES}
    for name, values in found.items():
        shown = ("jct_mean_h", "energy_kwh", "carbon_kg", "electricity_money")
        print(name, {figure: round(values[figure] or 0.0, 2) for figure in shown})
    return {name: {key: value for key, value in row.items() if value is not None} for name, row in found.items()}


def saved(figures: dict[str, dict[str, float]], figure: str, against: str) -> float:
    return 1.0 - figures["meridian-energy"][figure] / figures[against][figure]


def test_all_jobs_end(figures: dict[str, dict[str, float]]) -> None:
    assert {row["jobs"] for row in figures.values()} == {float(JOBS)}


@pytest.mark.parametrize("against", ["first-fit", "least-loaded"])
def test_saves_energy_and_carbon_without_delay(figures: dict[str, dict[str, float]], against: str) -> None:
    """A quarter of each against policies that keep all nodes awake, at no more than 2 % longer completion times."""
    assert saved(figures, "energy_kwh", against) > 0.25
    assert saved(figures, "carbon_kg", against) > 0.25
    assert saved(figures, "jct_mean_h", against) > -0.02


@pytest.mark.parametrize("against", ["first-fit-sleeping", "least-loaded-sleeping", "meridian-sleeping"])
def test_most_of_it_is_sleeping_and_some_is_placing(figures: dict[str, dict[str, float]], against: str) -> None:
    """Against policies whose idle nodes sleep too, a few per cent are left: more of the carbon than of the energy."""
    energy, carbon = saved(figures, "energy_kwh", against), saved(figures, "carbon_kg", against)
    assert 0.01 < energy < 0.1
    assert energy < carbon
