"""SPIFFE ids (spiffe/spiffe, standards/SPIFFE-ID.md): the names that certificates carry."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meridian.errors import InvalidArgumentError

MAX_BYTES = 2048
_TRUST_DOMAIN = re.compile(r"[a-z0-9._-]{1,255}")
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")


def is_segment(text: str) -> bool:
    """Whether ``text`` may be one segment of a path: not empty, no dot segment, only letters, digits, ``._-``."""
    return _SEGMENT.fullmatch(text) is not None and text not in {".", ".."}


@dataclass(frozen=True, slots=True)
class SpiffeId:
    """A parsed id. An empty path names the trust domain itself."""

    trust_domain: str
    segments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join((f"spiffe://{self.trust_domain}", *self.segments))


def parse_spiffe_id(text: str) -> SpiffeId:
    """Parse by sections 2.1-2.3 of the standard. InvalidArgumentError says which rule is broken."""
    if len(text.encode()) > MAX_BYTES:
        raise InvalidArgumentError(f"a SPIFFE id has at most {MAX_BYTES} bytes")
    if not text.startswith("spiffe://"):
        raise InvalidArgumentError(f"{text!r}: the scheme is not spiffe")
    trust_domain, *segments = text.removeprefix("spiffe://").split("/")
    if not _TRUST_DOMAIN.fullmatch(trust_domain):
        raise InvalidArgumentError(
            f"{text!r}: the trust domain has characters outside of a-z, 0-9, dot, dash, underscore"
        )
    for segment in segments:
        if not is_segment(segment):
            raise InvalidArgumentError(f"{text!r}: path segment {segment!r} is not allowed")
    return SpiffeId(trust_domain, tuple(segments))


def compute_spiffe_id(trust_domain: str, domain_id: str, kind: str, compute_id: str) -> str:
    """``spiffe://<trust domain>/cpn/<domain>/<kind>/<compute id>``; InvalidArgumentError when a part is not allowed."""
    return str(parse_spiffe_id(f"spiffe://{trust_domain}/cpn/{domain_id}/{kind}/{compute_id}"))
