"""Networks: what a file says is what is built, and a mistake in it is found with its line."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from simulation.domains import NetworkError, read_network
from simulation.made_networks import philly_network, uniform
from simulation.model import Trace, TraceJob
from simulation.traces import load

SHIPPED = Path(__file__).parents[3] / "simulation" / "networks"

FULL = """\
name: two
domains:
  - id: a
    region: us-east-1
    security_level: 3
    price_micro_per_accelerator_hour: 3060000
    currency: EUR
    carbon_g_per_kwh: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]
    electricity_micro_per_kwh: 90000
    spot: {file: zone.json, accelerators_per_instance: 4}
    burst: true
    mtbf_node_s: 1e6
    mttr_node_s: 600
    nodes:
      - count: 3
        cpus: 32
        memory_gib: 0.5
        accelerators: 4
        model: v100
        vendor: NVIDIA
        nodes_per_rack: 2
        spine: s1
        idle_watts: 100
        busy_watts_per_accelerator: 250
        sleep_watts: 10
        wake_s: 60
        resources: {fpga: 2}
      - {count: 1, cpus: 8, nodes_per_rack: 2}
  - id: b
    region: eu-west-1
    nodes: [{count: 1, cpus: 8}]
"""
PRICES = "src,dst,cost\nus-east-1,eu-west-1,0.02\neu-west-1,us-east-1,0.09\n"


def _write(tmp_path: Path, text: str) -> Path:
    (tmp_path / "zone.json").write_text('{"metadata": {"gap_seconds": 60}, "data": [1, 0]}')
    (tmp_path / "prices.csv").write_text(PRICES)
    path = tmp_path / "network.yaml"
    path.write_text(text)
    return path


def test_every_key(tmp_path: Path) -> None:
    network = read_network(_write(tmp_path, FULL))
    a, b = network.domains
    assert (network.name, a.region, a.security_level, a.price_micro_units, a.currency) == (
        "two",
        "us-east-1",
        3,
        3060000,
        "EUR",
    )
    assert a.carbon_g_per_kwh == tuple(float(hour) for hour in range(1, 25))
    assert (a.electricity_micro_units_per_kwh, a.burst, a.mtbf_node_s, a.mttr_node_s) == (90000, True, 1e6, 600)
    assert a.spot == ((0.0, 4), (60.0, 0))
    assert [(node.node_id, node.rack, node.spine) for node in a.nodes] == [
        ("a-0", "a-rack-0", "a-s1"),
        ("a-1", "a-rack-0", "a-s1"),
        ("a-2", "a-rack-1", "a-s1"),
        ("a-3", "a-rack-2", ""),
    ]
    first = a.nodes[0]
    assert (first.cpus, first.memory_bytes, first.accelerators, first.model, first.vendor) == (
        32,
        1 << 29,
        4,
        "v100",
        "NVIDIA",
    )
    assert (first.idle_watts, first.busy_watts_per_accelerator, first.sleep_watts, first.wake_s) == (100, 250, 10, 60)
    assert first.resources == {"fpga": 2.0}
    assert (b.price_micro_units, b.currency, b.carbon_g_per_kwh, b.spot, b.mttr_node_s) == (
        0,
        "USD",
        (0.0,),
        (),
        1800.0,
    )
    assert math.isnan(b.mtbf_node_s)
    assert network.accelerators == 12
    assert network.links == []


def test_explicit_links(tmp_path: Path) -> None:
    links = "links:\n  - {from: a, to: b, bandwidth_bytes_per_s: 1e9, rtt_s: 0.07, price_micro_per_gib: 5, both_ways: true}\n"
    network = read_network(_write(tmp_path, FULL + links))
    assert [(link.from_domain, link.to_domain) for link in network.links] == [("a", "b"), ("b", "a")]
    assert {(link.bandwidth_bytes_per_s, link.rtt_s, link.price_micro_units_per_gib) for link in network.links} == {
        (1e9, 0.07, 5)
    }


def test_links_at_the_prices_of_regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRICES_FOLDER", str(tmp_path))
    mesh = (
        "links:\n  regions_prices: ${PRICES_FOLDER}/prices.csv\n  bandwidth_bytes_per_s: 1e9\n  rtt_s: 0.05\n"
        "  between:\n    - {from: b, to: a, bandwidth_bytes_per_s: 2e9, price_micro_per_gib: 7}\n"
    )
    network = read_network(_write(tmp_path, FULL + mesh))
    # 0.02 USD per 10^9 bytes are 0.02 x 1.073741824 USD per GiB: 21,475 micro-units.
    assert [
        (link.from_domain, link.price_micro_units_per_gib, link.bandwidth_bytes_per_s) for link in network.links
    ] == [
        ("a", 21475, 1e9),
        ("b", 7, 2e9),
    ]


def test_files_that_are_named_enter_the_digest(tmp_path: Path) -> None:
    path = _write(tmp_path, FULL)
    before = read_network(path).sha256
    assert read_network(path).sha256 == before
    (tmp_path / "zone.json").write_text('{"metadata": {"gap_seconds": 60}, "data": [0, 1]}')
    assert read_network(path).sha256 != before


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("    region: us-east-1", "    colour: red", 4, r"domains\[0\].colour: unknown key"),
        ("    security_level: 3", "    security_level: -3", 5, "must be at least 0: -3"),
        ("    security_level: 3", "    security_level: 3.5", 5, "not a whole number"),
        ("    security_level: 3", "    security_level: 010", 5, r"'010' would be read as 8 \(YAML 1.1\)"),
        ("    security_level: 3", "    security_level: 1e30", 5, "must be at most 9223372036854775807: 1e"),
        ("{count: 1, cpus: 8}", "{count: 1000001, cpus: 8}", 31, r"nodes\[0\].count: must be at most 1000000"),
        ("{count: 1, cpus: 8}", "{count: 1, cpus: 8, memory_gib: 1e12}", 31, "memory_gib: must be at most 8.58993e"),
        ("{count: 1, cpus: 8}", "{count: 1, cpus: 8, accelerators: 1025}", 31, "accelerators: must be at most 1024"),
        ("    security_level: 3", "    security_level: 1" + "0" * 400, 5, "not a number: 1000"),
        ("    currency: EUR", "    currency: E\x00R", 7, "is not YAML: special characters are not allowed: '.x00'"),
        ("    security_level: 3", "    security_level: high", 5, "not a number: 'high'"),
        ("    security_level: 3", "    security_level: .nan", 5, "not a number"),
        ("    security_level: 3", "    security_level: true", 5, "not a number: True"),
        ("    security_level: 3", "    region: again", 5, "is there twice"),
        ("    security_level: 3", "    security_level: [3]", 5, "a single value is expected"),
        ("    security_level: 3", "    security_level: !!python/object:os.x 3", 5, "cannot be read"),
        ("    currency: EUR", "    currency:", 7, "is empty"),
        (", 23, 24]", ", 23]", 8, "one value or 24"),
        (", 23, 24]", ", 23, -24]", 8, r"carbon_g_per_kwh\[23\]: must be at least 0"),
        ("zone.json", "nowhere.json", 10, "cannot read"),
        ("zone.json", "prices.csv", 10, "is not JSON"),
        ("zone.json", "$NOT_SET_AT_ALL/zone.json", 10, "environment variable is not set"),
        ("burst: true", "burst: maybe", 11, "not true or false: 'maybe'"),
        ("mtbf_node_s: 1e6", "mtbf_node_s: 0", 12, "must be more than 0"),
        ("      - count: 3", "      - count: 0", 15, "must be at least 1: 0"),
        ("        model: v100\n", "", 15, "model is missing"),
        ("{fpga: 2}", "{fpga: -2}", 27, r"resources.fpga: must be at least 0"),
        ("  - id: b", "  - id: a", 29, "domain 'a' is there twice"),
        ("  - id: b\n", "  - region2: b\n", 29, "unknown key"),
        ("    nodes: [{count: 1, cpus: 8}]", "    nodes: []", 31, "at least one node"),
        ("    nodes: [{count: 1, cpus: 8}]", "    nodes: 7", 31, "a list is expected"),
        ("    nodes: [{count: 1, cpus: 8}]", "    nodes: [{count: 1]", 31, "is not YAML"),
    ],
)
def test_mistakes_are_found_with_their_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in FULL
    path = _write(tmp_path, FULL.replace(old, new, 1))
    with pytest.raises(NetworkError, match=message) as caught:
        read_network(path)
    assert caught.value.line == line
    assert (caught.value.status, caught.value.path) == (400, path)


@pytest.mark.parametrize(
    ("links", "line", "message"),
    [
        ("  - {from: a, to: c, bandwidth_bytes_per_s: 1}", 33, "no domain 'c'"),
        ("  - {from: a, to: a, bandwidth_bytes_per_s: 1}", 33, "from a domain to another"),
        ("  - {from: a, to: b, bandwidth_bytes_per_s: 0}", 33, "must be more than 0"),
        ("  - {from: a, to: b}", 33, "bandwidth_bytes_per_s is missing"),
        (
            "  - {from: a, to: b, bandwidth_bytes_per_s: 1}\n  - {from: b, to: a, bandwidth_bytes_per_s: 1, both_ways: true}",
            34,
            "from 'a' to 'b' is there twice",
        ),
        ("  regions_prices: half.csv\n  bandwidth_bytes_per_s: 1\n  rtt_s: 0", 33, "no price from region 'eu-west-1'"),
    ],
)
def test_mistakes_in_links(tmp_path: Path, links: str, line: int, message: str) -> None:
    path = _write(tmp_path, FULL + "links:\n" + links + "\n")
    (tmp_path / "half.csv").write_text("src,dst,cost\nus-east-1,eu-west-1,0.02\n")
    with pytest.raises(NetworkError, match=message) as caught:
        read_network(path)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("domains: []", "at least one domain"),
        ("name: x", "domains is missing"),
        ("- a", "a mapping is expected"),
        ("a: 1\n---\nb: 2", "is not YAML"),
        ("[" * 100_000, "is not YAML"),
        ("domains: [{<<: {id: a}, nodes: []}]", "unknown key"),
    ],
)
def test_no_network(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        read_network(_write(tmp_path, text))
    with pytest.raises(NetworkError, match="cannot be read"):
        read_network(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ("a,b,c\n", "line 1: the header"),
        ("src,dst,cost\na,b,free\n", "line 2: is not src,dst,cost"),
        ("src,dst,cost\na,b,-1\n", "line 2: cost is not a price"),
        ("src,dst,cost\na,b,1\na,b,1\n", "line 3: the pair a, b"),
    ],
)
def test_malformed_prices(tmp_path: Path, prices: str, message: str) -> None:
    path = _write(tmp_path, FULL + "links: {regions_prices: prices.csv, bandwidth_bytes_per_s: 1, rtt_s: 0}\n")
    (tmp_path / "prices.csv").write_text(prices)
    with pytest.raises(NetworkError, match=message):
        read_network(path)


def test_shipped_networks() -> None:
    found = {path.stem: read_network(path) for path in sorted(SHIPPED.glob("*.yaml"))}
    assert set(found) >= {"philly-5", "gavel-hetero", "hpc2n", "small"}
    assert found["philly-5"].accelerators == 176
    assert len({domain.region for domain in found["philly-5"].domains}) == 5
    assert len(found["philly-5"].links) == 20
    hetero = {node.model: 0 for node in found["gavel-hetero"].nodes}
    for node in found["gavel-hetero"].nodes:
        hetero[node.model] += node.accelerators
    assert hetero == {"v100": 36, "p100": 36, "k80": 36}
    assert sum(node.cpus for node in found["hpc2n"].nodes) == 240


def test_the_examples_of_the_documentation(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "simulation-formats.md").read_text()
    network, mesh = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (example,) = re.findall(r"```csv\n(.*?)```", text, re.DOTALL)
    campus = read_network(_write(tmp_path, network)).domains[0]
    assert (len(campus.nodes), campus.nodes[0].resources, campus.spot[0]) == (2, {"fpga": 1.0}, (0.0, 8))
    (tmp_path / "prices").mkdir()
    (tmp_path / "prices" / "aws_transfer_costs.csv").write_text(PRICES)
    priced = network[: network.index("links:")] + mesh.replace("${MERIDIAN_DATA}", str(tmp_path))
    assert [link.bandwidth_bytes_per_s for link in read_network(_write(tmp_path, priced)).links] == [1e8, 1.25e9]
    (tmp_path / "jobs.csv").write_text(example)
    jobs = load(tmp_path / "jobs.csv", "csv").jobs
    assert [(job.job_id, job.devices, job.accelerator_types) for job in jobs] == [
        ("train-1", 16, ("v100", "a100")),
        ("tune-7", 1, ()),
    ]


def test_uniform() -> None:
    network = uniform(3, 2, 4, price_micro_units_per_gib=9)
    assert (len(network.domains), len(network.nodes), network.accelerators, len(network.links)) == (3, 6, 24, 6)
    assert len({node.node_id for node in network.nodes}) == 6
    assert {link.price_micro_units_per_gib for link in network.links} == {9}
    for wrong in ({"domains": 0, "nodes": 1, "accelerators": 1}, {"domains": 1, "nodes": 1, "accelerators": -1}):
        with pytest.raises(NetworkError):
            uniform(**wrong)


def _job(home: str, ranks: int, accelerators: int, duration_s: float) -> TraceJob:
    return TraceJob(f"{home}-{duration_s}", 0.0, duration_s, ranks=ranks, accelerators=accelerators, home_domain=home)


def test_philly_network() -> None:
    # Demand 700, 210 and 8. After one node each, the greatest quotients are 700/2 ... 700/6, 210/2 = 105, 700/7 = 100.
    # With a job of c that spans two nodes, c begins with two, and the last quotient falls away.
    jobs = [_job("a", 1, 7, 100), _job("b", 1, 2, 105), _job("c", 1, 8, 1)]
    network = philly_network(Trace("t", jobs), accelerators=80)
    assert {domain.domain_id: len(domain.nodes) for domain in network.domains} == {"a": 7, "b": 2, "c": 1}
    wide = philly_network(Trace("t", [*jobs, _job("c", 2, 8, 0.1)]), accelerators=80)
    assert {domain.domain_id: len(domain.nodes) for domain in wide.domains} == {"a": 6, "b": 2, "c": 2}
    assert network.accelerators == wide.accelerators == 80
    with pytest.raises(
        NetworkError, match="need 3 nodes, each domain for its own, but 16 accelerators are 2 of 8; job a-100 needs 1"
    ):
        philly_network(Trace("t", jobs), accelerators=16)
    with pytest.raises(NetworkError, match="job a-100 has ranks of 7 accelerators: nodes have 4"):
        philly_network(Trace("t", jobs), accelerators=80, node_size=4)


def test_accelerators_that_are_less_than_a_node_are_a_smaller_one() -> None:
    # As above; the next quotient is b's, 210/3 = 70, or a's, 700/8 = 87.5: a gets the smaller node.
    jobs = [_job("a", 1, 7, 100), _job("b", 1, 2, 105), _job("c", 1, 8, 1)]
    network = philly_network(Trace("t", jobs), accelerators=86, cpus=64.0, memory_bytes=1024)
    assert {domain.domain_id: len(domain.nodes) for domain in network.domains} == {"a": 8, "b": 2, "c": 1}
    assert network.accelerators == 86
    small = network.domains[0].nodes[-1]
    assert (small.node_id, small.accelerators, small.cpus, small.memory_bytes) == ("a-7", 6, 48.0, 768)
    assert len({node.node_id for node in network.nodes}) == 11


def test_a_file_that_is_no_mapping(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="line 1: a mapping is expected"):
        read_network(_write(tmp_path, "hello"))
