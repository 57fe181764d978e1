"""A hypothetical change of the network or the policy, as `POST /v1/what-if` takes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meridian.errors import FieldError, InvalidArgumentError
from services.scheduler.core.cluster import Cluster
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.fleet import Device, Domain, Fleet, MarkKind, Node, NodeState, with_domain
from services.scheduler.core.policy import Policy, check_numbers
from services.scheduler.core.refit import refit
from services.scheduler.core.scores import SCORES
from services.scheduler.core.stages import check
from services.scheduler.core.units import MOST_AMOUNT
from services.scheduler.policy.file import parse
from services.scheduler.policy.values import LARGEST

_FIELDS = ("nodes_down", "nodes_up", "domains", "prices", "weights", "policy")
_DOMAIN_FIELDS = {
    "domain_id": "",
    "nodes": 1.0,
    "accelerators": 0.0,
    "model": "",
    "vendor": "",
    "cpus": 64.0,
    "memory_bytes": float(2**38),
    "price_micro_units": 0.0,
    "security_level": 0.0,
    "currency": "",
}
_WHOLE = ("nodes", "accelerators", "memory_bytes", "security_level")
_MOST_ACCELERATORS = 64
"""Of one new node."""
_MOST_NODES = 10_000
"""New nodes in all."""
_MOST_DOMAINS = 100


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The network and the policy as they would be."""

    fleet: Fleet
    policy: Policy


def hypothesis(body: Mapping[str, Any], fleet: Fleet, policy: Policy) -> Hypothesis:
    """Read the fields ``nodes_down``, ``nodes_up`` (node ids), ``domains`` (extra ones of equal nodes), ``prices`` (micro-units
    by domain), ``weights`` (by score) and ``policy`` (a document as `PUT /v1/policy` takes it). InvalidArgumentError or
    PolicyError names the field that is wrong."""
    unknown = set(body) - set(_FIELDS)
    if unknown:
        raise _wrong("change", f"there is no such field; known are {', '.join(_FIELDS)}", min(unknown))
    down = _list("nodes_down", body.get("nodes_down", ()))
    for name, state in (("nodes_down", NodeState.FAILED), ("nodes_up", NodeState.HEALTHY)):
        for place, node_id in enumerate(_list(name, body.get(name, ()))):
            if name == "nodes_up" and node_id in down:
                raise _wrong(f"change.{name}[{place}]", f"node {node_id!r} is in change.nodes_down too")
            fleet = _with_node(f"change.{name}[{place}]", fleet, node_id, state)
    domains = _list("domains", body.get("domains", ()))
    if len(domains) > _MOST_DOMAINS:
        raise _wrong("change.domains", f"at most {_MOST_DOMAINS} are wanted, not {len(domains)}")
    before = len(fleet.nodes)
    for place, item in enumerate(domains):
        fleet = _with_new_domain(f"change.domains[{place}]", fleet, item, _MOST_NODES - len(fleet.nodes) + before)
    for domain_id, price in _mapping("prices", body.get("prices", {})).items():
        domain = fleet.domains.get(domain_id)
        if domain is None:
            raise _wrong("change.prices", "there is no such domain", domain_id)
        wanted = round(_number("change.prices", price, domain_id))
        if wanted > MOST_AMOUNT:
            raise _wrong("change.prices", f"must be at most {MOST_AMOUNT:g}, not {price!r}", domain_id)
        fleet = with_domain(fleet, replace(domain, price_micro_units=wanted), ())
    document = body.get("policy", "")
    if not isinstance(document, str):
        raise _wrong("change.policy", "must be a policy document (text)")
    if document:
        policy = _policy(document)
    return Hypothesis(fleet, _weighed(policy, _mapping("weights", body.get("weights", {}))))


def as_it_would_be(cluster: Cluster, before: Fleet, changed: Hypothesis) -> Cluster:
    """A copy of the cluster, on the other network and with the other policy. What runs on nodes that are down stays there."""
    other = cluster.copy()
    if changed.fleet is not before:
        # Fitting them to other arrays changes where they are.
        other.running = {key: replace(running) for key, running in other.running.items()}
        refit(other, before, changed.fleet)
        other.forget()
    other.use(changed.policy)
    return other


def _with_node(path: str, fleet: Fleet, node_id: Any, state: NodeState) -> Fleet:
    node = fleet.nodes.get(node_id) if isinstance(node_id, str) else None
    if node is None:
        raise _wrong(path, f"there is no node {node_id!r}")
    marks = fleet.marks
    if state is NodeState.HEALTHY:
        kinds = {MarkKind.NODE_FAILED, MarkKind.NODE_SUSPECTED}
        marks = {key: mark for key, mark in marks.items() if not (mark.kind in kinds and mark.subject == node_id)}
    other = replace(node, state=state, state_reason="what if")
    return replace(fleet, nodes={**fleet.nodes, node_id: other}, marks=marks)


def _with_new_domain(path: str, fleet: Fleet, body: Any, most_nodes: int) -> Fleet:
    if not isinstance(body, Mapping):
        raise _wrong(path, "must be an object")
    unknown = set(body) - set(_DOMAIN_FIELDS)
    if unknown:
        raise _wrong(path, "there is no such field", min(unknown))
    values: dict[str, Any] = {}
    for name, default in _DOMAIN_FIELDS.items():
        value = body.get(name, default)
        values[name] = _text(f"{path}.{name}", value) if isinstance(default, str) else _number(f"{path}.{name}", value)
        if not isinstance(default, str) and values[name] > MOST_AMOUNT:
            raise _wrong(f"{path}.{name}", f"must be at most {MOST_AMOUNT:g}, not {value!r}")
        if name in _WHOLE and values[name] != int(values[name]):
            raise _wrong(f"{path}.{name}", f"must be a whole number, not {value!r}")
    name = values["domain_id"]
    if not name or name in fleet.domains:
        raise _wrong(f"{path}.domain_id", "must be the name of a domain that does not exist yet")
    if not 1 <= values["nodes"] <= _MOST_NODES:
        raise _wrong(f"{path}.nodes", f"must be 1 to {_MOST_NODES}, not {values['nodes']:g}")
    if values["accelerators"] > _MOST_ACCELERATORS:
        raise _wrong(f"{path}.accelerators", f"must be at most {_MOST_ACCELERATORS}, not {values['accelerators']:g}")
    if values["nodes"] > most_nodes:
        raise _wrong(f"{path}.nodes", f"all new domains together may have {_MOST_NODES} nodes")
    devices = tuple(
        [
            Device(index, values["vendor"], values["model"], emulated=True)
            for index in range(int(values["accelerators"]))
        ]
    )
    nodes = [
        Node(f"{name}-{number}", name, values["cpus"], int(values["memory_bytes"]), devices)
        for number in range(int(values["nodes"]))
    ]
    domain = Domain(
        name,
        security_level=int(values["security_level"]),
        price_micro_units=round(values["price_micro_units"]),
        currency=values["currency"],
    )
    return with_domain(fleet, domain, nodes, full_of=name)


def _weighed(policy: Policy, weights: Mapping[str, Any]) -> Policy:
    """The policy with other weights of scores."""
    changed = {}
    for name, value in weights.items():
        if name not in SCORES:
            raise _wrong("change.weights", f"there is no such score; known are {', '.join(sorted(SCORES))}", name)
        changed[name] = _number("change.weights", value, name)
        if changed[name] > LARGEST:
            raise _wrong("change.weights", f"must be at most {LARGEST:g}, not {value!r}", name)
    if changed:
        policy = replace(policy, scores=tuple({**dict(policy.scores), **changed}.items()))
        check_numbers(policy)
        check(policy)
    return policy


def _policy(document: str) -> Policy:
    """The policy in ``document``; what is wrong in it is wrong at ``change.policy``, and told with its line."""
    try:
        return parse(document, "change.policy")
    except PolicyError as error:
        raise PolicyError(
            error.detail, errors=tuple(FieldError("/change/policy", item.detail) for item in error.errors)
        ) from None


def _list(name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise _wrong(f"change.{name}", "must be a list")
    return value


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(f"change.{name}", "must be an object")
    return value


def _text(path: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(path, "must be text")
    return value


def _number(path: str, value: Any, name: str = "") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise _wrong(path, f"must be a finite number of at least 0, not {value!r}", name)
    return float(value)


def _wrong(path: str, detail: str, name: str = "") -> InvalidArgumentError:
    """What is wrong at ``path`` (`change.domains[0]`), or in the field ``name`` of it, which the caller may have made up."""
    pointer = "/" + path.replace("[", ".").replace("]", "").replace(".", "/")
    if name:
        path, pointer = f"{path}.{name}", f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
    return InvalidArgumentError(f"{path}: {detail}", errors=(FieldError(pointer, detail),))
