"""Plugins of other distributions, as importlib.metadata finds them; and the code of docs/writing-a-policy.md."""

from __future__ import annotations

import importlib
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from meridian.cli import policy_commands
from meridian.errors import ConfigurationError
from services.scheduler import plugins
from services.scheduler.core import admission, filters, planning, preemption, queue, scores
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.outlooks import tenants_held_for
from services.scheduler.core.policy import Policy
from services.scheduler.core.stages import check
from services.scheduler.plugins import GROUP, load_plugins
from services.scheduler.policy.file import parse, shipped_names

DOC = Path(__file__).parents[3] / "docs/writing-a-policy.md"
REGISTRIES = (
    filters.FILTERS,
    scores.SCORES,
    queue.ORDERS,
    admission.LIMITS,
    preemption.PREEMPTIONS,
    planning.PLANNERS,
)
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution of one module into a folder on the path, as an installer leaves it; gone after the test."""
    before = [dict(registry) for registry in REGISTRIES]
    modules = set(sys.modules)
    monkeypatch.setattr(plugins, "_loaded", set())
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(name: str, module: str, code: str, points: dict[str, str], version: str = "1.0") -> None:
        (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        lines = "".join(f"{point} = {value}\n" for point, value in points.items())
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}", encoding="utf-8")
        importlib.invalidate_caches()  # a folder that was listed at the same tick of the clock counts as known

    yield put
    for registry, content in zip(REGISTRIES, before, strict=True):
        registry.clear()  # type: ignore[attr-defined]
        registry.update(content)  # type: ignore[attr-defined]
    for module in set(sys.modules) - modules:
        if getattr(sys.modules[module], "__file__", None) and str(tmp_path) in str(sys.modules[module].__file__):
            del sys.modules[module]


ALL_KINDS = """
import numpy as np

class Even:
    name = "acme_even"
    dynamic = False
    def passes(self, view, demand, rows):
        return np.arange(len(view.table.nodes))[rows] % 2 == 0
    def why(self, view, demand, row):
        return "odd"

class Last:
    name = "acme_last"
    dynamic = False
    def nodes(self, view, demand, rows):
        return np.linspace(0.0, 1.0, len(view.table.nodes))[rows]

class Named:
    name = "acme_named"
    per = "unit"
    def key(self, unit, context):
        return float(len(unit.key.job_id))

class Open:
    def refuses(self, unit):
        return ""
    def charge(self, unit, sign=1):
        pass

class Limit:
    name = "acme_limit"
    def open(self, context):
        return Open()

class Nobody:
    name = "acme_nobody"
    def victims(self, unit, running, context):
        return ()

class Nothing:
    name = "acme_nothing"
    def plan(self, cluster, context):
        return ()

def register(registry):
    registry.filter(Even())
    registry.score(Last())
    registry.order(Named())
    registry.limit(Limit())
    registry.preemption(Nobody())
    registry.planner(Nothing())

an_object = Last()
"""
NAMES = [
    "filter acme_even", "score acme_last", "order acme_named", "limit acme_limit", "preemption acme_nobody", "planner acme_nothing",
]  # fmt: skip


def test_a_function_registers_plugins_of_every_kind(install: Install) -> None:
    install("acme-plugins", "acme_plugins", ALL_KINDS, {"all": "acme_plugins:register"})
    assert load_plugins() == NAMES
    policy = parse(
        "name: acme\nselection: {order: [acme_named], limits: [acme_limit], preemption: [acme_nobody]}\n"
        "allocation: {filters: [up, acme_even, capacity], scores: {acme_last: 1}}"
    )
    check(policy)
    assert policy.limits == ("acme_limit",)
    # A planner reads no limits, so it stands in a policy of its own.
    assert parse("name: acme\nplanner: acme_nothing").planner == "acme_nothing"


def test_classes_and_objects_are_known_by_their_methods(install: Install) -> None:
    points = {
        "a": "acme_plugins:Even",
        "b": "acme_plugins:an_object",
        "c": "acme_plugins:Named",
        "d": "acme_plugins:Limit",
        "e": "acme_plugins:Nobody",
        "f": "acme_plugins:Nothing",
    }
    install("acme-plugins", "acme_plugins", ALL_KINDS, points)
    assert load_plugins() == NAMES
    # Once in a process, however often a service is built.
    assert load_plugins() == []


def test_without_plugins_there_is_nothing_to_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(plugins, "_loaded", set())
    assert load_plugins() == []


BROKEN = {
    "no module": ("x = 1", "acme_nowhere:x", "ModuleNotFoundError: No module named 'acme_nowhere'"),
    "no attribute": ("x = 1", "acme_broken:y", "AttributeError"),
    "fails on import": ("raise ValueError('no licence')", "acme_broken:x", "ValueError: no licence"),
    "no syntax": ("def", "acme_broken:x", "SyntaxError"),
    "no plugin": ("x = 7", "acme_broken:x", "7 is neither a plugin nor a function"),
    "no method": ("class X:\n    name = 'x'", "acme_broken:X", "has the methods of none of the kinds of plugins"),
    "two kinds": (
        "class X:\n    name = 'x'\n    def key(self): pass\n    def plan(self): pass",
        "acme_broken:X",
        "has the methods of more than one of the kinds of plugins",
    ),
    "no name": ("class X:\n    name = ''\n    def plan(self): pass", "acme_broken:X", "has no name"),
    "half a filter": ("class X:\n    name = 'x'\n    def passes(self): pass", "acme_broken:X", "the filter 'x' has no why and no dynamic"),
    "half an order": ("class X:\n    name = 'x'\n    def key(self): pass", "acme_broken:X", "the order 'x' has no per"),
    "a wrong per": ("class X:\n    name = 'x'\n    per = 'week'\n    def key(self): pass", "acme_broken:X", "per must be unit, tenant"),
    "a name that is taken": (
        "class X:\n    name = 'price'\n    dynamic = False\n    def nodes(self, view, demand, rows): pass",
        "acme_broken:X",
        "a score 'price' exists already",
    ),
    "arguments": ("class X:\n    name = 'x'\n    def __init__(self, y): pass", "acme_broken:X", "TypeError"),
    "fails to register": ("def x(registry):\n    registry.colour(1)", "acme_broken:x", "AttributeError: 'Registry' object has no"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "value", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_an_error_names_the_distribution(install: Install, code: str, value: str, said: str) -> None:
    install("acme-broken", "acme_broken", code, {"it": value}, version="2.3")
    with pytest.raises(ConfigurationError) as caught:
        load_plugins()
    assert f"the plugin it = {value} of the distribution acme-broken 2.3 cannot be used: " in caught.value.detail
    assert said in caught.value.detail


# -- docs/writing-a-policy.md ------------------------------------------------------------------------------------------


def blocks() -> dict[str, str]:
    """The code of the page by file name."""
    found = re.findall(
        r'^```\w+ title="([^"]+)"\n(.*?)^```$', DOC.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return dict(found)


@pytest.fixture
def page(install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files of the page in the current folder, its distribution installed."""
    found = blocks()
    project = tomllib.loads(found["pyproject.toml"])
    assert project["tool"]["setuptools"]["py-modules"] == ["acme_headroom"]
    points = project["project"]["entry-points"][GROUP]
    install(
        project["project"]["name"], "acme_headroom", found["acme_headroom.py"], points, project["project"]["version"]
    )
    for name, text in found.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return found


def test_every_block_of_the_page_is_looked_at() -> None:
    text = DOC.read_text(encoding="utf-8")
    untitled = re.findall(r"^```(\w+)$", text, re.MULTILINE)
    assert untitled == ["console"]
    assert set(blocks()) == {
        "night-shift.yaml", "wrong.yaml", "wrong.txt", "acme_headroom.py", "pyproject.toml", "cheap-with-headroom.yaml", "test_headroom.py",
        "held.yaml",
    }  # fmt: skip


def test_the_policy_of_the_page(page: dict[str, str]) -> None:
    policy = parse(page["night-shift.yaml"])
    assert policy.order == ("boosted_priority", "fair_share", "age")
    assert (policy.discipline, policy.reservation_depth, policy.estimate) == ("easy", 2, "limit")
    assert policy.domain_node_scores == (("beijing", (("pack", 5.0), ("health", 1.0))),)
    assert policy.tenant_weights == (("vision", 2.0), ("speech", 1.0))
    assert policy.options_of("boosted_priority") == {"boosts": (("speech", 10),)}
    assert policy.restarts.exclusion_s == 120.0
    assert policy.filters == Policy().filters


def test_the_policy_that_holds_capacity(page: dict[str, str]) -> None:
    policy = parse(page["held.yaml"])
    assert policy.limits == ("preallocation",)
    assert tenants_held_for(policy) == {"speech"}


def test_the_error_of_the_page(page: dict[str, str]) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(page["wrong.yaml"])
    assert caught.value.detail == page["wrong.txt"].strip()


def test_the_plugin_of_the_page(page: dict[str, str]) -> None:
    with pytest.raises(PolicyError, match="there is no score 'headroom'"):
        parse(page["cheap-with-headroom.yaml"])
    # The test of the page loads the plugin by its entry point and decides with it.
    runpy.run_path("test_headroom.py")["test_headroom_outweighs_price"]()
    with pytest.raises(
        PolicyError, match=r"line 6: allocation\.scores\.headroom\.options\.reserve: must be at least 0\.01"
    ):
        parse(page["cheap-with-headroom.yaml"].replace("0.25", "0"))


def test_the_commands_of_the_page_exist(page: dict[str, str]) -> None:
    commands = re.findall(r"^\$ meridian policy ([^#\n]+)", DOC.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 7
    for line in commands:
        name, *arguments = shlex.split(line)
        command = policy_commands.policy.get_command(click.Context(policy_commands.policy), name)
        assert command is not None, line
        command.make_context(name, arguments)


def test_the_page_names_what_there_is() -> None:
    text = DOC.read_text(encoding="utf-8")
    line = text[text.index("Shipped policies") : text.index("alone is a whole policy")]
    assert set(re.findall(r"`([a-z-]+)`", line)) == set(shipped_names())
