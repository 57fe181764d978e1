"""One node's step of a run: the node's process of the local engine (`agent.node`), with files in the place of its agent.

    srun ... python -S -E -m agent.engines.slurm.step '{"place": "/home/meridian/slurm/job-1.0.1/17", "shared": "..."}'

What the node's process says goes to a file, so that it outlives the agent. It is told that its agent lives only when the lease
has changed: without that for ``silence_s`` it ends its ranks by itself, by its own clock, though this program may hang in a read of a
lost file system. Standard library only.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from agent.engines.slurm import folder
from agent.node import wire
from agent.node.machine import Machine

TURN_S = 0.1
BEAT_EVERY_S = 1.0
SHUTDOWN = {"op": "shutdown"}
_PATIENCE_S = 5.0


class _SteadyMachine(Machine):
    """A node that a ``SIGTERM`` of Slurm's does not end: it goes to the ranks as well, and what they do then is to be told."""

    def _prepare(self) -> None:
        super()._prepare()
        signal.signal(signal.SIGTERM, lambda *_: None)


class Step:
    """Between one node's process (``link``) and the files of its run in ``place``."""

    def __init__(self, link: socket.socket, place: Path, shared: Path, node: str, message: wire.Message) -> None:
        self._link = link
        self._lease = shared / folder.LEASE
        self._stop = place / folder.STOP
        self._beat = place / f"{node}.beat"
        self._events = (place / f"{node}.events").open("ab", buffering=0)
        self._message = message
        self._left = len(message["ranks"])
        self._known_lease = ""
        self._stopped: dict[str, Any] | None = None
        self._beats = 0
        self._beat_at = 0.0

    def run(self) -> None:
        """Until no rank is left, or the node's process is gone."""
        try:
            self._serve()
        except BrokenPipeError:
            self._write({"ev": "gone"})

    def _serve(self) -> None:
        self._link.sendall(wire.encode(self._message))
        decoder = wire.LineDecoder()
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            while self._left:
                if selector.select(TURN_S):
                    data = self._link.recv(262144)
                    if not data:
                        self._write({"ev": "gone"})
                        return
                    for heard in decoder.feed(data):
                        self._pass_on(heard)
                self._look()
        self._link.sendall(wire.encode(SHUTDOWN))

    def _pass_on(self, message: wire.Message) -> None:
        if message["ev"] == "beat":
            return
        self._write(message)
        self._left -= message["ev"] in {"exited", "start_failed"}

    def _look(self) -> None:
        lease = folder.text_of(self._lease)
        if lease and lease != self._known_lease:
            self._known_lease = lease
            self._link.sendall(wire.encode({"op": "ping"}))
        order = folder.read_json(self._stop)
        if order is not None and order != self._stopped:
            self._stopped = order
            run, epoch = self._message["run"], self._message["epoch"]
            self._link.sendall(wire.encode({"op": "stop", "run": run, "epoch": epoch, "grace_s": order["grace_s"]}))
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + BEAT_EVERY_S
            self._beats += 1
            folder.write_whole(self._beat, str(self._beats))

    def _write(self, message: wire.Message) -> None:
        self._events.write(wire.encode(message))


def with_own_devices(ranks: list[dict[str, Any]], seen: dict[str, str]) -> list[dict[str, Any]]:
    """The ranks of a node with their devices as Slurm numbers them here.

    Where Slurm confines a job to its devices (``ConstrainDevices``) they are numbered anew from 0, and it says in the step's own
    environment (``seen``) what they are called. ``device_positions`` of a rank are places among the node's devices of this run.
    """
    found = []
    for rank in ranks:
        variable, positions = rank.get("device_variable", ""), rank.get("device_positions", [])
        names = [name for name in seen.get(variable, "").split(",") if name]
        env = dict(rank["env"])
        if variable and positions and max(positions) < len(names):
            env[variable] = ",".join(names[place] for place in positions)
        found.append({**rank, "env": env})
    return found


def main() -> int:
    """Exit status 0, whatever the ranks did: they tell it themselves."""
    arguments = json.loads(sys.argv[1])
    place, shared = Path(arguments["place"]), Path(arguments["shared"])
    node = os.environ["SLURMD_NODENAME"]
    launch = folder.read_json(place / folder.LAUNCH)
    if launch is None or node not in launch["messages"]:
        return 0
    message = launch["messages"][node]
    message["ranks"] = with_own_devices(message["ranks"], dict(os.environ))
    ours, theirs = socket.socketpair()
    machine = os.fork()
    if not machine:
        ours.close()
        os.setsid()
        _SteadyMachine(
            theirs, node_id=node, incarnation=1, beat_s=1.0, silence_s=float(launch["agent_silence_s"])
        ).run()
        os._exit(0)
    theirs.close()
    # Slurm's SIGTERM is for the ranks; how they end is still to be written down.
    signal.signal(signal.SIGTERM, lambda *_: None)
    step = Step(ours, place, shared, node, message)
    step.run()
    ours.close()
    end = time.monotonic() + _PATIENCE_S
    while os.waitpid(machine, os.WNOHANG) == (0, 0) and time.monotonic() < end:
        time.sleep(0.02)
    return 0


if __name__ == "__main__":
    sys.exit(main())
