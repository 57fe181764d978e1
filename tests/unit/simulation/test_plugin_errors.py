"""A plugin that fails while a policy is simulated: who, for which job, when; and no file is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from meridian.cli.main import main
from services.scheduler.core import admission, filters, planning, preemption, queue, scores
from services.scheduler.plugins import Registry
from simulation.cli import simulate
from tests.unit.simulation.test_cli import NODE

# At 5 s b waits for a, at 10 s it starts; c has less priority than d, which comes later.
TRACE = """job_id,submit_s,duration_s,accelerators,priority
a,0,10,2,1
b,5,10,2,1
c,30,10,2,0
d,32,10,2,5
"""
REGISTRIES: tuple[dict[str, Any], ...] = (
    filters.FILTERS,
    scores.SCORES,
    queue.ORDERS,
    admission.LIMITS,
    preemption.PREEMPTIONS,
    planning.PLANNERS,
)
Call = Callable[[str], Result]


class Tags:
    """A filter that fails."""

    name = "test_tags"
    dynamic = True

    def passes(self, view: Any, demand: Any, rows: Any) -> Any:
        return view.facts["tags"]

    def why(self, view: Any, demand: Any, row: int) -> str:
        return ""


class Wordy:
    """A score whose answer is no array: the error is raised by the core."""

    name = "test_wordy"
    dynamic = False

    def nodes(self, view: Any, demand: Any, rows: Any) -> Any:
        return {"only-0": 1.0}


class Late:
    """An order that fails for one job."""

    name = "test_late"
    per = "unit"

    def key(self, unit: Any, context: Any) -> float:
        if unit.key.job_id == "b":
            raise ValueError("no lateness")
        return 0.0


class Gate:
    """What `Cap` opens: it fails for one job."""

    def refuses(self, unit: Any) -> str:
        return "" if unit.key.job_id != "c" else str(1 // 0)

    def charge(self, unit: Any, sign: int = 1) -> None: ...


class Cap:
    """A limit with a gate; it has an option, with which it fails."""

    name = "test_cap"

    def open(self, context: Any) -> Gate:
        return Gate()

    def configured(self, options: Any) -> Cap:
        raise KeyError("most")


class Ruthless:
    """A preemption that fails."""

    name = "test_ruthless"

    def victims(self, unit: Any, running: Any, context: Any) -> Any:
        return [each for each in running if each.rank < 1]


class Planless:
    """A planner that fails with two jobs."""

    name = "test_planless"

    def plan(self, cluster: Any, context: Any) -> Any:
        raise RuntimeError("no plan")


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """Runs the command with a policy, all files wanted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(main.commands, "simulate", simulate)
    before = [dict(registry) for registry in REGISTRIES]
    registry = Registry()
    for plugin in (Tags(), Wordy(), Late(), Cap(), Ruthless(), Planless()):
        registry.add(plugin)
    Path("trace.csv").write_text(TRACE)
    Path("network.yaml").write_text(NODE)

    def run(policy: str) -> Result:
        Path("policy.yaml").write_text(f"name: test\n{policy}\n")
        command = ["simulate", "--trace", "trace.csv", "--format", "csv", "--domains", "network.yaml"]
        files = ["--json", "out.json", "--plot", "out.png", "--schedule", "out.csv"]
        return CliRunner().invoke(main, [*command, "--policy", "policy.yaml", *files])

    yield run
    for names, content in zip(REGISTRIES, before, strict=True):
        names.clear()
        names.update(content)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            "selection: {order: [test_late]}",
            r"policy test, seed 0: the order 'test_late' failed at 5 s of virtual time, job b: ValueError: .*errors\.py, line \d+, Late\.key\)",
        ),
        (
            "selection: {order: [age], limits: [test_cap]}",
            r"policy test, seed 0: the limit 'test_cap' failed at 30 s of virtual time, job c: ZeroDivisionError: .*Gate\.refuses\)",
        ),
        (
            "selection: {order: [priority, age], preemption: [test_ruthless]}",
            r"policy test, seed 0: the preemption 'test_ruthless' failed at 5 s of virtual time, job b: AttributeError: .*rank.*",
        ),
        (
            "planner: test_planless\ninterval_s: 7",
            r"policy test, seed 0: the planner 'test_planless' failed at 7 s of virtual time, 2 jobs waiting and 0 running: Runtime.*",
        ),
        (
            "allocation: {filters: [up, test_tags, capacity]}",
            r"policy test: the filter 'test_tags' failed on the empty network, before the first run, job a: KeyError: 'tags' .*",
        ),
        (
            "allocation: {scores: {test_wordy: 1}}",
            r"policy test: an answer of the score 'test_wordy' could not be used on the empty network, before the first run, job a: TypeError: .*",
        ),
    ],
)
def test_who_failed_is_told_and_nothing_is_written(call: Call, policy: str, message: str) -> None:
    result = call(policy)
    assert result.exit_code == 2, result.output
    assert re.fullmatch(f"error: {message}", result.stderr.splitlines()[-1]), result.stderr
    assert "Traceback" not in result.output
    assert sorted(path.name for path in Path().iterdir()) == ["network.yaml", "policy.yaml", "trace.csv"]


def test_a_plugin_that_fails_with_its_options_is_told_with_the_line(call: Call) -> None:
    result = call("selection:\n  limits:\n    - test_cap: {most: 3}")
    assert result.exit_code == 2, result.output
    assert "policy.yaml" in result.stderr
    assert "line 4" in result.stderr
    assert "test_cap: the plugin fails with them: KeyError: 'most'" in result.stderr
