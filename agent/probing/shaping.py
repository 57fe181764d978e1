"""What an emulated domain does to probes, so that real sockets on one machine show the links that are declared."""

from __future__ import annotations

from dataclasses import dataclass

SCALE = 100.0
"""An emulated link carries this much less than is declared, and what is measured of it is multiplied again: a machine's loopback
is slower than a declared 20 Gbit/s, and its noise would be all that is seen (scaled emulation: Gupta et al., "To Infinity and
Beyond: Time-Warped Network Emulation", NSDI 2006)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the way to one domain: the reply waits ``rtt_s``, a share ``loss`` of replies is dropped, and a transfer is read no faster
    than ``bytes_per_s`` (0: as fast as it comes)."""

    rtt_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float = 0.0

    def pause_s(self, read_bytes: int, since_s: float) -> float:
        """How long a receiver waits that has read so much since the first byte."""
        return max(0.0, read_bytes / self.bytes_per_s - since_s) if self.bytes_per_s else 0.0


UNSHAPED = Shape()
