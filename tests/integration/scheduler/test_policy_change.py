"""The policy changes while the scheduler runs: what waits is decided anew, nothing is lost, nothing wrong gets in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from meridian.cli.main import main
from meridian.client import ApiError, Client
from meridian.contracts.common.v1.types_pb2 import Resources
from meridian.contracts.job.v1.job_pb2 import JobPlaced, PlacementConstraints
from meridian.contracts.run.v1.run_pb2 import Assignment, RunFinished
from meridian.errors import ConfigurationError
from services.scheduler.core.policy import Policy
from services.scheduler.core.scores import SCORES
from services.scheduler.live import LiveScheduler
from services.scheduler.policy.changes import change_to
from services.scheduler.policy.file import parse, shipped
from tests.harness import Environment, RunningService, environment
from tests.integration.gateway.issuer import serving
from tests.integration.scheduler.messages import graph, report, submission
from tests.integration.scheduler.test_service import live_of, starts, until

SMALLEST_FIRST = "name: small-first\nselection:\n  order: [smallest, age]\n"
BALANCED = shipped("balanced").version
PLANNED = sorted(shipped("balanced").options_of("completion").items())


@asynccontextmanager
async def scheduler(database_url: str) -> AsyncIterator[tuple[Environment, RunningService]]:
    async with environment(database_url) as stack, stack.service("scheduler") as service:
        yield stack, service


def accelerators(count: int) -> dict[str, Any]:
    return {"resources": Resources(cpus=1, accelerators=count)}


async def put(service: RunningService, text: str, **headers: str) -> httpx.Response:
    return await service.http.put("/v1/policy", content=text.encode(), headers=headers)


async def in_force(service: RunningService) -> str:
    answer = await service.http.get("/v1/policy")
    assert answer.headers["etag"] == f'"{answer.json()["version"]}"'
    version: str = answer.json()["version"]
    return version


async def changes(service: RunningService) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await service.http.get("/v1/policy/versions")).json()["items"]
    return items


async def test_what_waits_is_decided_by_the_new_policy(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        bus = stack.bus
        await bus.publish(graph("beijing", 1, accelerators=8))
        await bus.publish(submission("first", **accelerators(8)))
        first = await bus.expect(Assignment, starts("first"))
        # By age, as the default has it, large comes before small; there is room for one of them only.
        await bus.publish(submission("large", **accelerators(8)))
        await until(service, lambda body: body["units"] == 1)
        await bus.publish(submission("small", **accelerators(4)))
        await until(service, lambda body: [item.get("position") for item in body["items"]] == [1, 2])
        queue = (await service.http.get("/v1/queue")).json()
        assert [item["job_id"] for item in queue["items"]] == ["large", "small"]

        answer = await put(service, SMALLEST_FIRST)
        assert answer.status_code == 200
        version = answer.json()["version"]
        assert answer.json() == {
            "applied": True,
            "changed": True,
            "version": version,
            "previous_version": BALANCED,
            "changes": [
                {"path": "name", "before": "balanced", "after": "small-first"},
                *({"path": f"options.completion.{name}", "before": value, "after": None} for name, value in PLANNED),
                {"path": "order", "before": ["priority", "fair_share", "age"], "after": ["smallest", "age"]},
                {"path": "unlike_planner", "before": "completion", "after": ""},
            ],
            "warnings": [],
            "policy": {**json.loads(json.dumps(parse(SMALLEST_FIRST).as_json())), "version": version},
        }
        assert (await service.http.get("/v1/queue")).json()["policy_version"] == version
        await bus.publish(report(RunFinished, first))
        placed = await bus.expect(JobPlaced, lambda event: event.job_id == "small")
        assert placed.policy_version == version
        assert not bus.events(JobPlaced, lambda event: event.job_id == "large")
        for job_id, expected in (("first", BALANCED), ("small", version)):
            found = (await service.http.get(f"/v1/jobs/{job_id}/explanation")).json()
            assert [item["policy_version"] for item in found["decisions"]] == [expected]
            # What decided then can be looked up now.
            known = (await service.http.get(f"/v1/policy/versions/{expected}")).json()
            assert known["policy"]["version"] == expected
            assert known["in_force"] == (expected == version)
        assert known["source"] == SMALLEST_FIRST


async def test_a_change_alone_makes_a_cycle(database_url: str) -> None:
    """What waits only because of the policy goes as soon as the policy changes, though nothing else happens."""
    async with scheduler(database_url) as (stack, service):
        await stack.bus.publish(graph("beijing", 1))
        strict = PlacementConstraints(min_security_level=5)
        await stack.bus.publish(submission("job-1", placement=strict))
        await until(service, lambda body: body["units"] == 1 and "position" in body["items"][0])
        filters = [name for name in Policy().filters if name != "security"]
        answer = await put(service, json.dumps({"name": "lax", "filters": filters}))
        placed = await stack.bus.expect(JobPlaced)
        assert placed.policy_version == answer.json()["version"] == await in_force(service)


BAD = {
    "unknown plugin": ("name: x\nselection:\n  order: [fare_share]", "/selection/order/0", "line 3: selection.order[0]: there is no order"),
    "unknown key": ("selektion: {}", "/selektion", "line 1: selektion: unknown key"),
    "NaN": ("allocation:\n  scores:\n    price: .nan", "/allocation/scores/price", "line 3: allocation.scores.price: a finite number"),
    "negative": ('{"scores": {"price": -1}}', "/scores/price", "must be at least 0"),
    "cycle": ("queues:\n- {name: a, parent: b}\n- {name: b, parent: a}", "/queues/0/parent", "line 2: queues[0].parent: queue 'a': parent makes a cycle"),
    "no YAML": ("name: [", "", "this is not YAML"),
    "empty": ("", "", "the document is empty"),
}  # fmt: skip


async def test_a_bad_policy_changes_nothing(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        before = await changes(service)
        for text, pointer, said in BAD.values():
            answer = await put(service, text)
            assert answer.status_code == 422
            problem = answer.json()
            assert (answer.headers["content-type"], problem["code"]) == ("application/problem+json", "INVALID_POLICY")
            assert any(item["pointer"] == pointer and said in item["detail"] for item in problem["errors"]), problem
        assert (await service.http.put("/v1/policy", content=b"name: \xff")).status_code == 422
        assert (await service.http.put("/v1/policy", content=b"#" * 300_000)).status_code == 422
        assert (await service.http.put("/v1/policy?changed_by=a%00", content=b"name: x")).status_code == 422
        assert (await service.http.get("/v1/policy/versions/no-such")).status_code == 404
        assert await in_force(service) == BALANCED
        assert await changes(service) == before
        await stack.bus.publish(graph("beijing", 1), submission("job-1"))
        assert (await stack.bus.expect(JobPlaced)).policy_version == BALANCED


class Unsound:
    """A score that passes every check and fails when it is asked."""

    name = "unsound"
    dynamic = False

    def domains(self, view: Any, demand: Any) -> Any:
        raise ZeroDivisionError("on purpose")


async def test_a_policy_whose_cycles_fail_does_not_get_in(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORES, "unsound", Unsound())  # type: ignore[arg-type]
    async with scheduler(database_url) as (stack, service):
        await stack.bus.publish(graph("beijing", 1))
        await until(service, lambda body: len(body["items"]) == 1, "/v1/nodes")
        for query in ("", "?dry_run=true"):
            answer = await service.http.put(f"/v1/policy{query}", content="name: x\nscores: {unsound: 1}")
            assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_POLICY")
            assert answer.json()["detail"].endswith("fails: ZeroDivisionError: on purpose")
        await stack.bus.publish(submission("job-1"))
        assert (await stack.bus.expect(JobPlaced)).policy_version == BALANCED == await in_force(service)


async def test_domains_that_are_not_there_are_warned_of(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """They may join later: the policy holds, and says which of its fields has no effect yet."""
    named = (
        "extends: balanced\nallocation:\n  scores: {pack: 1, share_deficit: 0}\n  domains: {beijin: {scores: {pack: 2}}}\n"
        "shares: {planned: {beijing: 2, lhasa: 1}}\n"
    )
    text = "the network has no domain {!r} now ({}); {} will hold once it joins"
    async with scheduler(database_url) as (stack, service):
        await stack.bus.publish(graph("beijing", 1))
        await until(service, lambda body: len(body["items"]) == 1, "/v1/nodes")
        expected = [
            {
                "field": "allocation.domains.beijin",
                "detail": text.format("beijin", "did you mean 'beijing'?", "these scores"),
            },
            {"field": "shares.planned.lhasa", "detail": text.format("lhasa", "known are beijing", "this share")},
        ]
        tried = await service.http.put("/v1/policy?dry_run=true", content=named.encode())
        assert (tried.status_code, tried.json()["warnings"]) == (200, expected)
        caplog.clear()
        applied = await put(service, named)
        assert (applied.json()["changed"], applied.json()["warnings"]) == (True, expected)
        logged = [item for item in caplog.records if item.levelname == "WARNING" and hasattr(item, "field")]
        assert [{"field": item.field, "detail": item.detail} for item in logged] == expected
        await stack.bus.publish(graph("beijin", 1), graph("lhasa", 1))
        await until(service, lambda body: len(body["items"]) == 3, "/v1/nodes")
        assert (await put(service, named)).json()["warnings"] == []


async def test_dry_runs_and_conditions(database_url: str) -> None:
    async with scheduler(database_url) as (_, service):
        tried = (await service.http.put("/v1/policy?dry_run=true", content=SMALLEST_FIRST)).json()
        assert (tried["applied"], tried["changed"], tried["previous_version"]) == (False, False, BALANCED)
        paths = ["name", *(f"options.completion.{name}" for name, _ in PLANNED), "order", "unlike_planner"]
        assert [item["path"] for item in tried["changes"]] == paths
        assert await in_force(service) == BALANCED
        rebuilt = live_of(service).book

        small = {"if-match": f'"{BALANCED}"'}
        assert (await put(service, SMALLEST_FIRST, **small)).json()["changed"]
        # The same again, as after a lost answer; another one is too late.
        again = await put(service, SMALLEST_FIRST, **small)
        assert (again.status_code, again.json()["changed"]) == (200, False)
        late = await put(service, "extends: fifo", **small)
        assert (late.status_code, late.json()["code"]) == (412, "PRECONDITION_FAILED")
        assert (await service.http.put("/v1/policy?dry_run=1", content="name: x", headers=small)).status_code == 412
        assert await in_force(service) == tried["version"]
        assert [item["version"] for item in await changes(service)] == [tried["version"], BALANCED]
        assert (await put(service, "extends: fifo", **{"if-match": "*"})).json()["version"] == shipped("fifo").version
        # A refusal is no failed transaction, after which everything would be read again.
        assert live_of(service).book is rebuilt


def said_at_start(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of the policy that was set and that of the file, since this was asked last."""
    found = [item.message.partition(",")[0] for item in caplog.records if "the policy that was set" in item.message]
    caplog.clear()
    return found


async def test_a_restart_keeps_the_policy_until_it_is_given_up(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    file = tmp_path / "policy.yaml"
    env = {"MERIDIAN_SCHEDULER_POLICY_FILE": str(file)}
    file.write_text("extends: cheapest", encoding="utf-8")
    cheapest, energy, mine = shipped("cheapest").version, shipped("energy").version, parse(SMALLEST_FIRST).version
    async with environment(database_url) as stack:
        async with stack.service("scheduler", env) as service:
            assert await in_force(service) == cheapest
            assert (await service.http.put("/v1/policy?changed_by=lab/ana", content=SMALLEST_FIRST)).status_code == 200
        assert said_at_start(caplog) == []
        async with stack.service("scheduler", env) as service:
            assert await in_force(service) == mine
            assert said_at_start(caplog) == ["the policy that was set applies"]
            answer = await service.http.delete("/v1/policy?changed_by=lab/bo", headers={"if-match": f'"{cheapest}"'})
            assert answer.status_code == 412
            answer = await service.http.delete("/v1/policy?changed_by=lab/bo", headers={"if-match": f'"{mine}"'})
            assert (answer.json()["version"], answer.json()["previous_version"]) == (cheapest, mine)
            assert await in_force(service) == cheapest
        file.write_text("extends: energy", encoding="utf-8")
        async with stack.service("scheduler", env) as service:
            # Nothing is set any more, so the file is read anew.
            assert await in_force(service) == energy
            assert said_at_start(caplog) == []
            assert (await put(service, SMALLEST_FIRST)).status_code == 200
        async with stack.service("scheduler", env | {"MERIDIAN_SCHEDULER_POLICY_FROM_FILE": "true"}) as service:
            assert await in_force(service) == energy
            assert said_at_start(caplog) == ["the policy that was set gives way to that of the scheduler's file"]
        async with stack.service("scheduler", env) as service:
            assert await in_force(service) == energy
            found = await changes(service)
            assert [(item["version"], item["origin"], item["changed_by"]) for item in reversed(found)] == [
                (cheapest, "file", ""),
                (mine, "api", "lab/ana"),
                (cheapest, "file", "lab/bo"),
                (energy, "file", ""),
                (mine, "api", ""),
                (energy, "file", ""),
            ]
            assert all(item["changed_at"] for item in found)
            half = (await service.http.get("/v1/policy/versions?limit=4")).json()
            rest = (await service.http.get(f"/v1/policy/versions?limit=4&before={half['next_before']}")).json()
            assert half["items"] + rest["items"] == found
            assert rest["next_before"] is None


async def test_a_policy_that_cannot_be_used_any_more_stops_the_start(database_url: str) -> None:
    async with environment(database_url) as stack:
        async with stack.service("scheduler") as service:
            assert (await put(service, "name: gone\norder: [smallest]")).status_code == 200
            async with service.kernel.database.transaction() as connection:
                await connection.execute(
                    sa.text(
                        "UPDATE policy_change SET body = replace(body, 'smallest', 'of-a-plugin') WHERE name = 'gone'"
                    )
                )
        with pytest.raises(ConfigurationError, match=rf"there is no order 'of-a-plugin'.*POLICY_FROM_FILE.*{BALANCED}"):
            async with stack.service("scheduler"):
                pass
        async with stack.service("scheduler", {"MERIDIAN_SCHEDULER_POLICY_FROM_FILE": "true"}) as service:
            assert await in_force(service) == BALANCED


async def test_a_policy_of_an_older_release_goes_on_without_what_its_planner_does_not_read(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Older releases took a preemption beside a planner, where it has no effect."""
    async with environment(database_url) as stack:
        async with stack.service("scheduler") as service:
            answer = await put(service, "name: planned\nplanner: gavel\ninterval_s: 60")
            assert answer.status_code == 200
            version = answer.json()["version"]
            old = """UPDATE policy_change SET version = 'planned-old',
                body = replace(body, '"preemptions": []', '"preemptions": ["priority"]') WHERE name = 'planned'"""
            async with service.kernel.database.transaction() as connection:
                await connection.execute(sa.text(old))
        async with stack.service("scheduler") as service:
            assert await in_force(service) == version
            assert [item["version"] for item in await changes(service)][:2] == [version, "planned-old"]
            (warning,) = [item for item in caplog.records if "does not read" in item.message]
            assert (warning.left_out, warning.before) == (("preemptions",), "planned-old")  # type: ignore[attr-defined]
        caplog.clear()
        async with stack.service("scheduler") as service:
            assert await in_force(service) == version
            assert not [item for item in caplog.records if "does not read" in item.message]


async def test_a_wrong_file_stops_the_start(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("name: x\nscores: {price: -1}", encoding="utf-8")
    async with environment(database_url) as stack:
        with pytest.raises(ConfigurationError, match=r"policy\.yaml: line 2: scores\.price: must be at least 0"):
            async with stack.service("scheduler", {"MERIDIAN_SCHEDULER_POLICY_FILE": str(file)}):
                pass


async def test_memory_follows_the_database_when_a_commit_is_in_doubt(database_url: str) -> None:
    async with scheduler(database_url) as (stack, service):
        live: LiveScheduler = live_of(service)
        wanted = shipped("fifo")
        # As if the answer to a commit had been lost: the database has the change, memory does not know.
        async with service.kernel.database.transaction() as connection:
            row = change_to(wanted, live.now_s(), origin="api", source="extends: fifo")
            await connection.execute(
                sa.text(
                    "INSERT INTO policy_change (version, name, origin, source, body, changed_at_s) "
                    "VALUES (:version, :name, 'api', :source, :body, 1)"
                ),
                {"version": row.version, "name": row.name, "source": row.source, "body": row.body},
            )
        with pytest.raises(RuntimeError, match="on purpose"):
            async with service.kernel.outbox.transaction() as transaction:
                await live.draft(transaction)
                raise RuntimeError("on purpose")
        await stack.bus.publish(graph("beijing", 1), submission("job-1"))
        placed = await stack.bus.expect(JobPlaced)
        assert placed.policy_version == wanted.version == live.policy.version


async def test_each_decision_bears_a_version_that_was_in_force(database_url: str) -> None:
    """Policies change as fast as they can while jobs come; every decision is by one that can be looked up."""
    async with scheduler(database_url) as (stack, service):
        bus = stack.bus
        await bus.publish(graph("beijing", 4, cpus=64))
        await until(service, lambda body: len(body["items"]) == 4, "/v1/nodes")

        async def submit(numbers: range) -> None:
            for number in numbers:
                await bus.publish(submission(f"job-{number}"))

        async def change(numbers: range) -> list[str]:
            answers = [await put(service, f"name: p{number}\ninterval_s: {number}") for number in numbers]
            return [answer.json()["version"] for answer in answers]

        versions = []
        for part in range(3):
            # The jobs of each part come after a policy of their own, so that some policies are used however late they come.
            versions += await change(range(10 * part, 10 * part + 1))
            work = submit(range(40 * part, 40 * part + 40)), change(range(10 * part + 1, 10 * part + 10))
            versions += (await asyncio.gather(*work))[1]
            await bus.expect(JobPlaced, count=40 * part + 40)
        decided = sorted(bus.events(JobPlaced), key=lambda event: event.placed_at.ToNanoseconds())
        used = [event.policy_version for event in decided]
        known = [item["version"] for item in reversed(await changes(service))]
        assert known == [BALANCED, *versions]
        assert set(used) <= set(known)
        assert len(set(used)) > 2, "the policies did not change in the middle of the work"
        # Decisions follow one another as the policies did.
        assert [known.index(version) for version in used] == sorted(known.index(version) for version in used)


# -- through the gateway -----------------------------------------------------------------------------------------------


async def test_operators_change_and_tenants_read(database_url: str, redis_url: str, tmp_path: Path) -> None:
    with serving() as issuer:
        async with (
            environment(database_url, redis_url=redis_url, identity_url=issuer.url) as stack,
            stack.service("scheduler") as service,
            stack.service("gateway", scheduler_url=service.base_url) as gateway,
        ):
            operator, tenant = issuer.token(scope="operator", tenant="ops"), issuer.token(tenant="lab")

            def headers(token: str, **more: str) -> dict[str, str]:
                return {"authorization": f"Bearer {token}", **more}

            http = gateway.http
            for method in ("PUT", "DELETE"):
                refused = await http.request(method, "/v1/policy", content=b"extends: fifo", headers=headers(tenant))
                assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION_DENIED")
                assert (await http.request(method, "/v1/policy", content=b"extends: fifo")).status_code == 401
            assert await in_force(service) == BALANCED
            seen = await http.get("/v1/policy", headers=headers(tenant))
            assert (seen.json()["version"], seen.headers["etag"]) == (BALANCED, f'"{BALANCED}"')

            bad = await http.put("/v1/policy", content=b"order: [nope]", headers=headers(operator))
            assert (bad.status_code, bad.json()["errors"][0]["pointer"]) == (422, "/order/0")
            assert "line 1: order[0]: there is no order 'nope'" in bad.json()["detail"]
            for body, kind, status in (
                (b"{", "application/json", 400),
                (b"[]", "application/json", 422),
                (b"", "", 400),
                (b"# no", "", 422),
            ):
                answer = await http.put("/v1/policy", content=body, headers=headers(operator, **{"content-type": kind}))
                assert answer.status_code == status
            late = await http.put(
                "/v1/policy", content=b"extends: fifo", headers=headers(operator, **{"if-match": '"balanced-0"'})
            )
            assert (late.status_code, late.json()["code"]) == (412, "PRECONDITION_FAILED")
            # What is read can be put back.
            same = await http.put("/v1/policy", json=seen.json(), headers=headers(operator))
            assert (same.json()["version"], same.json()["changes"]) == (BALANCED, [])

            await asyncio.to_thread(by_client, gateway.base_url, operator, tenant)
            await asyncio.to_thread(by_command_line, gateway.base_url, operator, tenant, tmp_path)
            assert await in_force(service) == BALANCED


def by_client(url: str, operator: str, tenant: str) -> None:
    with Client(url, token=operator) as network:
        answer = network.put_policy("extends: fifo", if_match=BALANCED)
        assert answer["version"] == shipped("fifo").version
        assert network.policy()["discipline"] == "strict"
        assert network.policy(BALANCED)["discipline"] == "greedy"
        newest = next(iter(network.policy_versions(limit=1)))
        assert (newest["version"], newest["changed_by"]) == (answer["version"], "ops/client-of-ops")
        with pytest.raises(ApiError) as caught:
            network.delete_policy(if_match=BALANCED)
        assert caught.value.status == 412
    with Client(url, token=tenant) as network:
        assert {item["changed_by"] for item in network.policy_versions()} == {""}
        assert network.policy_version(answer["version"])["changes"][0]["changed_by"] == ""
    with Client(url, token=operator) as network:
        assert network.delete_policy()["version"] == BALANCED
        pages = list(network.items("/v1/policy/versions", page_size=1))
        assert pages == list(network.policy_versions())
        assert len(pages) == 4


def by_command_line(url: str, operator: str, tenant: str, folder: Path) -> None:
    def run(*arguments: str, token: str = operator, text: str | None = None) -> Result:
        env = {"MERIDIAN_URL": url, "MERIDIAN_TOKEN": token}
        return CliRunner().invoke(main, ["policy", *arguments], env=env, input=text)

    good, bad = folder / "good.yaml", folder / "bad.yaml"
    good.write_text(SMALLEST_FIRST, encoding="utf-8")
    bad.write_text("name: x\nselection:\n  order: [fare_share]\n", encoding="utf-8")
    version = parse(SMALLEST_FIRST).version

    checked = run("check", str(good))
    assert (checked.exit_code, version in checked.output) == (0, True)
    refused = run("check", str(bad))
    assert refused.exit_code == 2
    assert "line 3: selection.order[0]: there is no order 'fare_share'; did you mean 'fair_share'?" in refused.output
    doubtful = folder / "doubtful.yaml"
    doubtful.write_text("extends: balanced\nallocation: {domains: {lhasa: {scores: {pack: 2}}}}\n", encoding="utf-8")
    warned = run("check", str(doubtful))
    assert warned.exit_code == 0
    assert "warning: allocation.domains.lhasa: the network has no domain 'lhasa' now (none has joined)" in warned.stderr
    compared = run("diff", str(good))
    assert compared.exit_code == 0
    assert '["smallest", "age"]' in compared.output
    assert parse(run("show").stdout) == shipped("balanced")
    assert run("set", str(good), token=tenant).exit_code == 4

    applied = run("set", str(good), "--if-match", BALANCED)
    assert applied.exit_code == 0
    assert f"{version} is in force, it was {BALANCED}" in applied.output
    assert "in force already" in run("set", str(good)).output
    assert run("set", str(good), "--if-match", "balanced-0", "--version", "x").exit_code == 2
    assert run("set", "-", "--if-match", BALANCED, text="extends: fifo").exit_code == 1
    assert run("show", version).stdout == SMALLEST_FIRST
    assert json.loads(run("show", version, "--json").stdout)["order"] == ["smallest", "age"]
    listed = run("list")
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:3]] == [[version, "api"], [BALANCED, "file"]]
    assert run("set", "--version", "no-such").exit_code == 5
    back = run("set", "--version", BALANCED)
    assert (back.exit_code, BALANCED in back.output) == (0, True)
    assert run("reset").exit_code == 0
