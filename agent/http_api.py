"""What the agent answers over HTTP: health, metrics, logs of runs, and the death of an emulated machine on request.

Starlette alone: FastAPI would double the time an agent needs to start.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import asdict, dataclass
from urllib.parse import parse_qs

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from agent.engines.base import EmulatedMachines, Engine
from agent.run_logs import RunLogs
from meridian.errors import InvalidArgumentError, MeridianError, PermissionDeniedError, UnauthenticatedError

PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class AgentView:
    """What the API needs of the agent. ``not_ready`` and ``not_live`` say what is missing, empty when nothing is."""

    engine: Engine
    logs: RunLogs
    registry: CollectorRegistry
    token: str
    emulated: bool
    knows_run: Callable[[str], bool]
    not_ready: Callable[[], str]
    not_live: Callable[[], str]


def create_api(agent: AgentView) -> Starlette:
    """The application."""

    async def live(_: Request) -> Response:
        return _health(agent.not_live())

    async def ready(_: Request) -> Response:
        return _health(agent.not_ready())

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(agent.registry), media_type=CONTENT_TYPE_LATEST)

    async def logs(request: Request) -> Response:
        _authenticate(request, agent.token)
        run_id = request.path_params["run_id"]
        rank, offset = _whole_number(request, "rank"), _whole_number(request, "offset")
        active = any(run.run_id == run_id for run in agent.engine.list_runs())
        piece = agent.logs.read(run_id, rank, offset, PIECE_BYTES, may_be_empty=active or agent.knows_run(run_id))
        complete = not active and piece.next_offset == piece.size_bytes
        return JSONResponse({"run_id": run_id, "rank": rank, **asdict(piece), "complete": complete})

    async def kill(request: Request) -> Response:
        _authenticate(request, agent.token)
        if not agent.emulated or not isinstance(agent.engine, EmulatedMachines):
            raise PermissionDeniedError("only emulated machines can be killed")
        node_id = request.path_params["node_id"]
        await agent.engine.kill_node(node_id)
        return JSONResponse({"node_id": node_id, "killed": True}, status_code=202)

    return Starlette(
        routes=[
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/metrics", metrics),
            Route("/logs/{run_id}", logs),
            Route("/nodes/{node_id}/kill", kill, methods=["POST"]),
        ],
        exception_handlers={MeridianError: _problem},
    )


def _health(missing: str) -> Response:
    return PlainTextResponse(missing or "ok", status_code=503 if missing else 200)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, MeridianError)
    body = error.problem(instance=request.url.path)
    return JSONResponse(body, status_code=error.status, media_type="application/problem+json")


def _authenticate(request: Request, token: str) -> None:
    """The join token opens logs and kill; without one configured they stay shut."""
    kind, _, shown = request.headers.get("authorization", "").partition(" ")
    if not token or kind.lower() != "bearer" or not hmac.compare_digest(shown.encode(), token.encode()):
        raise UnauthenticatedError("a bearer token is needed")


def _whole_number(request: Request, name: str) -> int:
    text = parse_qs(request.url.query).get(name, ["0"])[-1]
    if not text.isdecimal() or len(text) > 15:
        raise InvalidArgumentError(f"{name}: expected a whole number from 0")
    return int(text)
