"""Every error of an HTTP request is a problem object that names the field; every answer carries its trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from datetime import UTC, datetime
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from meridian.errors import ConflictError, ResourceExhaustedError
from meridian.http import PROBLEM, Moment, install_errors, install_tracing
from meridian.observability import trace_id
from meridian.service import create_kernel
from meridian.settings import KernelSettings

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Rank(BaseModel):
    cpus: float = Field(gt=0)


class Order(BaseModel):
    name: str
    ranks: list[Rank] = []
    env: dict[str, int] = {}


class TooFastError(ResourceExhaustedError):
    headers = {"Retry-After": "7"}  # noqa: RUF012


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    install_errors(app)
    install_tracing(app, "test")

    @app.post("/orders")
    async def order(body: Order, limit: Annotated[int, Query(ge=1)] = 1) -> dict[str, str]:
        return {"trace": trace_id()}

    @app.get("/taken")
    async def taken() -> None:
        raise ConflictError("it is taken")

    @app.get("/fast")
    async def fast() -> None:
        raise TooFastError("slow down")

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("the password is hunter2")

    @app.get("/away")
    async def away() -> None:
        raise ConnectionRefusedError("127.0.0.1:5432 refused")

    @app.get("/missing-file")
    async def missing_file() -> None:
        raise FileNotFoundError(2, "no such file", "/etc/secret")

    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


@pytest.mark.parametrize("told", ["application/x-www-form-urlencoded", None])
async def test_a_body_that_is_not_said_to_be_json_is_told_so(client: httpx.AsyncClient, told: str | None) -> None:
    headers = {} if told is None else {"content-type": told}
    answer = await client.post("/orders", content=b'{"name": "a"}', headers=headers)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "header:Content-Type"
    assert "application/json is wanted" in answer.json()["detail"]


async def test_invalid_json_is_a_malformed_request(client: httpx.AsyncClient) -> None:
    answer = await client.post("/orders", content=b'{"name": ', headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (400, PROBLEM)
    assert answer.json()["code"] == "MALFORMED_REQUEST"


async def test_each_wrong_field_has_a_json_pointer(client: httpx.AsyncClient) -> None:
    body = {"ranks": [{"cpus": 1}, {"cpus": 0}], "env": {"a/b~c": "x"}}
    answer = await client.post("/orders?limit=0", json=body)
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "INVALID_ARGUMENT"
    assert {error["pointer"] for error in problem["errors"]} == {
        "/name",
        "/ranks/1/cpus",
        "/env/a~1b~0c",
        "query:limit",
    }
    assert "/ranks/1/cpus" in problem["detail"]


async def test_a_body_of_the_wrong_kind_points_to_the_whole(client: httpx.AsyncClient) -> None:
    problem = (await client.post("/orders", json=[1])).json()
    assert [error["pointer"] for error in problem["errors"]] == [""]
    assert problem["detail"].startswith("body: ")


async def test_expected_errors_keep_their_code_and_headers(client: httpx.AsyncClient) -> None:
    taken = await client.get("/taken")
    assert taken.status_code == 409
    assert (taken.json()["code"], taken.json()["instance"]) == ("CONFLICT", "/taken")
    fast = await client.get("/fast")
    assert (fast.status_code, fast.headers["retry-after"]) == (429, "7")


async def test_errors_of_the_framework_are_problems_too(client: httpx.AsyncClient) -> None:
    nowhere = await client.get("/nowhere")
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "NOT_FOUND")
    wrong = await client.delete("/taken")
    assert (wrong.status_code, wrong.json()["status"], wrong.headers["content-type"]) == (405, 405, PROBLEM)


async def test_an_unexpected_error_tells_nothing_of_the_inside(client: httpx.AsyncClient) -> None:
    answer = await client.get("/broken")
    assert answer.status_code == 500
    assert answer.json()["code"] == "INTERNAL"
    assert "hunter2" not in answer.text


async def test_the_callers_trace_goes_through_and_comes_back(client: httpx.AsyncClient) -> None:
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    answer = await client.post("/orders", json={"name": "a"}, headers=headers)
    assert answer.json() == {"trace": TRACE}
    assert answer.headers["x-correlator"] == TRACE
    problem = await client.get("/taken", headers=headers)
    assert problem.json()["correlationId"] == TRACE


async def test_a_request_without_trace_gets_one_of_its_own(client: httpx.AsyncClient) -> None:
    answers = [await client.post("/orders", json={"name": "a"}) for _ in range(2)]
    traces = [answer.headers["x-correlator"] for answer in answers]
    assert len(set(traces)) == 2
    assert all(len(trace) == 32 for trace in traces)


async def test_what_is_away_for_the_moment_is_to_be_asked_again(client: httpx.AsyncClient) -> None:
    answer = await client.get("/away")
    assert answer.status_code == 503
    assert answer.json()["code"] == "UNAVAILABLE"
    assert answer.headers["retry-after"] == "1"
    assert "5432" not in answer.text
    assert (await client.get("/missing-file")).status_code == 500


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_is_none_in_utc_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="out of range"):
        TypeAdapter(Moment).validate_python(text)
    assert TypeAdapter(Moment).validate_python("2026-01-31T14:00:00+02:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)


async def test_a_listener_that_hangs_up_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The stream has more to say than the connection took when it broke."""
    app = FastAPI()
    install_errors(app)
    install_tracing(app, "test")

    @app.get("/events", response_class=EventSourceResponse)
    async def events() -> AsyncIterator[ServerSentEvent]:
        while True:
            yield ServerSentEvent(raw_data="x")

    full = asyncio.Event()
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, object]:
        message = next(asked, None)
        if message is None:
            await full.wait()
            for _ in range(100):
                await asyncio.sleep(0)
        return message or {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            full.set()
            await asyncio.Event().wait()

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "method": "GET", "path": "/events",
        "raw_path": b"/events", "query_string": b"", "headers": [], "http_version": "1.1", "scheme": "http",
        "server": ("test", 80), "client": ("test", 1), "root_path": "",
    }  # fmt: skip
    await app(scope, receive, send)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


Page = Annotated[int, Query(ge=1)]


def _paged(page_size: Page = 10) -> int:
    return page_size


@pytest.fixture
async def service() -> AsyncIterator[httpx.AsyncClient]:
    """Routes of a service as every one is built."""
    http = create_kernel("ledger", KernelSettings()).http
    router = APIRouter(prefix="/v1")

    @router.get("/items")
    async def items(
        size: Annotated[int, Depends(_paged)],
        state: str = "",
        kind: Annotated[list[str] | None, Query(alias="of")] = None,
    ) -> dict[str, object]:
        return {"size": size, "state": state, "kind": kind}

    @router.get("/plain")
    async def plain() -> dict[str, str]:
        return {}

    @router.get("/events", response_class=EventSourceResponse)
    async def events(after: int = 0) -> AsyncIterator[ServerSentEvent]:
        yield ServerSentEvent(raw_data=str(after))

    @router.get("/page", include_in_schema=False)
    async def page() -> dict[str, str]:
        return {}

    http.include_router(router)
    transport = httpx.ASGITransport(app=http, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_a_parameter_that_no_route_knows_is_refused_by_name(service: httpx.AsyncClient) -> None:
    """A misspelt filter would else be answered by everything there is."""
    answer = await service.get("/v1/items?stat=queued&state=queued&limit=1&limit=2")
    assert (answer.status_code, answer.headers["content-type"]) == (422, PROBLEM)
    assert [error["pointer"] for error in answer.json()["errors"]] == ["query:stat", "query:limit"]
    assert answer.json()["errors"][0]["detail"] == "there is no such parameter; known are: of, page_size, state"
    assert "query:stat" in answer.json()["detail"]
    answer = await service.get("/v1/plain?x")
    assert answer.json()["errors"] == [{"pointer": "query:x", "detail": "there is no such parameter; known are: none"}]
    assert (await service.get("/v1/plain?" + "n" * 5000)).json()["errors"][0]["pointer"] == "query:" + "n" * 100 + "..."


async def test_parameters_that_a_route_knows_are_taken_whoever_declares_them(service: httpx.AsyncClient) -> None:
    """By the route, by what it depends on, by another name than the function's, several times."""
    answer = await service.get("/v1/items?page_size=3&state=queued&of=a&of=b")
    assert answer.json() == {"size": 3, "state": "queued", "kind": ["a", "b"]}
    assert (await service.get("/v1/plain")).status_code == 200
    assert (await service.get("/v1/page?theme=dark")).status_code == 200, "a page is no part of the interface"


async def test_a_stream_refuses_before_it_begins(service: httpx.AsyncClient) -> None:
    refused = await service.get("/v1/events?afer=7")
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "query:afer")
    listened = await service.get("/v1/events?after=7")
    assert (listened.status_code, "data: 7" in listened.text) == (200, True)
