"""Packets of probes, and what is made of their answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent.probing.address import address_of
from agent.probing.estimates import BURSTS, LinkEstimate
from agent.probing.shaping import Shape
from agent.probing.wire import HEADER_BYTES, Kind, Packet, announced, header, packet
from agent.settings import read_settings
from meridian.errors import ConfigurationError

names = st.text(min_size=1, max_size=40).filter(lambda text: len(text.encode()) <= 200)


@given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), names)
def test_a_packet_comes_back_as_it_was_sent(kind: Kind, sequence: int, nonce: int, name: str) -> None:
    sent = Packet(kind, sequence, nonce, name)
    assert packet(sent.packed()) == sent


@given(st.binary(max_size=300))
def test_anything_else_is_no_packet(data: bytes) -> None:
    found = packet(data)
    assert found is None or found.packed() == data


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"X" + data[1:],
        lambda data: data[:5] + b"\7" + data[6:],
    ],
)
def test_a_damaged_packet_is_none(change: object) -> None:
    data = Packet(Kind.ASK, 1, 2, "beijing").packed()
    assert callable(change)
    assert packet(change(data)) is None


@given(st.integers(0, 2**32 - 1), names)
def test_a_transfer_is_announced(size_bytes: int, name: str) -> None:
    data = header(size_bytes, name)
    assert announced(data[:HEADER_BYTES]) == (size_bytes, len(name.encode()))
    assert data[HEADER_BYTES:].decode() == name


def test_what_is_no_transfer_is_not_announced() -> None:
    assert announced(b"GET / HTTP"[:HEADER_BYTES].ljust(HEADER_BYTES)) is None


def test_an_estimate_by_hand() -> None:
    link = LinkEstimate()
    assert link.now() is None
    link.burst((0.03, 0.05, 0.04), 4, at_s=10.0)
    first = link.now()
    assert first is not None
    assert (first.rtt_s, first.loss, first.bandwidth_bytes_per_s, first.measured_at_s) == (0.04, 0.25, None, 10.0)
    link.burst((), 4, at_s=15.0)
    link.transfer(1000, 2.0)
    link.transfer(1000, 1.0)
    link.transfer(1000, 4.0)
    second = link.now()
    assert second is not None
    assert (second.rtt_s, second.loss, second.bandwidth_bytes_per_s, second.measured_at_s) == (
        0.04,
        0.625,
        1000.0,
        15.0,
    )
    link.transfer(1000, 2.0)
    link.transfer(1000, 2.0)
    third = link.now()
    assert third is not None
    assert third.bandwidth_bytes_per_s == 500.0


def test_old_bursts_are_forgotten_but_not_the_last_round_trip() -> None:
    link = LinkEstimate()
    link.burst((0.02,), 1, at_s=0.0)
    for number in range(BURSTS):
        link.burst((), 1, at_s=float(number))
    found = link.now()
    assert found is not None
    assert (found.rtt_s, found.loss) == (0.02, 1.0)


def test_a_link_that_never_answered_has_no_round_trip() -> None:
    link = LinkEstimate()
    link.burst((), 3, at_s=1.0)
    found = link.now()
    assert found is not None
    assert (found.rtt_s, found.loss) == (None, 1.0)


def test_a_receiver_waits_until_the_rate_is_kept() -> None:
    shape = Shape(bytes_per_s=100.0)
    assert shape.pause_s(50, 0.2) == pytest.approx(0.3)
    assert shape.pause_s(50, 0.6) == 0.0
    assert Shape().pause_s(10**9, 0.0) == 0.0


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.7:4790", ("192.0.2.7", 4790)),
        ("south.example:1", ("south.example", 1)),
        ("[2001:db8::7]:65535", ("2001:db8::7", 65535)),
        ("2001:db8::7:4790", ("2001:db8::7", 4790)),
        ("bücher.example:4790", ("bücher.example", 4790)),
    ],
)
def test_addresses_of_probes(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize(
    "text", ["south..example:4790", f"{'x' * 64}:1", "south:0", "south:65536", ":4790", "a\0b:1", "[]:7"]
)
def test_an_address_that_no_host_has_is_refused_with_its_field(text: str, tmp_path: Path) -> None:
    """The resolver and the socket refuse it with errors of other kinds than those of a network, which ended the agent and its runs."""
    path = tmp_path / "agent.yaml"
    link = {"to_domain_id": "south", "probe": text}
    domain = {"domain_id": "north", "nodes": [{"node_id": "n1"}], "links": [link]}
    path.write_text(yaml.safe_dump({"domain": domain, "kafka_bootstrap_servers": "b:9092", "data_dir": str(tmp_path)}))
    with pytest.raises(ConfigurationError, match=r"domain\.links\.0\.probe"):
        read_settings(path)
