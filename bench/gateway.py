"""How many submissions a second one gateway takes, how fast its view follows the bus, and how late the stream is.

Real processes and sockets on this machine: PostgreSQL (fsync on), the embedded broker, Valkey and one gateway process; the
client shares the machine. The baseline is the same FastAPI route with the same checks of token and job file, without
storage, limits and events.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import psutil
import uvicorn
from aiokafka import AIOKafkaProducer
from fastapi import FastAPI, Header
from joserfc import jws, jwt
from joserfc.jwk import OKPKey

from bench.result import Row, Setting, command_line, print_table, write
from meridian.codec import encode
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.run.v1 import run_pb2
from meridian.embedded import postgres, valkey
from meridian.embedded.ports import choose_ports
from meridian.embedded.probes import tcp_accepts
from meridian.embedded.process import ProcessSpec
from meridian.http import install_errors
from services.gateway.job_checks import inconsistencies
from services.gateway.job_spec import to_spec
from services.gateway.jobfile import JobFile

ROOT = Path(__file__).parent.parent
JOB = {
    "name": "train",
    "kind": "gang",
    "command": ["python", "train.py", "--steps", "1000"],
    "env": {"SEED": "1"},
    "resources": {"cpus": 2, "memory_bytes": 1 << 30},
    "gang": {"ranks": 4},
}
EVENTS_PER_JOB = 8


@contextlib.contextmanager
def issuer() -> Iterator[tuple[str, str]]:
    """A JWKS server with one key; yields its address and a token."""
    key = OKPKey.generate_key("Ed25519", parameters={"kid": "bench"})
    keys = json.dumps({"keys": [key.as_dict(private=False)]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(keys)))
            self.end_headers()
            self.wfile.write(keys)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    now = int(time.time())
    claims = {
        "sub": "bench", "tenant": "bench", "aud": "meridian", "jti": "t", "iat": now, "exp": now + 36000,
        "scope": "jobs:read jobs:write resources:read",
    }  # fmt: skip
    token = jwt.encode({"alg": "EdDSA", "kid": "bench"}, claims, key, algorithms=["EdDSA"])
    try:
        yield f"http://127.0.0.1:{server.server_port}", token
    finally:
        server.shutdown()


@asynccontextmanager
async def process(spec: ProcessSpec) -> AsyncIterator[psutil.Process]:
    """A process until the block ends; it has answered when the block begins."""
    if spec.before_start is not None:
        await spec.before_start()
    arguments = spec.popen_arguments()
    arguments.pop("start_new_session", None)
    child = await asyncio.create_subprocess_exec(
        *spec.argv,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=sys.stderr if spec.name == "gateway" else None,
        **arguments,
    )
    try:
        deadline_s = time.monotonic() + 60
        while spec.ready is not None and not await spec.ready():
            if child.returncode is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{spec.name} did not start")
            await asyncio.sleep(0.05)
        yield psutil.Process(child.pid)
    finally:
        if child.returncode is None:
            child.send_signal(spec.stop_signal)
        await child.wait()


async def spread(client: httpx.AsyncClient, count: int, workers: int, call: Callable[[], Awaitable[None]]) -> float:
    """Calls a second, ``workers`` at a time."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await call()

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(workers)))
    return count / (time.perf_counter() - started)


async def baseline(token: str, count: int, workers: int) -> float:
    """The same route without storage, in a process of its own."""
    port = choose_ports(["baseline"], seed=uuid.uuid4().hex)["baseline"]
    spec = ProcessSpec(
        name="baseline",
        argv=(sys.executable, "-m", "bench.gateway", "--serve-baseline", str(port)),
        cwd=ROOT,
        log_path=Path(tempfile.gettempdir()) / "baseline.log",
        ready=tcp_accepts("127.0.0.1", port),
    )
    async with process(spec), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:

        async def call() -> None:
            answer = await client.post("/v1/jobs", json=JOB, headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == 202, answer.text

        await spread(client, count // 10, workers, call)
        return await spread(client, count, workers, call)


def serve_baseline(port: int) -> None:
    """A FastAPI application that checks the job file and the shape of the token, and stores nothing."""
    app = FastAPI()
    install_errors(app)
    key = OKPKey.generate_key("Ed25519")
    signed = jwt.encode({"alg": "EdDSA"}, {"a": 1}, key, algorithms=["EdDSA"])

    @app.post("/v1/jobs", status_code=202)
    async def submit(job: JobFile, authorization: str = Header()) -> dict[str, Any]:
        jws.extract_compact(authorization.removeprefix("Bearer ").encode())
        jwt.decode(signed, key, algorithms=["EdDSA"])
        assert inconsistencies(job) == []
        spec = to_spec(job).SerializeToString()
        return {"job_id": "job", "bytes": len(spec), "spec": job.model_dump(mode="json")}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def job_events(job_id: str) -> list[Any]:
    """What the scheduler and an agent say about a job that runs through."""
    run_id = f"{job_id}.0.1"
    common: dict[str, Any] = {"run_id": run_id, "job_id": job_id, "epoch": 1, "domain_id": "beijing"}
    placed = job_pb2.JobPlaced(job_id=job_id, tenant_id="bench", run_id=run_id, epoch=1)
    placed.ranks.add(domain_id="beijing", node_id="beijing-1")
    events = [
        job_pb2.JobQueued(job_id=job_id, tenant_id="bench", units=1),
        placed,
        run_pb2.RunStarted(**common),
        run_pb2.RunProgress(**common, step=1, total_steps=2, metrics={"loss": 1.0}),
        run_pb2.RunCheckpointed(**common, step=1, path="/c"),
        run_pb2.RunProgress(**common, step=2, total_steps=2, metrics={"loss": 0.5}),
        run_pb2.RunFinished(**common),
        job_pb2.JobFinished(job_id=job_id, tenant_id="bench", outcome=job_pb2.JOB_OUTCOME_SUCCEEDED),
    ]
    assert len(events) == EVENTS_PER_JOB
    return events


async def publish(producer: AIOKafkaProducer, events: list[Any]) -> None:
    """Send events and wait for the broker."""
    futures = []
    for event in events:
        record = encode(event, event_id=uuid.uuid4().hex, source="/bench", time=datetime.now(UTC))
        futures.append(await producer.send(record.topic, record.value, key=record.key, headers=record.headers))
    await asyncio.gather(*futures)


async def follow_jobs(client: httpx.AsyncClient, producer: AIOKafkaProducer, job_ids: list[str]) -> float:
    """Events a second from the first publication to the view that shows every job finished."""
    events = [event for position in zip(*(job_events(job_id) for job_id in job_ids), strict=True) for event in position]
    started = time.perf_counter()
    await publish(producer, events)
    while True:
        page = (await client.get("/v1/jobs", params={"state": "succeeded", "page_size": 1000})).json()
        if len(page["items"]) >= len(job_ids):
            return len(events) / (time.perf_counter() - started)
        await asyncio.sleep(0.05)


async def stream_latencies_ms(client: httpx.AsyncClient, producer: AIOKafkaProducer, job_id: str) -> list[float]:
    """Time from an event's publication to its arrival in an open stream."""
    found: list[float] = []
    async with client.stream("GET", "/v1/events", params={"job": job_id}, timeout=30) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        for number in range(200):
            event = job_pb2.JobQueued(job_id=job_id, tenant_id="bench", units=1, reason=str(number))
            started = time.perf_counter()
            await publish(producer, [event])
            async for line in lines:
                if line.startswith("data: "):
                    break
            found.append(1000 * (time.perf_counter() - started))
            await asyncio.sleep(0.01)
    return found


def cpu_s(measured: psutil.Process) -> float:
    """CPU time that a process has used; unlike rates it depends little on what else the machine does."""
    times = measured.cpu_times()
    return float(times.user + times.system)


async def measure(jobs: int, workers: int) -> list[Row]:
    """All rows."""
    with issuer() as (identity_url, token), tempfile.TemporaryDirectory(prefix="meridian-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        ports = choose_ports(["postgres", "valkey", "broker", "gateway"], seed=uuid.uuid4().hex)
        database = postgres.locate(directory, ports["postgres"])
        cache = valkey.locate(directory, ports["valkey"])
        bootstrap = f"127.0.0.1:{ports['broker']}"
        broker = ProcessSpec(
            name="broker",
            argv=(
                sys.executable, "-m", "meridian.embedded.broker", "--host", "127.0.0.1",
                "--port", str(ports["broker"]), "--data-dir", str(directory / "broker"),
            ),
            cwd=ROOT,
            log_path=directory / "broker.log",
            ready=tcp_accepts("127.0.0.1", ports["broker"]),
        )  # fmt: skip
        settings = {
            "MERIDIAN_DATABASE_URL": database.url,
            "MERIDIAN_REDIS_URL": cache.url,
            "MERIDIAN_KAFKA_BOOTSTRAP_SERVERS": bootstrap,
            "MERIDIAN_IDENTITY_URL": identity_url,
            "MERIDIAN_LOG_LEVEL": "WARNING",
            "MERIDIAN_GATEWAY_HTTP_PORT": str(ports["gateway"]),
            "MERIDIAN_GATEWAY_RATE_LIMIT": "10000000/minute",
            "MERIDIAN_GATEWAY_MAX_UNFINISHED_JOBS": "1000000",
        }
        gateway = ProcessSpec(
            name="gateway",
            argv=(sys.executable, "-m", "meridian.service", "gateway"),
            cwd=ROOT,
            log_path=directory / "gateway.log",
            env={**os.environ, **settings},
            ready=tcp_accepts("127.0.0.1", ports["gateway"]),
        )
        async with (
            process(database.process(directory / "postgres.log")),
            process(cache.process(directory / "valkey.log")),
            process(broker),
        ):
            await prepare(database.url, bootstrap)
            async with (
                process(gateway) as running,
                httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{ports['gateway']}",
                    headers={"Authorization": f"Bearer {token}"},
                    timeout=60,
                ) as client,
            ):
                producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=2)
                await producer.start()
                try:
                    return await measure_gateway(client, producer, running, token, jobs, workers)
                finally:
                    await producer.stop()


async def prepare(database_url: str, bootstrap: str) -> None:
    """Topics and the gateway's schema."""
    from meridian.bus import ensure_topics
    from meridian.database import migrate

    await ensure_topics(bootstrap)
    await migrate(database_url, "gateway", ROOT / "services" / "gateway" / "migrations")


async def measure_gateway(
    client: httpx.AsyncClient, producer: AIOKafkaProducer, gateway: psutil.Process, token: str, jobs: int, workers: int
) -> list[Row]:
    """The rows, with everything running."""

    async def single() -> None:
        answer = await client.post("/v1/jobs", json=JOB)
        assert answer.status_code == 202, answer.text

    async def batch() -> None:
        answer = await client.post("/v1/jobs:batch", json={"jobs": [JOB] * 1000})
        assert answer.status_code == 202, answer.text

    rows = []
    bare = await baseline(token, jobs, workers)
    rows.append(Row("route without storage", "submissions_per_s", bare, slice="single", n=jobs, baseline=True))
    await spread(client, jobs // 10, workers, single)
    before_s = cpu_s(gateway)
    one = await spread(client, jobs, workers, single)
    rows.append(Row("gateway", "submissions_per_s", one, slice="single", n=jobs))
    await asyncio.sleep(1)
    rows.append(
        Row("gateway", "cpu_per_submission_ms", 1000 * (cpu_s(gateway) - before_s) / jobs, slice="single", n=jobs)
    )
    before_s = cpu_s(gateway)
    rates = [1000 * await spread(client, 1, 1, batch) for _ in range(5)]
    rows.append(
        Row("gateway", "submissions_per_s", statistics.median(rates), slice="batch of 1000", low=min(rates),
            high=max(rates), n=len(rates))
    )  # fmt: skip
    await asyncio.sleep(8)
    spent_ms = 1000 * (cpu_s(gateway) - before_s) / (1000 * len(rates))
    rows.append(Row("gateway", "cpu_per_submission_ms", spent_ms, slice="batch of 1000", n=1000 * len(rates)))
    answer = await client.post("/v1/jobs:batch", json={"jobs": [JOB] * 1000})
    job_ids = [job["job_id"] for job in answer.json()["items"]]
    await asyncio.sleep(8)
    before_s = cpu_s(gateway)
    followed = await follow_jobs(client, producer, job_ids)
    spent_ms = 1000 * (cpu_s(gateway) - before_s) / (1000 * EVENTS_PER_JOB)
    rows.append(
        Row("gateway", "events_into_view_per_s", followed, slice="1000 jobs x 8 events", n=1000 * EVENTS_PER_JOB)
    )
    rows.append(Row("gateway", "cpu_per_event_ms", spent_ms, slice="1000 jobs x 8 events", n=1000 * EVENTS_PER_JOB))
    await asyncio.sleep(1)
    latencies = sorted(await stream_latencies_ms(client, producer, job_ids[0]))
    middle, late = latencies[len(latencies) // 2], latencies[int(len(latencies) * 0.99)]
    rows.append(Row("event stream", "latency_p50_ms", middle, low=latencies[0], high=latencies[-1], n=len(latencies)))
    rows.append(Row("event stream", "latency_p99_ms", late, n=len(latencies)))
    return rows


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="single submissions")
    parser.add_argument("--workers", type=int, default=8, help="connections at once")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--serve-baseline", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_baseline:
        serve_baseline(options.serve_baseline)
        return 0
    rows = asyncio.run(measure(options.jobs, options.workers))
    print_table(rows)
    if options.json is not None:
        write(options.json, command_line("bench.gateway"), [], 0, Setting.REAL, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
