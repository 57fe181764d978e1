"""What a stack consists of, decided without starting anything."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import yaml

from meridian.embedded.domains import DEFAULT_FILE, read_domains
from meridian.embedded.process import ProcessSpec
from meridian.embedded.stack import SERVICES, StackOptions, compose, import_path
from meridian.embedded.supervisor import stop_order
from meridian.errors import ConfigurationError
from meridian.settings import SERVICES as KERNEL_SERVICES
from tests.fixtures_embedded import held_port

EXTERNAL = {"kafka_bootstrap_servers": "k:9092", "database_url": "postgresql://u@h/d", "redis_url": "redis://h/0"}


@pytest.fixture(autouse=True)
def _nothing_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that has to be elsewhere is, for these tests, elsewhere below the test's own directory."""
    monkeypatch.setattr("meridian.embedded.postgres.COMMON_DIRECTORY", tmp_path)


def by_name(options: StackOptions) -> dict[str, ProcessSpec]:
    return {process.name: process for process in compose(options).processes}


def test_the_stack_knows_the_services_of_the_kernel() -> None:
    assert SERVICES == KERNEL_SERVICES


def test_servers_of_ours_stand_in_only_for_what_is_not_external(tmp_path: Path) -> None:
    own = compose(StackOptions(tmp_path / "own", kafka_bootstrap_servers=None, database_url=None, redis_url=None))
    assert [process.name for process in own.processes[:4]] == ["postgres", "valkey", "broker", "prepare"]
    assert own.urls["database"].startswith("postgresql+asyncpg://meridian:")
    external = compose(StackOptions(tmp_path / "external", **EXTERNAL))
    assert external.processes[0].name == "prepare"
    assert external.urls["database"] == "postgresql+asyncpg://u@h/d"
    assert not {"postgres", "valkey", "broker"} & external.ports.keys()


def test_every_service_finds_every_other_one(tmp_path: Path) -> None:
    composition = compose(StackOptions(tmp_path, **EXTERNAL))
    for process in composition.processes:
        if process.name.startswith("agent-"):
            continue
        assert process.env["MERIDIAN_KAFKA_BOOTSTRAP_SERVERS"] == "k:9092"
        assert process.env["MERIDIAN_REDIS_URL"] == "redis://h/0"
        for name in SERVICES:
            port = process.env[f"MERIDIAN_{name.upper()}_HTTP_PORT"]
            assert process.env[f"MERIDIAN_{name.upper()}_URL"] == f"http://127.0.0.1:{port}" == composition.urls[name]


def test_order_infrastructure_then_preparation_then_services_and_agents(tmp_path: Path) -> None:
    processes = by_name(StackOptions(tmp_path, kafka_bootstrap_servers=None, database_url=None, redis_url=None))
    stop_order(list(processes.values()))
    infrastructure = ("postgres", "valkey", "broker")
    assert all(processes[name].depends_on == () for name in infrastructure)
    assert processes["prepare"].depends_on == infrastructure
    assert processes["prepare"].one_shot
    for name in SERVICES:
        assert processes[name].depends_on == (*infrastructure, "prepare")
        assert processes[name].argv[1:] == ("-m", "meridian.service", name)
    assert processes["agent-beijing"].depends_on == ("broker", "prepare")


def test_compact_runs_all_services_in_one_process(tmp_path: Path) -> None:
    processes = by_name(StackOptions(tmp_path, compact=True, **EXTERNAL))
    assert processes["services"].argv[1:] == ("-m", "meridian.service", "all")
    assert not processes.keys() & set(SERVICES)


def test_ports_stay_from_one_start_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another program may take one between the two starts; what happens then is told in test_ports.py.
    monkeypatch.setattr("meridian.embedded.ports.is_free", lambda _port: True)
    options = StackOptions(tmp_path, **EXTERNAL)
    assert compose(options).ports == compose(options).ports


def test_a_wanted_gateway_port_is_used_or_refused(tmp_path: Path) -> None:
    with held_port() as held:
        port = held.getsockname()[1]
        with (
            socket.create_server(("127.0.0.1", port)),
            pytest.raises(ConfigurationError, match=f"port {port}, wanted for gateway"),
        ):
            compose(StackOptions(tmp_path, gateway_port=port, **EXTERNAL))
        assert compose(StackOptions(tmp_path, gateway_port=port, **EXTERNAL)).urls["gateway"].endswith(f":{port}")


def test_an_unknown_service_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown services: oracle"):
        compose(StackOptions(tmp_path, services=("oracle",), **EXTERNAL))


def test_an_agent_gets_its_domain_and_its_connections(tmp_path: Path) -> None:
    composition = compose(StackOptions(tmp_path, **EXTERNAL))
    agent = next(process for process in composition.processes if process.name == "agent-hohhot")
    config = yaml.safe_load(Path(agent.argv[-1]).read_text())
    assert config["domain"]["domain_id"] == "hohhot"
    assert {link["to_domain_id"] for link in config["domain"]["links"]} == {
        "beijing",
        "shanghai",
        "guizhou",
        "shenzhen",
    }
    assert config["kafka_bootstrap_servers"] == "k:9092"
    assert config["identity_url"] == composition.urls["identity"]
    assert config["http_port"] == composition.ports["agent-hohhot"]
    identity = next(process for process in composition.processes if process.name == "identity")
    bootstrap = json.loads(Path(identity.env["MERIDIAN_IDENTITY_BOOTSTRAP_FILE"]).read_text())
    assert Path(config["join_token_path"]).read_text() == bootstrap["join_tokens"][0]


def test_an_agent_has_the_lease_that_is_asked_for_or_its_own(tmp_path: Path) -> None:
    compose(StackOptions(tmp_path / "own", **EXTERNAL))
    compose(StackOptions(tmp_path / "long", lease_s=60.0, **EXTERNAL))
    own, asked = (yaml.safe_load((tmp_path / name / "agents/hohhot.yaml").read_text()) for name in ("own", "long"))
    assert "lease_s" not in own
    assert asked["lease_s"] == 60.0


def test_an_agent_is_told_no_secret_of_the_services(tmp_path: Path) -> None:
    composition = compose(StackOptions(tmp_path, **EXTERNAL))
    agent = next(process for process in composition.processes if process.name == "agent-hohhot")
    assert set(agent.env) == {"PYTHONPATH", "PYTHONUNBUFFERED"}


def test_secrets_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    compose(StackOptions(tmp_path, **EXTERNAL))
    first = (tmp_path / "client.json").read_text()
    compose(StackOptions(tmp_path, **EXTERNAL))
    assert (tmp_path / "client.json").read_text() == first
    for path in (tmp_path / "client.json", *(tmp_path / "identity").iterdir()):
        assert path.stat().st_mode & 0o077 == 0


def test_the_default_domains_are_five_emulated_ones_all_linked() -> None:
    domains = read_domains(DEFAULT_FILE)
    assert len(domains) == 5
    models = set()
    for domain in domains:
        declared = domain.declaration
        assert declared["emulated"] is True
        assert 3 <= len(declared["nodes"]) <= 4
        assert len(declared["links"]) == 4
        assert all(isinstance(link["rtt_s"], float) and link["rtt_s"] < 0.1 for link in declared["links"])
        for node in declared["nodes"]:
            for accelerator in node["accelerators"]:
                models.add(accelerator["model"])
                assert isinstance(accelerator["peak_flops"], float)
    assert models == {"H100", "A100", "Ascend 910B", "MLU370", "MI300X"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[]", "no list `domains`"),
        ("domains: [{name: x}]", r"line 1: domains\[0\].domain_id"),
        ("domains: [{domain_id: a},\n {domain_id: a}]", r"line 2: domains\[1\].domain_id"),
        ("domains: [{domain_id: ../a}]", r"line 1: domains\[0\].domain_id"),
        ("domains: [{domain_id: a}]\nlinks: [{between: [a, b]}]", r"line 2: links\[0\].between"),
        ("domains: [", "domains file"),
        ("domains: &a [*a]", "domains file"),
        ("\x00", "domains file"),
    ],
)
def test_a_wrong_domains_file_is_refused_with_the_place(tmp_path: Path, text: str, place: str) -> None:
    file = tmp_path / "domains.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=place):
        read_domains(file)


def test_children_import_what_we_import(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere:{root}")
    assert import_path() == f"{root}:/elsewhere"


def test_two_levels_run_a_process_per_shard_and_a_decider(tmp_path: Path) -> None:
    one = compose(StackOptions(tmp_path / "one", **EXTERNAL))
    assert "MERIDIAN_SCHEDULER_LEVELS" not in {process.name: process for process in one.processes}["scheduler"].env
    composition = compose(StackOptions(tmp_path / "two", shards=2, levels="two", **EXTERNAL))
    found = {process.name: process for process in composition.processes}
    assert {name for name in found if name.startswith("scheduler")} == {
        "scheduler-0",
        "scheduler-1",
        "scheduler-domain",
    }
    for number in range(2):
        process = found[f"scheduler-{number}"]
        assert process.argv[-1] == "scheduler"
        assert process.env["MERIDIAN_SCHEDULER_SHARD"] == str(number)
        assert process.env["MERIDIAN_SCHEDULER_HTTP_PORT"] == str(composition.ports[f"scheduler-{number}"])
    gateway = found["gateway"].env
    assert gateway["MERIDIAN_SCHEDULER_URL"] == ",".join(composition.urls[f"scheduler-{number}"] for number in range(2))
    assert (gateway["MERIDIAN_SCHEDULER_SHARDS"], gateway["MERIDIAN_SCHEDULER_LEVELS"]) == ("2", "two")
    assert found["scheduler-domain"].argv[-1] == "scheduler_domain"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"shards": 2}, "shards"), ({"levels": "three"}, "levels"), ({"levels": "two", "compact": True}, "compact")],
)
def test_a_split_that_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        compose(StackOptions(tmp_path, **wrong, **EXTERNAL))
