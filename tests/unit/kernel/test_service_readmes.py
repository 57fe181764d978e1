"""Each service's README names every route and every setting that the service has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meridian.service import Kernel, build_service
from meridian.settings import PARTS, SERVICES, HttpSettings, KernelSettings

ROOT = Path(__file__).resolve().parents[3]
# Parts of a service stand in its README.
FOLDERS = {name: name.partition("_")[0] for name in (*SERVICES, *PARTS)}


@pytest.fixture(scope="module", params=FOLDERS)
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Kernel]:
    name = request.param
    return name, build_service(name, KernelSettings(data_dir=tmp_path_factory.mktemp("data")))


def readme(name: str) -> str:
    return (ROOT / "services" / FOLDERS[name] / "README.md").read_text(encoding="utf-8")


def normal(path: str) -> str:
    """What a part of a path is called does not count."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def test_every_route_stands_in_the_readme(kernel: tuple[str, Kernel]) -> None:
    name, built = kernel
    lines = [normal(line) for line in readme(name).splitlines()]
    wanted = {
        (method.upper(), normal(path)) for path, found in built.http.openapi()["paths"].items() for method in found
    }
    missing = {
        (method, path)
        for method, path in wanted
        if not any(re.search(rf"(?<![\w}}/]){re.escape(path)}(?![\w/{{])", line) and method in line for line in lines)
    }
    assert missing == set()


def test_every_setting_stands_in_the_readme(kernel: tuple[str, Kernel]) -> None:
    name, built = kernel
    text = readme(name)
    own = set(type(built.http_settings).model_fields) - set(HttpSettings.model_fields)
    assert {field for field in own if not re.search(rf"\b(MERIDIAN_[A-Z]+_)?{field.upper()}\b", text)} == set()
