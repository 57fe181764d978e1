"""The probe program: gradients are right, medians are medians, results are what was done over the time it took."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from agent.benchmark import program, transformer
from agent.benchmark.backends import NumpyBackend
from agent.benchmark.timing import timed
from meridian.cli.main import main

TINY = program.Sizes(16, 1 << 12, 1 << 20, 2, 3, 8, 0.0)


def test_the_gradients_of_the_layer_are_those_of_its_loss() -> None:
    draws = np.random.default_rng(0)
    weights = transformer.initial(4, np.float64, draws)
    x = draws.standard_normal((2, 3, 4))
    _, gradients = transformer.step(x, weights)
    for name in transformer.NAMES:
        for index in np.ndindex(*weights[name].shape):
            moved = []
            for sign in (1, -1):
                changed = {key: value.copy() for key, value in weights.items()}
                changed[name][index] += sign * 1e-6
                moved.append(transformer.step(x, changed)[0])
            assert gradients[name][index] == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-4, abs=1e-8), name


def test_the_median_is_what_counts_and_the_first_run_does_not() -> None:
    # Each run reads the clock before and after; the budget reads it in between.
    durations = iter([5.0, 1.0, 2.0])
    now = [0.0]
    runs = [0]

    def work() -> None:
        runs[0] += 1
        if runs[0] == 1:
            now[0] += 100.0
        else:
            now[0] += next(durations)

    found = timed(work, lambda: now[0], budget_s=4.0, fewest=3)
    assert (found.seconds, found.runs) == (2.0, 3)
    assert found.spread == pytest.approx((5.0 - 1.0) / 2.0)


def test_throughput_is_work_over_time() -> None:
    def ticking() -> Iterator[float]:
        value = 0.0
        while True:
            yield value
            value += 0.5

    ticks = ticking()
    values = program.run(NumpyBackend(), TINY, lambda: next(ticks))
    by_task = {(value.task, value.precision): value for value in values}
    assert set(by_task) == {
        ("gemm", "fp32"), ("gemm", "fp64"), ("memory_bandwidth", "unstated"), ("loopback", "unstated"),
        ("transformer_step", "fp32"), ("transformer_step", "fp64"),
    }  # fmt: skip
    assert by_task["gemm", "fp32"].throughput == 2 * 16**3 / 0.5
    assert by_task["memory_bandwidth", "unstated"].throughput == 2 * 4096 / 0.5
    assert by_task["transformer_step", "fp64"].throughput == 6 / 0.5


def test_sizes_are_part_of_what_is_compared() -> None:
    assert program.program_id(program.CPU) != program.program_id(program.CPU_QUICK)


def test_the_command_prints_what_it_measured() -> None:
    done = CliRunner().invoke(main, ["probe", "--device", "cpu", "--quick", "--chip", "EPYC 9654", "--json"])
    assert done.exit_code == 0, done.output
    for part in ('"chip_id": "epyc-9654"', '"task": "gemm"', '"program": "meridian-probe/1 512/', '"sent": null'):
        assert part in done.output


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_what_was_measured_is_shown_though_it_could_not_be_sent(tmp_path: Path, arguments: list[str]) -> None:
    """No network is there; a full run takes minutes."""
    measured = ["probe", "--device", "cpu", "--quick", "--chip", "EPYC 9654", "--send"]
    done = CliRunner().invoke(main, ["--data-dir", str(tmp_path), *measured, *arguments])
    assert done.exit_code != 0
    assert "gemm" in done.stdout
    assert "error: " in done.stderr
