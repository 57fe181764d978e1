"""Broadcast and all-reduce between ranks over TCP, in a star around rank 0.

A star needs one reachable address (MASTER_ADDR, MASTER_PORT), adds the ranks in one fixed order, so the sum is the same
to the last bit in every run, and shows a lost rank to all others after one hop. For the few megabytes of this example
that is worth more than the bandwidth of a ring.

All-reduce:
  1. every rank sends its frame to rank 0;
  2. rank 0 adds the frames to its own in the order of ranks;
  3. rank 0 sends the sum to every rank.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from layers import Array

_POLL_S = 0.2


class PeerLostError(Exception):
    """Another rank closed its connection or stayed silent for too long; the gang cannot go on."""


class Frame:
    """One message: a few float64 scalars and a long float32 vector in a single block of memory."""

    def __init__(self, scalars: int, values: int) -> None:
        block = bytearray(8 * scalars + 4 * values)
        self.block = memoryview(block)
        self.scalars: Array = np.frombuffer(block, np.float64, scalars)
        self.values: Array = np.frombuffer(block, np.float32, values, 8 * scalars)

    def empty_copy(self) -> Frame:
        return Frame(self.scalars.size, self.values.size)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a rank waits for another: `normal_s`, or `stopping_s` once it has been asked to stop."""

    normal_s: float
    stopping_s: float
    stopping: Callable[[], bool]

    def limit_s(self) -> float:
        return min(self.normal_s, self.stopping_s) if self.stopping() else self.normal_s


class Star:
    """The connected gang as one rank sees it. `peers` are ranks 1.. in order on rank 0, and rank 0 on the others."""

    def __init__(self, rank: int, peers: Sequence[socket.socket], patience: Patience) -> None:
        self._rank = rank
        self._peers = list(peers)
        self._patience = patience
        for peer in self._peers:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setblocking(False)

    def broadcast(self, frame: Frame) -> None:
        """Overwrite the frame on every rank with that of rank 0. Raises PeerLostError."""
        if self._rank == 0:
            self._send([frame.block] * len(self._peers))
        else:
            self._receive([frame.block])

    def all_reduce(self, frame: Frame) -> None:
        """Replace the frame on every rank by the sum over ranks. Raises PeerLostError."""
        if self._rank == 0:
            received = [frame.empty_copy() for _ in self._peers]
            self._receive([other.block for other in received])
            for other in received:
                frame.scalars += other.scalars
                frame.values += other.values
            self._send([frame.block] * len(self._peers))
        else:
            self._send([frame.block])
            self._receive([frame.block])

    def close(self) -> None:
        for peer in self._peers:
            peer.close()

    def _receive(self, blocks: Sequence[memoryview]) -> None:
        self._transfer(blocks, selectors.EVENT_READ, lambda peer, block: peer.recv_into(block))

    def _send(self, blocks: Sequence[memoryview]) -> None:
        self._transfer(blocks, selectors.EVENT_WRITE, lambda peer, block: peer.send(block))

    def _transfer(
        self, blocks: Sequence[memoryview], event: int, move: Callable[[socket.socket, memoryview], int]
    ) -> None:
        """Move one block per peer, all peers at once, so that the loss of any is seen while others are slow."""
        with selectors.DefaultSelector() as selector:
            for peer, block in zip(self._peers, blocks, strict=True):
                selector.register(peer, event, block)
            progress_at = time.monotonic()
            while selector.get_map():
                ready = selector.select(_POLL_S)
                if ready:
                    progress_at = time.monotonic()
                elif time.monotonic() - progress_at > self._patience.limit_s():
                    raise PeerLostError(f"no data from or to another rank for {self._patience.limit_s():g} s")
                for key, _ in ready:
                    assert isinstance(key.fileobj, socket.socket)
                    rest = _step(key.fileobj, key.data, move)
                    if rest:
                        selector.modify(key.fileobj, event, rest)
                    else:
                        selector.unregister(key.fileobj)


def _step(peer: socket.socket, block: memoryview, move: Callable[[socket.socket, memoryview], int]) -> memoryview:
    """Move what can be moved without waiting; returns what is left of the block."""
    try:
        moved = move(peer, block)
    except (BlockingIOError, InterruptedError):
        return block
    except OSError as error:
        raise PeerLostError(f"the connection to another rank broke: {error}") from error
    if moved == 0:
        raise PeerLostError("another rank closed its connection")
    return block[moved:]
