"""Page tokens, JSON of messages, graph and incident folds, tokens' scopes, the live feed."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.contracts.failover.v1 import failover_pb2
from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.run.v1 import run_pb2
from meridian.errors import ConfigurationError, InvalidArgumentError
from services.gateway import cursor
from services.gateway.auth import expand
from services.gateway.network import graph_changes, incident_changes
from services.gateway.rates import parse_limit
from services.gateway.submission import request_hash
from services.gateway.wire import to_body, to_text


@given(st.integers(0, (1 << 63) - 1))
def test_a_page_token_leads_back_to_its_position(position: int) -> None:
    assert cursor.decode("jobs", cursor.encode("jobs", position)) == position
    with pytest.raises(InvalidArgumentError):
        cursor.decode("runs", cursor.encode("jobs", position))


@given(st.text(max_size=40))
def test_other_texts_are_no_page_tokens(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        # Should the text be a token by chance, it is the one token of its position.
        position = cursor.decode("jobs", text)
        assert cursor.encode("jobs", position) == text
        cursor.decode("runs", text)
    assert caught.value.errors[0].pointer == "query:page_token"


def test_messages_become_plain_json() -> None:
    event = run_pb2.RunFailed(kind=run_pb2.RUN_FAILURE_KIND_OUT_OF_MEMORY, epoch=1 << 60, rank=0, log_tail="a\x00")
    event.at.FromJsonString("2026-01-02T03:04:05.678Z")
    body = to_body(event)
    assert body["kind"] == "out_of_memory"
    assert body["epoch"] == 1 << 60
    assert body["at"] == "2026-01-02T03:04:05.678Z"
    assert body["rank"] == 0
    assert body["exit_code"] is None
    assert body["log_tail"] == "a\ufffd"
    progress = to_body(run_pb2.RunProgress(metrics={"loss": math.nan, "b\x00": 1.5}))
    assert progress["metrics"] == {"loss": None, "b\ufffd": 1.5}
    assert progress["at"] is None
    assert json.loads(to_text(progress)) == progress


def node_update(*node_ids: str, full: bool = False, removed: tuple[str, ...] = ()) -> graph_pb2.GraphUpdated:
    update = graph_pb2.GraphUpdated(domain_id="d", full=full, removed_node_ids=removed)
    for node_id in node_ids:
        update.nodes.add(state=graph_pb2.NODE_STATE_HEALTHY).inventory.node_id = node_id
    return update


@given(st.data())
def test_graph_updates_taken_together_are_as_one_after_the_other(data: st.DataObject) -> None:
    ids = st.sampled_from(["a", "b", "c"])
    updates = data.draw(
        st.lists(
            st.builds(
                lambda present, full, removed: node_update(*present, full=full, removed=() if full else tuple(removed)),
                st.sets(ids),
                st.booleans(),
                st.sets(ids),
            ),
            min_size=1,
            max_size=6,
        )
    )
    truth: set[str] = {"a", "old"}
    for update in updates:
        present = {node.inventory.node_id for node in update.nodes}
        truth = (present if update.full else truth | present) - set(update.removed_node_ids)
    [change] = graph_changes(updates)
    stored = {"a", "old"}
    stored = (set() if change.full else stored - change.removed) | set(change.nodes)
    assert stored == truth


def test_a_state_change_finds_its_node_inside_and_outside_the_batch() -> None:
    def changed(node_id: str) -> graph_pb2.NodeStateChanged:
        return graph_pb2.NodeStateChanged(
            domain_id="d", node_id=node_id, state=graph_pb2.NODE_STATE_FAILED, reason="dead"
        )

    [change] = graph_changes([node_update("a"), changed("a"), changed("z")])
    assert change.nodes["a"].state == "failed"
    assert change.states == {"z": ("failed", "dead")}


def test_an_incident_opens_worsens_and_closes() -> None:
    fields = {"domain_id": "d", "node_id": "n", "incident_id": "i"}
    messages = [
        failover_pb2.NodeSuspected(**fields, reason="silent"),
        failover_pb2.NodeFailed(**fields, reason="dead"),
    ]
    for second, message in enumerate(messages):
        message.at.FromSeconds(1_800_000_000 + second)
    changes = incident_changes(messages, [])
    row = changes.incidents["i"]
    assert (row.state, row.reason, row.closed_at) == ("failed", "dead", None)
    recovered = failover_pb2.NodeRecovered(**fields)
    recovered.at.FromSeconds(1_800_000_005)
    row = incident_changes([recovered], [row]).incidents["i"]
    assert (row.state, row.reason) == ("recovered", "dead")
    assert row.opened_at is not None
    assert row.closed_at is not None
    assert (row.closed_at - row.opened_at).total_seconds() == 5


def test_an_incident_of_a_node_that_is_forgotten_is_over() -> None:
    fields = {"domain_id": "d", "node_id": "n", "incident_id": "i"}
    failed, forgotten = failover_pb2.NodeFailed(**fields, reason="dead"), failover_pb2.NodeForgotten(**fields)
    failed.at.FromSeconds(1_800_000_000)
    forgotten.at.FromSeconds(1_800_000_009)
    row = incident_changes([failed, forgotten], []).incidents["i"]
    assert (row.state, row.closed_at) == ("forgotten", row.updated_at)
    assert row.updated_at is not None


def test_scopes_contain_others() -> None:
    assert expand(["operator"]) == {"operator", "jobs:read", "jobs:write", "resources:read"}
    assert "operator" in expand(["admin"])
    assert expand(["jobs:write"]) == {"jobs:write"}
    assert expand([]) == frozenset()


def test_limits_are_read_or_refused() -> None:
    assert parse_limit("100/minute").amount == 100
    with pytest.raises(ConfigurationError):
        parse_limit("many")


def test_the_order_of_keys_does_not_make_another_request() -> None:
    assert request_hash("a", {"x": 1, "y": 2}) == request_hash("a", {"y": 2, "x": 1})
    assert request_hash("a", {"x": 1}) != request_hash("b", {"x": 1})
