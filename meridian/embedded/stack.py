"""The whole of Meridian on one machine: what runs, in which order, and how the parts find each other.

PostgreSQL, Valkey and the broker start at the same time, each only where no external one is named; then one step creates topics
and schemas; then all services and the agents of the emulated domains start at once. Everything is below one data directory:

    run/stack.json, ports.json      what runs where         log/NAME.log       what each part says
    postgres/, valkey/, broker/     the servers' own        agents/DOMAIN      configuration and work of an agent
    postgres.json                   where the cluster is    identity/, client.json          the secrets (credentials.py)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meridian.embedded import control, postgres, valkey
from meridian.embedded.child import StackStartError
from meridian.embedded.credentials import ensure_credentials
from meridian.embedded.domains import DEFAULT_FILE, read_domains, write_agent_config
from meridian.embedded.ports import kept_ports
from meridian.embedded.probes import all_of, http_ok, tcp_accepts
from meridian.embedded.process import ProcessSpec, Restart
from meridian.embedded.state import StackState, read_state
from meridian.embedded.supervisor import Supervisor, claimed
from meridian.errors import ConfigurationError, MeridianError

SERVICES = ("identity", "telemetry", "graph", "forecast", "scheduler", "failover", "gateway")
HOST = "127.0.0.1"
# Ceilings for what hangs: all services import at the same time, which takes a loaded machine minutes.
PART_START_TIMEOUT_S = 240.0
START_TIMEOUT_S = 300.0
# An agent ends its runs and sends their reports.
STOP_TIMEOUT_S = 20.0
EXTERNAL = {
    "kafka_bootstrap_servers": "KAFKA_BOOTSTRAP_SERVERS",
    "database_url": "DATABASE_URL",
    "redis_url": "REDIS_URL",
}


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What to run. An external address, by default from the environment, takes the place of the server of ours.

    ``compact`` runs all services in one process. ``domains_file`` None stands for the five emulated domains. With ``levels``
    "two" the scheduler runs as ``shards`` processes beside a decider of domains. ``lease_s`` is that of the agents; None: theirs.
    """

    data_dir: Path
    compact: bool = False
    domains_file: Path | None = None
    services: tuple[str, ...] = SERVICES
    gateway_port: int | None = None
    shards: int = 1
    levels: str = "one"
    lease_s: float | None = None
    kafka_bootstrap_servers: str | None = field(default_factory=lambda: os.environ.get("KAFKA_BOOTSTRAP_SERVERS"))
    database_url: str | None = field(default_factory=lambda: os.environ.get("DATABASE_URL"))
    redis_url: str | None = field(default_factory=lambda: os.environ.get("REDIS_URL"))


@dataclass(frozen=True, slots=True)
class Composition:
    """The processes of a stack, and the ports and addresses under which they are found."""

    processes: tuple[ProcessSpec, ...]
    ports: Mapping[str, int]
    urls: Mapping[str, str]


def compose(options: StackOptions) -> Composition:
    """Decide what runs for ``options``; writes configuration files and starts nothing.

    Raises ConfigurationError for a wanted port that is taken, a missing server or a wrong domains file.
    """
    unknown = set(options.services) - set(SERVICES)
    if unknown:
        raise ConfigurationError(f"unknown services: {', '.join(sorted(unknown))}; known are {', '.join(SERVICES)}")
    parts = _parts(options)
    data_dir = options.data_dir.resolve()
    log_dir = data_dir / "log"
    domains = read_domains(options.domains_file or DEFAULT_FILE)
    agents = {domain.domain_id: f"agent-{domain.domain_id}" for domain in domains}
    probed = {domain.domain_id: f"probe-{domain.domain_id}" for domain in domains}
    ports = kept_ports(
        state_dir(data_dir) / "ports.json",
        [*(("postgres",) if not options.database_url else ()), *(("valkey",) if not options.redis_url else ()),
         *(("broker",) if not options.kafka_bootstrap_servers else ()), *parts, *agents.values(), *probed.values()],
        wanted={"gateway": options.gateway_port} if options.gateway_port else None,
    )  # fmt: skip
    infrastructure: list[ProcessSpec] = []
    urls = {name: f"http://{HOST}:{ports[name]}" for name in (*parts, *agents.values())}

    if options.database_url:
        urls["database"] = options.database_url.replace("postgresql://", "postgresql+asyncpg://", 1)
    else:
        database = postgres.locate(data_dir, ports["postgres"])
        infrastructure.append(database.process(log_dir / "postgres.log"))
        urls["database"] = database.url
    if options.redis_url:
        urls["redis"] = options.redis_url
    else:
        cache = valkey.locate(data_dir, ports["valkey"])
        infrastructure.append(cache.process(log_dir / "valkey.log"))
        urls["redis"] = cache.url
    if options.kafka_bootstrap_servers:
        urls["kafka"] = options.kafka_bootstrap_servers
    else:
        infrastructure.append(_broker(data_dir, ports["broker"]))
        urls["kafka"] = f"{HOST}:{ports['broker']}"

    needed = tuple(process.name for process in infrastructure)
    credentials = ensure_credentials(data_dir, urls.get("gateway"))
    # Agents run other people's programs: they get no address or secret but those in their configuration.
    plain = {"PYTHONPATH": import_path(), "PYTHONUNBUFFERED": "1"}
    environment = {
        **plain,
        "MERIDIAN_KAFKA_BOOTSTRAP_SERVERS": urls["kafka"],
        "MERIDIAN_DATABASE_URL": urls["database"],
        "MERIDIAN_REDIS_URL": urls["redis"],
        "MERIDIAN_DATA_DIR": str(data_dir),
        "MERIDIAN_INSTANCE": "local",
        "MERIDIAN_IDENTITY_BOOTSTRAP_FILE": str(credentials.bootstrap_path),
        "MERIDIAN_GATEWAY_AGENT_TOKEN": credentials.join_token,
        **{f"MERIDIAN_{part.service.upper()}_HTTP_PORT": str(ports[name]) for name, part in parts.items()},
        **{f"MERIDIAN_{part.service.upper()}_URL": urls[name] for name, part in parts.items()},
    }
    if options.levels == "two" and "scheduler" in options.services:
        environment["MERIDIAN_SCHEDULER_LEVELS"] = "two"
        environment["MERIDIAN_SCHEDULER_SHARDS"] = str(options.shards)
        shards = [urls[name] for name, part in parts.items() if part.service == "scheduler"]
        environment["MERIDIAN_SCHEDULER_URL"] = ",".join(shards)

    def python(
        name: str,
        *arguments: str,
        needs: tuple[str, ...],
        answers: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
    ) -> ProcessSpec:
        return ProcessSpec(
            name=name,
            argv=(sys.executable, "-m", *arguments),
            env=plain if name in agents.values() else {**environment, **(more or {})},
            cwd=data_dir,
            log_path=log_dir / f"{name}.log",
            ready=all_of(*(http_ok(f"{urls[answer]}/health/ready") for answer in answers)),
            ready_timeout_s=PART_START_TIMEOUT_S,
            depends_on=needs,
            stop_timeout_s=STOP_TIMEOUT_S,
            restart=Restart.ALWAYS if answers else Restart.NEVER,
            one_shot=not answers,
        )

    program = "meridian.service"
    steps: tuple[str, ...] = ()
    services: list[ProcessSpec] = []
    if options.services:
        steps = ("prepare",)
        services.append(python("prepare", program, "prepare", needs=needed))
        if options.compact:
            services.append(python("services", program, "all", needs=(*needed, *steps), answers=options.services))
        else:
            services += [
                python(
                    name,
                    program,
                    part.service,
                    needs=(*needed, *steps),
                    answers=(name,),
                    more={f"MERIDIAN_{part.service.upper()}_HTTP_PORT": str(ports[name]), **part.environment},
                )
                for name, part in parts.items()
            ]
    for domain in domains:
        agent = agents[domain.domain_id]
        connection: dict[str, str | float] = {
            "kafka_bootstrap_servers": urls["kafka"],
            "identity_url": urls.get("identity", ""),
            "join_token_path": str(credentials.join_token_path),
            "data_dir": str(data_dir / "agents" / domain.domain_id),
            "http_port": ports[agent],
        }
        if options.lease_s is not None:
            connection["lease_s"] = options.lease_s
        probes = {domain_id: f"{HOST}:{ports[name]}" for domain_id, name in probed.items()}
        config = write_agent_config(data_dir / "agents", domain, connection, probes)
        infra = tuple(name for name in needed if name == "broker")
        services.append(python(agent, "agent", "--config", str(config), needs=(*infra, *steps), answers=(agent,)))
    return Composition((*infrastructure, *services), ports, urls)


@dataclass(frozen=True, slots=True)
class _Part:
    """A process of a service, and what tells it which one it is."""

    service: str
    environment: Mapping[str, str] = field(default_factory=dict)


def _parts(options: StackOptions) -> dict[str, _Part]:
    """The processes of the services by name. ConfigurationError for a split that cannot be."""
    if options.levels not in {"one", "two"}:
        raise ConfigurationError(f"levels: {options.levels!r} is neither one nor two")
    if options.shards < 1 or (options.shards > 1 and options.levels == "one"):
        raise ConfigurationError(f"shards: {options.shards} need two levels, and at least 1 is needed")
    if options.levels == "two" and options.compact:
        raise ConfigurationError("compact: two levels are several processes of the scheduler")
    parts = {name: _Part(name) for name in options.services}
    if options.levels == "two" and parts.pop("scheduler", None) is not None:
        for number in range(options.shards):
            name = "scheduler" if options.shards == 1 else f"scheduler-{number}"
            parts[name] = _Part("scheduler", {"MERIDIAN_SCHEDULER_SHARD": str(number)})
        parts["scheduler-domain"] = _Part("scheduler_domain")
    return parts


def _broker(data_dir: Path, port: int) -> ProcessSpec:
    program = (sys.executable, "-m", "meridian.embedded.broker")
    return ProcessSpec(
        name="broker",
        argv=(*program, "--host", HOST, "--port", str(port), "--data-dir", str(data_dir / "broker")),
        env={"PYTHONPATH": import_path(), "PYTHONUNBUFFERED": "1"},
        cwd=data_dir,
        log_path=data_dir / "log" / "broker.log",
        ready=tcp_accepts(HOST, port),
    )


async def run_foreground(options: StackOptions) -> None:
    """Run the stack until SIGINT or SIGTERM.

    Raises StackStartError, with nothing left running, when a part does not start; StackRunningError when the stack already runs.
    """
    stop_requested = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop_requested.set)
    options.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = state_dir(options.data_dir)
    with claimed(directory) as stack_id:
        parts = compose(options)
        supervisor = Supervisor(
            parts.processes, state_dir=directory, stack_id=stack_id, ports=parts.ports, urls=parts.urls
        )
        await supervisor.run(stop_requested)


def start_detached(options: StackOptions, timeout_s: float = START_TIMEOUT_S) -> StackState:
    """Run the stack in the background and return once everything is ready; a stack that runs already is left as it is.

    Raises StackStartError, with nothing left running, when a part does not start in time.
    """
    running = status(options.data_dir)
    if running is not None and control.is_running(running):
        return running
    options.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    data_dir = options.data_dir.resolve()
    argv = [sys.executable, "-m", "meridian.embedded.stack", "--data-dir", str(data_dir)]
    argv += ["--services", ",".join(options.services)]
    argv += ["--compact"] if options.compact else []
    argv += ["--domains-file", str(options.domains_file.resolve())] if options.domains_file else []
    argv += ["--gateway-port", str(options.gateway_port)] if options.gateway_port else []
    argv += ["--shards", str(options.shards), "--levels", options.levels]
    argv += ["--lease-s", str(options.lease_s)] if options.lease_s is not None else []
    external = {EXTERNAL[name]: getattr(options, name) or "" for name in EXTERNAL}
    return control.spawn_and_wait(
        argv,
        env={**os.environ, "PYTHONPATH": import_path(), **external},
        state_dir=state_dir(data_dir),
        log_path=data_dir / "log" / "supervisor.log",
        timeout_s=timeout_s,
    )


@contextlib.contextmanager
def running(options: StackOptions, *, keep: bool = False, timeout_s: float = START_TIMEOUT_S) -> Iterator[StackState]:
    """A stack for the life of the block, which ends with it, however it ends: by SIGTERM and SIGHUP too, with their exit codes.

    With ``keep``, and when the stack ran before, it stays. Call it in the main thread. Raises like ``start_detached``.
    """
    stays = keep or is_up(options.data_dir)

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # once: what follows is the orderly end
        raise SystemExit(128 + number)

    former = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        started = start_detached(options, timeout_s)
        try:
            yield started
        finally:
            if not stays:
                stop(options.data_dir)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def stop(data_dir: Path, *, timeout_s: float = 60.0) -> bool:
    """Stop the stack of ``data_dir`` and all that a killed supervisor left; False if nothing ran."""
    return control.stop(state_dir(data_dir), timeout_s=timeout_s)


def status(data_dir: Path) -> StackState | None:
    """What the stack of ``data_dir`` last said of itself, or None; ``control.is_running`` tells whether it still runs."""
    return read_state(state_dir(data_dir))


def is_up(data_dir: Path) -> bool:
    """Whether a stack of ``data_dir`` runs, ready or not."""
    found = status(data_dir)
    return found is not None and control.is_running(found)


def state_dir(data_dir: Path) -> Path:
    """Where the state of the stack of ``data_dir`` is."""
    return data_dir / "run"


def import_path() -> str:
    """PYTHONPATH for children: beside what is set, our source tree where we run from one that is not installed."""
    root = Path(__file__).parents[2]
    inherited = os.environ.get("PYTHONPATH", "")
    parts = [] if root.name in {"site-packages", "dist-packages"} else [str(root)]
    return os.pathsep.join([*parts, *(part for part in inherited.split(os.pathsep) if part and part not in parts)])


def main() -> int:
    """Command line of ``python -m meridian.embedded.stack``: the stack in the foreground."""
    parser = argparse.ArgumentParser(prog="python -m meridian.embedded.stack", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--compact", action="store_true")
    parser.add_argument("--domains-file", type=Path)
    parser.add_argument("--services", default=",".join(SERVICES))
    parser.add_argument("--gateway-port", type=int)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--levels", choices=["one", "two"], default="one")
    parser.add_argument("--lease-s", type=float)
    chosen = parser.parse_args()
    services = tuple(name for name in chosen.services.split(",") if name)
    options = StackOptions(
        chosen.data_dir,
        chosen.compact,
        chosen.domains_file,
        services,
        chosen.gateway_port,
        shards=chosen.shards,
        levels=chosen.levels,
        lease_s=chosen.lease_s,
    )
    try:
        asyncio.run(run_foreground(options))
    except MeridianError as error:
        shown = "" if isinstance(error, StackStartError) else f"{error.title}: "
        print(f"{shown}{error.detail}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
