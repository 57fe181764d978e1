"""Bad input: each case names what is wrong, and leaves no trace in any table."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.gateway.conftest import Stack, image, task_file
from tests.integration.gateway.test_jobs import eventually

GIB = 1 << 30
GANG = {"kind": "gang", "gang": {"ranks": 2}}


def workflow(*tasks: dict[str, Any]) -> dict[str, Any]:
    return {"name": "flow", "kind": "workflow", "workflow": {"tasks": list(tasks)}}


def step(name: str = "a", **changes: Any) -> dict[str, Any]:
    return {"name": name, "command": ["true"], **changes}


# (body, pointer that must be named). The network has two domains: beijing (2 nodes, 8 cpus, 16 GiB, 4 x Ascend 910B, level 1)
# and shanghai (1 node, 32 cpus, 64 GiB, 8 x H100, level 3).
CASES: list[tuple[Any, str]] = [
    ({"kind": "task", "command": ["x"]}, "/name"),
    ({"name": "n", "command": ["x"]}, "/kind"),
    ({"name": "n", "kind": "task"}, "/command"),
    (task_file(command=[]), "/command"),
    (task_file(command=[""]), "/command/0"),
    (task_file(command=["x"] * 257), "/command"),
    (task_file(command="echo hello"), "/command"),
    (task_file(command=["a\u0000b"]), "/command/0"),
    (task_file(command=[1]), "/command/0"),
    (task_file(name=""), "/name"),
    (task_file(name="x" * 129), "/name"),
    (task_file(name="../etc"), "/name"),
    (task_file(name="two words"), "/name"),
    (task_file(name="line\n"), "/name"),
    (task_file(name=None), "/name"),
    (task_file(kind="batch"), "/kind"),
    (task_file(colour="red"), "/colour"),
    (task_file(env={"1A": "x"}), "/env/1A"),
    (task_file(env={"A": 1}), "/env/A"),
    (task_file(env={"A": "x\u0000"}), "/env/A"),
    (task_file(env=[]), "/env"),
    (task_file(env={f"A{number}": "" for number in range(513)}), "/env"),
    (task_file(working_dir="/a\u0000"), "/working_dir"),
    (task_file(resources={"cpus": "3"}), "/resources/cpus"),
    (task_file(resources={"cpus": 0}), "/resources/cpus"),
    (task_file(resources={"cpus": -1}), "/resources/cpus"),
    (task_file(resources={"cpus": True}), "/resources/cpus"),
    (task_file(resources={"cpus": 4097}), "/resources/cpus"),
    (task_file(resources={"memory_bytes": 1.5}), "/resources/memory_bytes"),
    (task_file(resources={"memory_bytes": 0}), "/resources/memory_bytes"),
    (task_file(resources={"memory_bytes": 1 << 70}), "/resources/memory_bytes"),
    (task_file(resources={"accelerators": -1}), "/resources/accelerators"),
    (task_file(resources={"accelerators": True}), "/resources/accelerators"),
    (task_file(resources={"accelerator_types": ["H100"]}), "/resources/accelerator_types"),
    (task_file(resources={"gpus": 1}), "/resources/gpus"),
    (task_file(max_restarts=-1), "/max_restarts"),
    (task_file(max_restarts=1001), "/max_restarts"),
    (task_file(priority=1001), "/priority"),
    (task_file(priority=0.5), "/priority"),
    (task_file(max_run_time_s=-1), "/max_run_time_s"),
    (task_file(max_run_time_s="1h"), "/max_run_time_s"),
    (task_file(checkpoint={"interval_s": -1}), "/checkpoint/interval_s"),
    (task_file(model={"precision": "bf17"}), "/model/precision"),
    (task_file(model={"layers": 1e10}), "/model/layers"),
    (task_file(placement={"min_security_level": 101}), "/placement/min_security_level"),
    (task_file(placement={"domains": "beijing"}), "/placement/domains"),
    (task_file(gang={"ranks": 2}), "/gang"),
    (task_file(kind="gang"), "/gang"),
    (task_file(kind="gang", gang={"ranks": 0}), "/gang/ranks"),
    (task_file(kind="gang", gang={"ranks": 10_001}), "/gang/ranks"),
    (task_file(kind="gang", gang={"ranks": 2, "allow_cross_domain": 1}), "/gang/allow_cross_domain"),
    (task_file(kind="array"), "/array"),
    (task_file(kind="array", array={"size": 0}), "/array/size"),
    (task_file(kind="array", array={"size": 100_001}), "/array/size"),
    (task_file(kind="service", service={"port": 65_536}), "/service/port"),
    (task_file(kind="workflow", workflow={"tasks": [step()]}), "/command"),
    (workflow(), "/workflow/tasks"),
    (workflow(step("a"), step("a")), "/workflow/tasks/1/name"),
    (workflow(step("a", depends_on=["b"])), "/workflow/tasks/0/depends_on/0"),
    (workflow(step("a", depends_on=["a"])), "/workflow/tasks/0/depends_on"),
    (workflow(step("a", depends_on=["b"]), step("b", depends_on=["a"])), "/workflow/tasks/0/depends_on"),
    (workflow(step("a", command=[])), "/workflow/tasks/0/command"),
    (workflow(step("a", ranks=0)), "/workflow/tasks/0/ranks"),
    (workflow(step("a", resources={"cpus": 64})), "/workflow/tasks/0/resources/cpus"),
    (task_file(env={f"A{number}": "x" * 30_000 for number in range(10)}), ""),
    # What the network can never do.
    (task_file(resources={"cpus": 33}), "/resources/cpus"),
    (task_file(resources={"memory_bytes": 65 * GIB}), "/resources/memory_bytes"),
    (task_file(resources={"accelerators": 9}), "/resources/accelerators"),
    (task_file(resources={"accelerators": 1, "accelerator_types": ["TPU"]}), "/resources/accelerator_types/0"),
    (task_file(resources={"accelerators": 5, "accelerator_types": ["Ascend 910B"]}), "/resources/accelerators"),
    (
        task_file(resources={"accelerators": 1}, placement={"require_real_accelerators": True}),
        "/resources/accelerators",
    ),
    (task_file(placement={"domains": ["atlantis"]}), "/placement/domains/0"),
    (task_file(placement={"exclude_domains": ["atlantis"]}), "/placement/exclude_domains/0"),
    (task_file(placement={"exclude_domains": ["beijing", "shanghai"]}), "/placement/exclude_domains"),
    (task_file(placement={"domains": ["beijing"], "exclude_domains": ["beijing"]}), "/placement/exclude_domains/0"),
    (task_file(placement={"min_security_level": 4}), "/placement/min_security_level"),
    (task_file(resources={"cpus": 16}, placement={"domains": ["beijing"]}), "/resources/cpus"),
    (task_file(kind="gang", gang={"ranks": 9}, resources={"accelerators": 1}), "/gang/ranks"),
    (
        task_file(kind="gang", gang={"ranks": 17, "allow_cross_domain": True}, resources={"accelerators": 1}),
        "/gang/ranks",
    ),
    (task_file(kind="service", service={"replicas": 49}), "/service/replicas"),
    ([], ""),
    ("text", ""),
    (None, ""),
]


async def with_network(stack: Stack) -> dict[str, str]:
    await stack.bus.publish(
        image("beijing"),
        image("shanghai", nodes=1, accelerators=8, cpus=32, memory_bytes=64 * GIB, model="H100", security_level=3),
    )
    headers = stack.issuer.headers()
    await eventually(
        lambda: stack.http.get("/v1/nodes", headers=headers), lambda answer: len(answer.json()["items"]) == 3
    )
    return headers


async def test_every_bad_job_file_is_refused_with_the_field_named_and_nothing_stored(stack: Stack) -> None:
    headers = await with_network(stack)
    before = await stack.rows()
    failures = []
    for body, pointer in CASES:
        for wrapped, prefix, path in (
            (body, "", "/v1/jobs"),
            ({"jobs": [task_file(), body]}, "/jobs/1", "/v1/jobs:batch"),
        ):
            answer = await stack.http.post(
                path, content=json.dumps(wrapped).encode(), headers={**headers, "Content-Type": "application/json"}
            )
            named = [error["pointer"] for error in answer.json().get("errors", [])]
            fits = any(found == prefix + pointer or found.startswith(f"{prefix}{pointer}/[") for found in named)
            good = answer.status_code == 422 and answer.headers["content-type"] == "application/problem+json" and fits
            if not good:
                failures.append((path, str(body)[:120], pointer, answer.status_code, named, answer.text[:200]))
    assert not failures, "\n".join(map(str, failures))
    assert await stack.rows() == before
    # The same network takes what is possible.
    for possible in (
        task_file(**{**GANG, "gang": {"ranks": 8}}, resources={"accelerators": 1}),
        task_file(kind="gang", gang={"ranks": 16, "allow_cross_domain": True}, resources={"accelerators": 1}),
        task_file(resources={"cpus": 32, "memory_bytes": 64 * GIB, "accelerators": 8, "accelerator_types": ["H100"]}),
        task_file(placement={"min_security_level": 3}),
        workflow(step("a"), step("b", depends_on=["a"], ranks=2), step("c", depends_on=["a", "b"])),
    ):
        answer = await stack.http.post("/v1/jobs", json=possible, headers=headers)
        assert answer.status_code == 202, answer.text


async def test_bodies_that_are_no_json_or_too_large(stack: Stack) -> None:
    headers = stack.issuer.headers()
    typed = {**headers, "Content-Type": "application/json"}
    before = await stack.rows()
    for content, status in (
        (b"{", 400),
        (b"", 422),
        (b'{"name": NaN}', 422),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"resources": {"cpus": 1e999}, "name": "a", "kind": "task", "command": ["x"]}', 422),
        (b'{"priority": ' + b"9" * 5000 + b"}", 400),
        (b'{"name": "\\ud800", "kind": "task", "command": ["x"]}', 422),
    ):
        answer = await stack.http.post("/v1/jobs", content=content, headers=typed)
        assert answer.status_code == status, (content[:40], answer.status_code, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
    large = b'{"name": "' + b"x" * (1 << 20) + b'"}'
    answer = await stack.http.post("/v1/jobs", content=large, headers=typed)
    assert answer.status_code == 413
    assert answer.json()["code"] == "PAYLOAD_TOO_LARGE"

    async def chunks() -> Any:
        for _ in range(20):
            yield b" " * 100_000

    answer = await stack.http.post("/v1/jobs", content=chunks(), headers=typed)
    assert answer.status_code == 413
    not_json = await stack.http.post("/v1/jobs", content=json.dumps(task_file()), headers=headers)
    assert not_json.status_code == 422
    too_many = await stack.http.post("/v1/jobs:batch", json={"jobs": [task_file()] * 1001}, headers=headers)
    assert too_many.status_code == 422
    assert too_many.json()["errors"][0]["pointer"] == "/jobs"
    assert await stack.rows() == before


async def test_bad_parameters_are_named(stack: Stack) -> None:
    headers = stack.issuer.headers(scope="operator")
    for path, pointer in (
        ("/v1/jobs?page_size=0", "query:page_size"),
        ("/v1/jobs?page_size=1001", "query:page_size"),
        ("/v1/jobs?page_size=x", "query:page_size"),
        ("/v1/jobs?state=lost", "query:state"),
        ("/v1/jobs?kind=x", "query:kind"),
        ("/v1/jobs?page_token=%00", "query:page_token"),
        ("/v1/jobs/a%20b", "path:job_id"),
        ("/v1/jobs/" + "a" * 129, "path:job_id"),
        ("/v1/jobs/x/logs?rank=-1", "query:rank"),
        ("/v1/nodes?state=x", "query:state"),
        ("/v1/incidents?open=maybe", "query:open"),
        ("/v1/events?after=-1", "query:after"),
        ("/v1/events?job=a%00", "query:job"),
    ):
        answer = await stack.http.get(path, headers=headers)
        assert answer.status_code == 422, path
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer], path
    key = {**headers, "Idempotency-Key": "a b"}
    answer = await stack.http.post("/v1/jobs", json=task_file(), headers=key)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].lower() == "header:idempotency-key"


async def test_unknown_routes_and_methods_are_problems_too(stack: Stack) -> None:
    for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/nothing", 404), ("DELETE", "/v1/jobs", 405)):
        answer = await stack.http.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
    assert set((await stack.http.delete("/v1/jobs")).headers["allow"].split(", ")) == {"GET", "POST"}
