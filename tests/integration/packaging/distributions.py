"""What `pip install .[extra]` brings, told from the metadata of what is installed here."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OWN = {"meridian", "services", "agent", "simulation", "tests"}


def requirements_of(*extras: str) -> list[Requirement]:
    """The base dependencies and those of the extras, as pyproject.toml declares them."""
    texts = [*PROJECT["dependencies"]]
    for extra in extras:
        texts += PROJECT["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def canonical(name: str) -> str:
    """The name of a distribution as it is compared."""
    return canonicalize_name(name)


def closure(requirements: Iterable[Requirement]) -> set[str]:
    """Names of the distributions that installing these brings, dependencies of dependencies included."""
    found: set[tuple[str, str]] = set()
    waiting = [(requirement.name, extra) for requirement in requirements for extra in ("", *requirement.extras)]
    while waiting:
        item = (canonicalize_name(waiting[-1][0]), waiting.pop()[1])
        if item in found:
            continue
        found.add(item)
        for dependency in _requires(item[0]):
            if dependency.marker is None or dependency.marker.evaluate({"extra": item[1]}):
                waiting += [(dependency.name, extra) for extra in ("", *dependency.extras)]
    return {name for name, _ in found}


@cache
def _requires(name: str) -> tuple[Requirement, ...]:
    try:
        return tuple(Requirement(text) for text in requires(name) or ())
    except PackageNotFoundError:
        return ()


@cache
def distributions_by_module() -> dict[str, frozenset[str]]:
    """Top-level module to the distributions that bring it."""
    return {
        module: frozenset(canonicalize_name(name) for name in names)
        for module, names in packages_distributions().items()
    }


def modules_outside(allowed: set[str]) -> set[str]:
    """Importable top-level modules that none of the allowed distributions brings."""
    return {module for module, names in distributions_by_module().items() if module not in OWN and not names & allowed}
