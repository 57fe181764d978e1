"""Packets and headers of probes. A reply is never longer than what it answers, so a forged sender gains nothing.

Packet (UDP): ``MPRB``, version 1, kind (0 ask, 1 reply), sequence (4 bytes), nonce (8 bytes), length and name of the sender's
domain, all big-endian. Header of a transfer (TCP): ``MXFR``, version 1, bytes that follow (4 bytes), length and name of the
domain; the receiver answers with the bytes it took (4 bytes) and the nanoseconds from the first to the last of them (8 bytes).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

_PACKET = struct.Struct(">4sBBIQB")
_HEADER = struct.Struct(">4sBIB")
RECEIPT = struct.Struct(">IQ")
HEADER_BYTES = _HEADER.size
_MAGIC, _TRANSFER, _VERSION = b"MPRB", b"MXFR", 1
LONGEST_NAME = 200


class Kind(IntEnum):
    """Of a packet."""

    ASK = 0
    REPLY = 1


@dataclass(frozen=True, slots=True)
class Packet:
    """One probe. ``nonce`` is drawn by who asks: a reply without it is not an answer."""

    kind: Kind
    sequence: int
    nonce: int
    domain_id: str

    def packed(self) -> bytes:
        """As it is sent."""
        name = self.domain_id.encode()
        return _PACKET.pack(_MAGIC, _VERSION, self.kind, self.sequence, self.nonce, len(name)) + name


def packet(data: bytes) -> Packet | None:
    """What was sent; None for anything else."""
    if len(data) < _PACKET.size:
        return None
    magic, version, kind, sequence, nonce, length = _PACKET.unpack_from(data)
    name = _name(data[_PACKET.size :], length)
    if magic != _MAGIC or version != _VERSION or kind not in tuple(Kind) or name is None:
        return None
    return Packet(Kind(kind), sequence, nonce, name)


def header(size_bytes: int, domain_id: str) -> bytes:
    """What goes before a transfer of ``size_bytes``."""
    name = domain_id.encode()
    return _HEADER.pack(_TRANSFER, _VERSION, size_bytes, len(name)) + name


def announced(data: bytes) -> tuple[int, int] | None:
    """From the first `HEADER_BYTES` of a transfer: its bytes, and the length of the name that follows; None: no transfer."""
    magic, version, size_bytes, length = _HEADER.unpack(data)
    if magic != _TRANSFER or version != _VERSION or not 0 < length <= LONGEST_NAME:
        return None
    return size_bytes, length


def _name(data: bytes, length: int) -> str | None:
    if not 0 < length <= LONGEST_NAME or len(data) != length:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
