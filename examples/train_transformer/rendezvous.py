"""How the ranks of one run find each other: rank 0 listens, the others call until it answers.

A greeting carries run, epoch and configuration, so a rank left over from an earlier epoch, or started with other
options, is turned away instead of corrupting the sum:
  1. a rank connects (again and again while rank 0 is not up yet) and sends its greeting;
  2. rank 0 compares it with its own; a stranger gets the reason and is disconnected;
  3. once every rank has called, rank 0 welcomes all of them and stops listening.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from launch import Launch, TerminatedError

_CONNECT_TIMEOUT_S = 1.0
_GREETING_TIMEOUT_S = 2.0
_RETRY_S = 0.05
_POLL_S = 0.2
_MAX_MESSAGE_BYTES = 65536
_LENGTH = struct.Struct("!I")


class RendezvousError(Exception):
    """The gang did not come together: refused, or not complete in time."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What must agree between ranks (all but `rank`)."""

    rank: int
    world_size: int
    run_id: str
    epoch: int
    configuration: str

    def objection(self, other: Greeting) -> str | None:
        """Why `other` cannot join the run of `self`, or None."""
        for name in ("run_id", "epoch", "world_size", "configuration"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name} is {theirs!r} there and {mine!r} on rank 0"
        return None if 1 <= other.rank < self.world_size else f"rank {other.rank} is impossible"


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of the rendezvous, and whether it was called off."""

    at_s: float
    stopping: Callable[[], bool]

    def check(self, waiting_for: str) -> None:
        if self.stopping():
            raise TerminatedError(f"asked to stop while waiting for {waiting_for}")
        if time.monotonic() > self.at_s:
            raise RendezvousError(f"gave up waiting for {waiting_for}")


def meet(launch: Launch, configuration: str, timeout_s: float, stopping: Callable[[], bool]) -> list[socket.socket]:
    """Connections to the peers: ranks 1.. in order on rank 0, rank 0 alone on the others.

    Raises RendezvousError when the gang is not complete after `timeout_s`, TerminatedError when `stopping` turns true.
    """
    greeting = Greeting(launch.rank, launch.world_size, launch.run_id, launch.epoch, configuration)
    deadline = Deadline(time.monotonic() + timeout_s, stopping)
    if launch.world_size == 1:
        return []
    if launch.rank == 0:
        return _gather(launch, greeting, deadline)
    return [_join(launch, greeting, deadline)]


def _gather(launch: Launch, greeting: Greeting, deadline: Deadline) -> list[socket.socket]:
    joined: dict[int, socket.socket] = {}
    with _listen(launch, deadline) as listener:
        while len(joined) < launch.world_size - 1:
            missing = [rank for rank in range(1, launch.world_size) if rank not in joined]
            deadline.check(f"ranks {missing}")
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                _admit(connection, greeting, joined)
    for rank, connection in joined.items():
        try:
            _send(connection, {"welcome": True})
        except OSError as error:
            raise RendezvousError(f"rank {rank} left during the rendezvous: {error}") from error
    return [joined[rank] for rank in sorted(joined)]


def _admit(connection: socket.socket, greeting: Greeting, joined: dict[int, socket.socket]) -> None:
    connection.settimeout(_GREETING_TIMEOUT_S)
    try:
        caller = Greeting(**_receive(connection))
        objection = greeting.objection(caller)
        if objection:
            _send(connection, {"refused": objection, "epoch": greeting.epoch})
    except (OSError, ValueError, TypeError) as error:
        objection = f"no greeting: {error}"
    if objection:
        connection.close()
        return
    if caller.rank in joined:
        joined[caller.rank].close()
    joined[caller.rank] = connection


def _listen(launch: Launch, deadline: Deadline) -> socket.socket:
    loopback = launch.master_address == "localhost" or launch.master_address.startswith("127.")
    host = launch.master_address if loopback else ""
    while True:
        try:
            # Room for strangers too: a full queue makes a rank wait a second for its next attempt.
            listener = socket.create_server((host, launch.master_port), backlog=max(128, launch.world_size))
        except OSError:
            deadline.check(f"port {launch.master_port} to become free")
            time.sleep(_RETRY_S)
        else:
            listener.settimeout(_POLL_S)
            return listener


def _join(launch: Launch, greeting: Greeting, deadline: Deadline) -> socket.socket:
    while True:
        deadline.check(f"rank 0 at {launch.master_address}:{launch.master_port}")
        with suppress(OSError):
            connection = socket.create_connection((launch.master_address, launch.master_port), _CONNECT_TIMEOUT_S)
            if _greet(connection, greeting, deadline):
                return connection
            connection.close()
        time.sleep(_RETRY_S)


def _greet(connection: socket.socket, greeting: Greeting, deadline: Deadline) -> bool:
    """True once welcomed; False to try again, because what answered was not (yet) rank 0 of this epoch."""
    if connection.getsockname() == connection.getpeername():
        return False  # TCP connected to itself: an ephemeral source port happened to be the port nobody listens on
    _send(connection, asdict(greeting))
    while True:
        connection.settimeout(_POLL_S)
        with suppress(TimeoutError):
            if not connection.recv(1, socket.MSG_PEEK):
                return False
            break
        deadline.check("the other ranks")
    connection.settimeout(_GREETING_TIMEOUT_S)
    try:
        answer = _receive(connection)
    except (ValueError, TypeError):
        return False
    if answer.get("welcome"):
        return True
    if int(answer.get("epoch", 0)) < greeting.epoch:
        return False
    raise RendezvousError(f"rank 0 refused this rank: {answer.get('refused')}")


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    payload = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(payload)) + payload)


def _receive(connection: socket.socket) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    if length > _MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return dict(json.loads(_receive_exactly(connection, length)))


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionError("closed during the greeting")
        received += part
    return received
