"""docker-compose.yml: valid by schema, one container per service, and every variable is one that the code reads."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from meridian.settings import SERVICES, HttpSettings, KernelSettings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


def test_it_is_valid(compose: dict[str, Any]) -> None:
    schema = json.loads((ROOT / "tests/contract/compose.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(compose, schema)


def test_every_service_has_a_container_from_the_one_dockerfile(compose: dict[str, Any]) -> None:
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    assert "ARG SERVICE" in dockerfile
    for name in SERVICES:
        build = compose["services"][name]["build"]
        assert build["args"] == {"SERVICE": name}
        assert build["dockerfile"] == "deploy/docker/Dockerfile"
    for line in dockerfile.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), f"the Dockerfile copies {source}, which does not exist"


def test_what_is_referred_to_exists(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"kafka", "postgres", "redis", *SERVICES} <= set(services)
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert set(service.get("secrets", [])) <= set(compose["secrets"]), name
        for dependency, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[dependency], f"{name} waits for the health of {dependency}"
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in compose["volumes"], name


def _settings_of(name: str) -> set[str]:
    module = importlib.import_module(f"services.{name}.settings")
    names = set()
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, HttpSettings) and kind is not HttpSettings:
            prefix = str(kind.model_config.get("env_prefix", ""))
            names |= {f"{prefix}{field}".upper() for field in kind.model_fields}
    return names


@pytest.mark.parametrize("name", SERVICES)
def test_every_variable_is_a_setting(compose: dict[str, Any], name: str) -> None:
    kernel = {f"MERIDIAN_{field}".upper() for field in KernelSettings.model_fields}
    unknown = set(compose["services"][name]["environment"]) - kernel - _settings_of(name)
    assert unknown == set()
