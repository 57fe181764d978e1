"""What the network tells of user-defined resources: what cannot be is left out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from agent.resource_definitions import ResourceDefinitions
from agent.settings import AgentSettings, Domain, Node
from agent.user_resources import CommandPolicy, UserResources
from meridian.codec import encode
from meridian.contracts.resource.v1.resource_pb2 import ResourceDefined, ResourceDefinition
from meridian.resource_model import ResourceModel, resource_from

NOBODY = cast("Any", None)


def _resources(tmp_path: Any) -> UserResources:
    own = resource_from({"name": "seats", "value": 4.0, "scope": ()})
    return UserResources("north", ["n1"], [own], CommandPolicy(), tmp_path)


def _told(resources: UserResources, tmp_path: Any, event: ResourceDefined) -> None:
    domain = Domain(domain_id="north", nodes=(Node(node_id="n1"),))  # type: ignore[call-arg]
    settings = AgentSettings(domain=domain, kafka_bootstrap_servers="none", data_dir=tmp_path)  # type: ignore[call-arg]
    record = encode(event, event_id="1", source="/s", time=datetime(2026, 5, 1, tzinfo=UTC))
    ResourceDefinitions(settings, resources, NOBODY)._take(record.value, record.headers)


def _values(resources: UserResources) -> list[tuple[str, float | None]]:
    return [(amount.resource.name, amount.value) for amount in resources.amounts().get("n1", [])]


def test_a_definition_counts_under_its_own_name(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One that stands under another name would give a node twice what it has."""
    resources = _resources(tmp_path)
    assert _values(resources) == [("seats", 4.0)]
    definition = ResourceDefinition(name="seats", value=100.0)
    _told(resources, tmp_path, ResourceDefined(name="other", definition=definition))
    assert _values(resources) == [("seats", 4.0)]
    assert "other" in caplog.text
    _told(resources, tmp_path, ResourceDefined(name="fpga", definition=ResourceDefinition(name="fpga", value=2.0)))
    assert _values(resources) == [("fpga", 2.0), ("seats", 4.0)]
    _told(resources, tmp_path, ResourceDefined(name="fpga", removed=True))
    assert _values(resources) == [("seats", 4.0)]
    assert isinstance(resources.definitions["seats"], ResourceModel)
