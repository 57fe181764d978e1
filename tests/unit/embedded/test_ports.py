"""Ports are chosen once and kept."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from meridian.embedded.ports import FIRST_PORT, LAST_PORT, choose_ports, is_free, kept_ports
from meridian.errors import ConfigurationError
from tests.fixtures_embedded import held_port


def port_of(held: socket.socket) -> int:
    port: int = held.getsockname()[1]
    return port


def test_ports_are_different_and_below_the_ephemeral_range() -> None:
    chosen = choose_ports([f"p{i}" for i in range(20)], seed="a")
    assert len(set(chosen.values())) == 20
    assert all(FIRST_PORT <= port <= LAST_PORT for port in chosen.values())


def test_a_port_on_which_somebody_listens_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with held_port() as one, held_port() as two, held_port() as three:
        in_turn = [port_of(held) for held in (one, two, three)]
        monkeypatch.setattr("meridian.embedded.ports.candidates", lambda _seed: iter(in_turn))
        two.listen()
        assert choose_ports(["a", "b"], seed="x") == {"a": in_turn[0], "b": in_turn[2]}


def test_a_port_is_free_until_somebody_listens() -> None:
    with held_port() as held:
        assert is_free(port_of(held))
        held.listen()
        assert not is_free(port_of(held))


def test_two_stacks_start_at_different_places() -> None:
    assert choose_ports(["p"], seed="a") != choose_ports(["p"], seed="b")


def test_ports_are_kept_and_others_keep_their_entry(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = kept_ports(file, ["a", "b"])
    assert json.loads(file.read_text()) == first
    with held_port() as one, held_port() as two:
        known = {"a": port_of(one), "b": port_of(two)}
        file.write_text(json.dumps(known))
        new = kept_ports(file, ["c"])
        assert json.loads(file.read_text()) == known | new
        assert kept_ports(file, ["b", "a"]) == known


def test_a_kept_port_that_is_taken_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    with held_port() as one, held_port() as two:
        known = {"a": port_of(one), "b": port_of(two)}
        file.write_text(json.dumps(known))
        one.listen()
        second = kept_ports(file, ["a", "b"])
        assert second["a"] != known["a"]
        assert second["b"] == known["b"]


def test_a_wanted_port_is_taken_or_refused() -> None:
    with held_port() as held:
        wanted = {"p": port_of(held)}
        assert choose_ports(["p"], seed="x", wanted=wanted) == wanted
        held.listen()
        with pytest.raises(ConfigurationError, match=str(wanted["p"])):
            choose_ports(["p"], seed="x", wanted=wanted)
