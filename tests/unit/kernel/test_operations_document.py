"""What `docs/operations.md` names is there: settings, metrics, commands, folders."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from meridian.service import build_service
from meridian.settings import PARTS, SERVICES, KernelSettings

ROOT = Path(__file__).resolve().parents[3]
TEXTS = {
    name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("operations.md", "integrating-a-cloud.md")
}

# What programs are told is written in their protocol, and set where they are launched.
PROGRAMS = (ROOT / "docs/program-protocol.md").read_text(encoding="utf-8")
LAUNCHING = [path.read_text(encoding="utf-8") for path in (ROOT / "agent").rglob("*.py")]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    settings = KernelSettings(data_dir=tmp_path_factory.mktemp("data"))
    return [build_service(name, settings) for name in (*SERVICES, *PARTS)]


@pytest.mark.parametrize("document", TEXTS)
def test_every_variable_is_a_setting(document: str, kernels: list[object]) -> None:
    known = {f"MERIDIAN_{name}".upper() for name in KernelSettings.model_fields}
    for kernel in kernels:
        kind = type(kernel.http_settings)  # type: ignore[attr-defined]
        known |= {f"{kind.model_config['env_prefix']}{name}".upper() for name in kind.model_fields}
    known |= {name for name in re.findall(r"`(MERIDIAN_\w+)`", PROGRAMS) if any(name in text for text in LAUNCHING)}
    named = set(re.findall(r"\bMERIDIAN_[A-Z_]+[A-Z]\b(?!>)", TEXTS[document]))
    assert named - known - {"MERIDIAN"} == set()


def test_every_metric_is_measured(kernels: list[object]) -> None:
    known = {
        sample
        for kernel in kernels
        for family in kernel.registry.collect()  # type: ignore[attr-defined]
        for sample in (family.name, f"{family.name}_total", f"{family.name}_bucket")
    }
    agent = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "agent").glob("*.py"))
    known |= set(re.findall(r"meridian_agent_[a-z_]+", agent))
    named = set(re.findall(r"\bmeridian_[a-z_]+", TEXTS["operations.md"]))
    assert len(named) > 20
    assert named - known == set()


@pytest.mark.parametrize("document", TEXTS)
def test_every_module_and_file_exists(document: str) -> None:
    text = TEXTS[document]
    for module in set(re.findall(r"python -m ([a-z_.]+)", text)):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    for name in set(re.findall(r"`((?:docs|proto|tests|examples|agent|deploy|services)/[a-z_./-]*[a-z])`", text)):
        assert (ROOT / name).exists(), name


def test_the_topics_a_partner_is_told_of_are_those_of_the_contracts() -> None:
    from meridian.catalogue import Audience, catalogue

    rows = re.findall(
        r"\| `(meridian\.[a-z.0-9]+)` \| (?:read|write) \| (.*?) \| `(\w+)` \|", TEXTS["integrating-a-cloud.md"]
    )
    assert len(rows) == 4
    for topic, events, key in rows:
        assert catalogue().topics[topic].audience is Audience.PARTNER
        assert set(re.findall(r"`(\w+)`", events)) == {
            event.name.rsplit(".", 1)[-1] for event in catalogue().events_on(topic)
        }
        assert {event.key_field for event in catalogue().events_on(topic)} == {key}


def test_the_dead_letter_command_explains_itself() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "meridian.dead_letters", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "replay" in result.stdout
