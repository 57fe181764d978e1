"""The solver's own words do not reach standard output, where a program's answer goes."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from scipy import sparse

from services.scheduler.planners.mixed_integer import Limits, minimise
from services.scheduler.planners.solver_output import no_solver_output


def test_a_program_that_the_solver_repairs_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    rows = generator.random((20, 40)) * 1e12
    most = rows.sum(axis=1) * 0.3
    cost = -generator.random(40)
    print("before", flush=True)
    found = minimise(cost, sparse.csr_array(rows), np.full(20, -np.inf), most, Limits(nodes=50))
    print("after", flush=True)
    assert found.values is not None
    assert (rows @ found.values <= most * (1 + 1e-9)).all()
    assert capfd.readouterr().out == "before\nafter\n"


def test_the_last_of_several_threads_gives_standard_output_back(capfd: pytest.CaptureFixture[str]) -> None:
    inside, leave = threading.Event(), threading.Event()

    def solve() -> None:
        with no_solver_output():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=solve)
    thread.start()
    assert inside.wait(10)
    with no_solver_output():
        os.write(1, b"of the solver\n")
    os.write(1, b"of another solver that is not done\n")
    leave.set()
    thread.join(10)
    os.write(1, b"an answer\n")
    assert capfd.readouterr().out == "an answer\n"


def test_an_error_gives_standard_output_back(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="inside"), no_solver_output():
        raise ValueError("inside")
    os.write(1, b"an answer\n")
    assert capfd.readouterr().out == "an answer\n"
