"""The job file: bounds, consistency, and its way into the contract and back."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from meridian.contracts.job.v1 import job_pb2
from services.gateway.job_checks import inconsistencies
from services.gateway.job_spec import from_spec, to_spec, units_of
from services.gateway.jobfile import JobFile

NAMES = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=128).filter(
    lambda text: text[0] not in "._-"
)
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=50)
COMMANDS = st.lists(TEXTS, min_size=1, max_size=8).filter(lambda words: bool(words[0]))
RESOURCES = st.fixed_dictionaries(
    {
        "cpus": st.floats(0.01, 4096),
        "memory_bytes": st.integers(1 << 20, 1 << 50),
        "accelerators": st.integers(1, 1024),
        "accelerator_types": st.lists(NAMES, max_size=3),
    }
)


def _workflow(draw: Any) -> dict[str, Any]:
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    tasks = []
    for index, name in enumerate(names):
        needs = draw(st.lists(st.sampled_from(names[:index]), unique=True)) if index else []
        tasks.append(
            {"name": name, "command": draw(COMMANDS), "depends_on": needs, "ranks": draw(st.integers(1, 10_000))}
        )
    return {"tasks": tasks}


@st.composite
def job_files(draw: Any) -> dict[str, Any]:
    kind = draw(st.sampled_from(["task", "array", "gang", "workflow", "service"]))
    body: dict[str, Any] = {
        "name": draw(NAMES),
        "kind": kind,
        "env": draw(st.dictionaries(st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,20}\Z"), TEXTS, max_size=3)),
        "resources": draw(RESOURCES),
        "priority": draw(st.integers(-1000, 1000)),
        "max_run_time_s": draw(st.floats(0, 1e6)),
        "placement": {"domains": draw(st.lists(NAMES, max_size=2)), "min_security_level": draw(st.integers(0, 100))},
    }
    if kind != "workflow":
        body["command"] = draw(COMMANDS)
    if kind == "array":
        body["array"] = {"size": draw(st.integers(1, 100_000))}
    if kind == "gang":
        ranks = draw(st.integers(1, 10_000))
        body["gang"] = {"ranks": ranks, "allow_cross_domain": draw(st.booleans())}
        if draw(st.booleans()):
            body["gang"]["min_ranks"] = draw(st.integers(1, ranks))
            body["gang"]["max_ranks"] = draw(st.integers(ranks, 10_000))
    if kind == "service":
        replicas = draw(st.integers(1, 10_000))
        body["service"] = {"replicas": replicas, "port": draw(st.integers(0, 65_535))}
        if draw(st.booleans()):
            body["service"]["scaling"] = {
                "min_replicas": draw(st.integers(1, replicas)),
                "max_replicas": draw(st.integers(replicas, 10_000)),
                "target": draw(st.floats(1e-6, 1e9)),
                "tolerance": draw(st.floats(0, 0.5)),
                "down_after_s": draw(st.sampled_from([0.0, 300.0, 12.5])),
            }
    if kind == "workflow":
        body["workflow"] = _workflow(draw)
    if draw(st.booleans()):
        body["model"] = {"parameters": draw(st.integers(0, 10**16)), "precision": "bf16", "steps": 10, **RAMP}
        body["rates"] = [{"accelerator_type": draw(NAMES), "ranks": 2, "rate": draw(st.floats(0, 1e9))}]
        body["deadline"] = draw(st.datetimes(timezones=st.just(UTC))).isoformat()
    if draw(st.booleans()):
        milli = draw(st.integers(1, 1000))
        body["resources"] |= {"accelerators": 1, "accelerator_milli": milli}
        if kind in {"task", "array", "service"} and milli < 1000:
            body["resources"]["min_accelerator_milli"] = draw(st.integers(1, milli))
            body["resources"]["max_accelerator_milli"] = draw(st.integers(milli, 1000))
    return body


@given(job_files())
def test_a_sound_job_file_survives_the_contract_and_comes_back_the_same(body: dict[str, Any]) -> None:
    job = JobFile.model_validate(body)
    assert inconsistencies(job) == []
    spec = job_pb2.JobSpec.FromString(to_spec(job).SerializeToString())
    assert JobFile.model_validate(from_spec(spec)) == job
    assert max(1, units_of(spec)) == job.units


@given(job_files(), st.data())
def test_a_single_wrong_type_is_refused(body: dict[str, Any], data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(["name", "kind", "resources", "priority", "max_run_time_s", "env", "placement"]))
    body[field] = data.draw(
        st.sampled_from([None, True, "3", [], float("nan"), float("inf"), {"extra": 1}]).filter(
            lambda value: not (field == "name" and value == "3")
        )
    )
    if field == "env" and body[field] == {"extra": 1}:
        body[field] = {"extra": 1}
    with pytest.raises(ValidationError):
        JobFile.model_validate(body)


@pytest.mark.parametrize("size", [2, 3, 40])
def test_a_cycle_of_any_length_is_found(size: int) -> None:
    tasks = [{"name": f"t{i}", "command": ["x"], "depends_on": [f"t{(i + 1) % size}"]} for i in range(size)]
    tasks.append({"name": "free", "command": ["x"], "depends_on": []})
    job = JobFile.model_validate({"name": "n", "kind": "workflow", "workflow": {"tasks": tasks}})
    [error] = inconsistencies(job)
    assert error.pointer == "/workflow/tasks/0/depends_on"


def test_a_chain_of_a_thousand_tasks_is_no_cycle() -> None:
    tasks = [{"name": f"t{i}", "command": ["x"], "depends_on": [f"t{i - 1}"] if i else []} for i in range(1000)]
    assert (
        inconsistencies(JobFile.model_validate({"name": "n", "kind": "workflow", "workflow": {"tasks": tasks}})) == []
    )


RAMP = {"global_batch": 8, "batch_ramp_start": 4, "batch_ramp_increment": 4, "batch_ramp_samples": 64}

BAD = [
    ({"gang": {"ranks": 2, "min_ranks": 3}}, "/gang/min_ranks"),
    ({"gang": {"ranks": 2, "max_ranks": 1}}, "/gang/max_ranks"),
    (
        {"kind": "service", "service": {"replicas": 1, "scaling": {"min_replicas": 2, "max_replicas": 3, "target": 1}}},
        "/service/scaling/min_replicas",
    ),
    (
        {"kind": "service", "service": {"replicas": 4, "scaling": {"max_replicas": 3, "target": 1}}},
        "/service/scaling/max_replicas",
    ),
    (
        {"gang": {"ranks": 2}, "resources": {"accelerators": 2, "accelerator_milli": 500}},
        "/resources/accelerator_milli",
    ),
    ({"gang": {"ranks": 2}, "resources": {"accelerator_milli": 500}}, "/resources/accelerator_milli"),
    (
        {
            "gang": {"ranks": 2},
            "rates": [{"accelerator_type": "A100", "rate": 1}, {"accelerator_type": "A100", "rate": 2}],
        },
        "/rates/1",
    ),
    (
        {"gang": {"ranks": 1}, "resources": {"accelerators": 1, "min_accelerator_milli": 5}},
        "/resources/min_accelerator_milli",
    ),
    (
        {
            "gang": {"ranks": 1},
            "resources": {"accelerators": 1, "accelerator_milli": 500, "min_accelerator_milli": 600},
        },
        "/resources/min_accelerator_milli",
    ),
    (
        {
            "gang": {"ranks": 1},
            "resources": {"accelerators": 1, "accelerator_milli": 500, "max_accelerator_milli": 400},
        },
        "/resources/max_accelerator_milli",
    ),
    (
        {
            "gang": {"ranks": 2},
            "resources": {"accelerators": 1, "accelerator_milli": 500, "max_accelerator_milli": 600},
        },
        "/resources/max_accelerator_milli",
    ),
    ({"gang": {"ranks": 2}, "model": {"steps": 10, "warm_up_steps": 11}}, "/model/warm_up_steps"),
    ({"gang": {"ranks": 2}, "model": {"global_batch": 8, "batch_ramp_start": 4}}, "/model/batch_ramp_increment"),
    ({"gang": {"ranks": 2}, "model": {**RAMP, "global_batch": 0}}, "/model/global_batch"),
    ({"gang": {"ranks": 2}, "model": {**RAMP, "batch_ramp_increment": 3}}, "/model/batch_ramp_increment"),
    ({"gang": {"ranks": 2}, "model": {**RAMP, "batch_ramp_start": 12}}, "/model/batch_ramp_increment"),
    (
        {
            "gang": {"ranks": 2},
            "model": {**RAMP, "global_batch": 10_002, "batch_ramp_start": 1, "batch_ramp_increment": 1},
        },
        "/model/batch_ramp_increment",
    ),
]


@pytest.mark.parametrize(("more", "pointer"), BAD)
def test_sizes_shares_and_rates_that_contradict_are_named(more: dict[str, Any], pointer: str) -> None:
    job = JobFile.model_validate({"name": "n", "kind": "gang", "command": ["x"], **more})
    assert [error.pointer for error in inconsistencies(job)] == [pointer]


def test_a_deadline_is_kept_in_utc_and_needs_its_offset() -> None:
    body = {"name": "n", "kind": "task", "command": ["x"], "deadline": "2026-03-01T17:00:00+08:00"}
    job = JobFile.model_validate(body)
    assert job.deadline == "2026-03-01T09:00:00Z"
    assert to_spec(job).deadline.seconds == 1_772_355_600
    for bad in ("2026-03-01T17:00:00", "soon", "0001-01-01T00:00:00+23:00"):
        with pytest.raises(ValidationError, match="deadline"):
            JobFile.model_validate({**body, "deadline": bad})


def test_the_part_of_a_task_of_a_workflow_does_not_change() -> None:
    part = {"accelerators": 1, "accelerator_milli": 500, "max_accelerator_milli": 600}
    tasks = [{"name": "a", "command": ["x"], "resources": part}]
    job = JobFile.model_validate({"name": "n", "kind": "workflow", "workflow": {"tasks": tasks}})
    [error] = inconsistencies(job)
    assert error.pointer == "/workflow/tasks/0/resources/max_accelerator_milli"


def _texts(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if node.get("type") == "string" and "enum" not in node:
            yield path, node
        for name, part in node.items():
            yield from _texts(part, f"{path}/{name}")
    elif isinstance(node, list):
        for part in node:
            yield from _texts(part, path)


def test_no_text_of_a_job_file_takes_what_no_table_takes() -> None:
    texts = dict(_texts(JobFile.model_json_schema()))
    open_to_nul = {
        path
        for path, node in texts.items()
        if "pattern" not in node or re.search(node["pattern"], "a\x00b") is not None
    }
    assert open_to_nul == {"/properties/deadline/anyOf"}, "a deadline is kept as the time that was read"


@pytest.mark.parametrize("name", ["gpu", "CPUs", "memory_bytes", "accelerators"])
def test_what_has_a_field_of_its_own_is_no_user_defined_resource(name: str) -> None:
    """Nobody can define it, so a job that asked for it would wait for ever."""
    body = {"name": "n", "kind": "task", "command": ["x"], "resources": {"user_resources": {name: 1}}}
    with pytest.raises(ValidationError, match="is asked for in a field of its own"):
        JobFile.model_validate(body)
