"""Ports are chosen once and kept."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from meridian.embedded.ports import FIRST_PORT, LAST_PORT, choose_ports, is_free, kept_ports
from meridian.errors import ConfigurationError


def test_ports_are_different_free_and_below_the_ephemeral_range() -> None:
    chosen = choose_ports([f"p{i}" for i in range(20)], seed="a")
    assert len(set(chosen.values())) == 20
    assert all(FIRST_PORT <= port <= LAST_PORT and is_free(port) for port in chosen.values())


def test_two_stacks_start_at_different_places() -> None:
    assert choose_ports(["p"], seed="a") != choose_ports(["p"], seed="b")


def test_ports_are_kept_and_others_keep_their_entry(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = kept_ports(file, ["a", "b"])
    kept_ports(file, ["c"])
    assert kept_ports(file, ["b", "a"]) == first


def test_a_kept_port_that_is_taken_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = kept_ports(file, ["a", "b"])
    with socket.create_server(("127.0.0.1", first["a"])):
        second = kept_ports(file, ["a", "b"])
    assert second["a"] != first["a"]
    assert second["b"] == first["b"]


def test_a_wanted_port_is_taken_or_refused() -> None:
    free = choose_ports(["p"], seed="wanted")["p"]
    assert choose_ports(["p"], seed="x", wanted={"p": free}) == {"p": free}
    with socket.create_server(("127.0.0.1", free)), pytest.raises(ConfigurationError, match=str(free)):
        choose_ports(["p"], seed="x", wanted={"p": free})
