"""No modules of the house import each other in a circle: not at run time, not for types alone, not inside functions."""

from __future__ import annotations

import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def circle(*packages: str) -> list[str]:
    """A circle among the modules of these packages, each imported by the one behind it; empty when there is none."""
    graph = grimp.build_graph(*packages, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    roots = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]["root_packages"]
    assert not (found := circle(*roots)), "in a circle, each imported by the next: " + ", ".join(found)


@pytest.mark.parametrize(
    ("back", "expected"),
    [
        ("", set()),
        ("from house.above import Roof\n", {"house.above", "house.below"}),
        (
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.above import Roof\n",
            {"house.above", "house.below"},
        ),
        ("def build() -> object:\n    from house import above\n    return above\n", {"house.above", "house.below"}),
    ],
    ids=["none", "at run time", "for types", "inside a function"],
)
def test_every_kind_of_import_counts(
    back: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "__init__.py").write_text("")
    (house / "above.py").write_text("from house.below import Wall\n\n\nclass Roof(Wall): ...\n")
    (house / "below.py").write_text(f"{back}\n\nclass Wall: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(circle("house")) == expected
