"""What the API server says of jobs, pods and nodes, read. Objects to values, pure: what is not of the expected form counts as not said.

Sources: API reference of core/v1 and batch/v1; "Pod Lifecycle", "Disruptions" (pod condition DisruptionTarget), "Nodes".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agent.collectors.quantities import quantity
from agent.engines.kubernetes.site import CONTAINER, UNIT_ANNOTATION, unit_of
from agent.engines.own_scheduler import UnitName

JOB_NAME = "batch.kubernetes.io/job-name"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
ENDED_PHASES = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class End:
    """How a container ended. ``reason`` is Kubernetes' word (Completed, Error, OOMKilled)."""

    exit_code: int
    signal: int | None
    reason: str
    message: str
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. ``rank`` is its completion index, None: it is no pod of an Indexed Job. ``requests`` are those of all its containers.

    ``waits`` is why its container has not begun (reason, message), ``unschedulable`` what the scheduler says of it, ``disrupted`` who
    takes it away (DisruptionTarget), ``failed`` why it failed as a whole (Evicted, OutOfcpu). Empty texts: nothing was said.
    """

    name: str
    uid: str
    job: str
    unit: UnitName | None
    rank: int | None
    node: str
    phase: str
    ip: str
    leaving: bool
    runs: bool
    waits: tuple[str, str]
    unschedulable: str
    disrupted: tuple[str, str]
    failed: tuple[str, str]
    end: End | None
    started_at: datetime | None
    image: str
    requests: Mapping[str, float]

    @property
    def holds(self) -> bool:
        """What it asks for is taken on its node."""
        return bool(self.node) and self.phase not in ENDED_PHASES


@dataclass(frozen=True, slots=True)
class Job:
    """A Job. ``failed`` is why the Job controller ended it (reason, message)."""

    name: str
    uid: str
    unit: UnitName | None
    ranks: int
    suspended: bool
    leaving: bool
    started_at: datetime | None
    complete: bool
    failed: tuple[str, str]
    suspension: tuple[str, str]

    @property
    def ended(self) -> bool:
        """It makes no pods any more."""
        return self.complete or bool(self.failed[0]) or self.leaving


@dataclass(frozen=True, slots=True)
class Node:
    """A node. ``ready``: its kubelet is heard and well. ``begun_at_s``: since when Kubernetes knows it."""

    name: str
    ready: bool
    unready_since: datetime | None
    takes_pods: bool
    allocatable: Mapping[str, float]
    begun_at_s: int
    taints: tuple[str, ...] = field(default=())


def job_of(content: Mapping[str, Any], domain_id: str) -> Job:
    """A Job as the API server has it."""
    about, spec, status = _map(content, "metadata"), _map(content, "spec"), _map(content, "status")
    conditions = _conditions(status)
    completions = spec.get("completions")
    return Job(
        name=_text(about, "name"),
        uid=_text(about, "uid"),
        unit=unit_of(_map(about, "annotations").get(UNIT_ANNOTATION), domain_id),
        ranks=completions if isinstance(completions, int) else 0,
        suspended=spec.get("suspend") is True,
        leaving="deletionTimestamp" in about,
        started_at=time_of(status.get("startTime")),
        complete="Complete" in conditions or "SuccessCriteriaMet" in conditions,
        failed=conditions.get("Failed") or conditions.get("FailureTarget") or ("", ""),
        suspension=conditions.get("Suspended") or ("", ""),
    )


def pod_of(content: Mapping[str, Any], domain_id: str) -> Pod:
    """A pod as the API server has it."""
    about, spec, status = _map(content, "metadata"), _map(content, "spec"), _map(content, "status")
    annotations, labels = _map(about, "annotations"), _map(about, "labels")
    conditions = _conditions(status)
    containers = _maps(spec, "containers")
    container = next((item for item in containers if item.get("name") == CONTAINER), {})
    told = next((item for item in _maps(status, "containerStatuses") if item.get("name") == CONTAINER), {})
    state = _map(told, "state")
    waiting, running, ended = _map(state, "waiting"), _map(state, "running"), _map(state, "terminated")
    unscheduled = next((item for item in _maps(status, "conditions") if item.get("type") == "PodScheduled"), {})
    waits_for_node = unscheduled.get("status") == "False"
    index = str(annotations.get(COMPLETION_INDEX, ""))
    phase = _text(status, "phase")
    code, signal = ended.get("exitCode"), ended.get("signal")
    return Pod(
        name=_text(about, "name"),
        uid=_text(about, "uid"),
        job=_text(labels, JOB_NAME),
        unit=unit_of(annotations.get(UNIT_ANNOTATION), domain_id),
        rank=int(index) if index.isdecimal() else None,
        node=_text(spec, "nodeName"),
        phase=phase,
        ip=_text(status, "podIP"),
        leaving="deletionTimestamp" in about,
        runs="running" in state,
        waits=(_text(waiting, "reason"), _text(waiting, "message")),
        unschedulable=_text(unscheduled, "message") if waits_for_node else "",
        disrupted=conditions.get("DisruptionTarget") or ("", ""),
        failed=(_text(status, "reason"), _text(status, "message")) if phase == "Failed" else ("", ""),
        end=End(
            code,
            signal if isinstance(signal, int) and signal else None,
            _text(ended, "reason"),
            _text(ended, "message"),
            time_of(ended.get("startedAt")),
            time_of(ended.get("finishedAt")),
        )
        if isinstance(code, int)
        else None,
        started_at=time_of(running.get("startedAt")) or time_of(ended.get("startedAt")),
        image=_text(container, "image"),
        requests=_requests(spec),
    )


def node_of(content: Mapping[str, Any]) -> Node:
    """A node as the API server has it."""
    about, spec, status = _map(content, "metadata"), _map(content, "spec"), _map(content, "status")
    ready = next((item for item in _maps(status, "conditions") if item.get("type") == "Ready"), {})
    begun = time_of(about.get("creationTimestamp"))
    lives = ready.get("status") == "True"
    return Node(
        name=_text(about, "name"),
        ready=lives,
        unready_since=None if lives else time_of(ready.get("lastTransitionTime")),
        takes_pods=lives and spec.get("unschedulable") is not True,
        allocatable=_amounts(_map(status, "allocatable")),
        begun_at_s=int(begun.timestamp()) if begun is not None else 0,
        taints=tuple(
            _text(taint, "key") for taint in _maps(spec, "taints") if taint.get("effect") in {"NoSchedule", "NoExecute"}
        ),
    )


def time_of(text: object) -> datetime | None:
    """``2026-11-22T01:42:01Z``; None: it is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _requests(spec: Mapping[str, Any]) -> dict[str, float]:
    """Of all containers together, or of the init container that asks for more (what Kubernetes counts)."""
    found: dict[str, float] = {}
    for container in _maps(spec, "containers"):
        for name, amount in _amounts(_map(_map(container, "resources"), "requests")).items():
            found[name] = found.get(name, 0.0) + amount
    for container in _maps(spec, "initContainers"):
        for name, amount in _amounts(_map(_map(container, "resources"), "requests")).items():
            found[name] = max(found.get(name, 0.0), amount)
    return found


def _amounts(content: Mapping[str, Any]) -> dict[str, float]:
    return {name: amount for name, value in content.items() if (amount := quantity(value)) is not None}


def _conditions(status: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Reason and message of the conditions that hold."""
    return {
        _text(item, "type"): (_text(item, "reason") or _text(item, "type"), _text(item, "message"))
        for item in _maps(status, "conditions")
        if item.get("status") == "True"
    }


def _map(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = content.get(name)
    return value if isinstance(value, Mapping) else {}


def _maps(content: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    value = content.get(name)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return value if isinstance(value, str) else ""
