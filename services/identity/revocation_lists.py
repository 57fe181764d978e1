"""Revocation lists (RFC 5280, section 5) for everybody who asks: a list is signed again only when it would say something else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography.hazmat.primitives.serialization import Encoding

from meridian.clock import Clock
from meridian.database import Database
from meridian.errors import NotFoundError
from services.identity import store
from services.identity.authority import CertificateAuthority, RevokedSerial


@dataclass(frozen=True, slots=True)
class _Signed:
    der: bytes
    at: datetime
    mark: tuple[int, datetime | None]
    """Of `store.revocation_mark` for its time."""


class RevocationLists:
    """Lists live ``ttl_s``; one is given out again for half of that while no certificate was revoked since it was signed."""

    def __init__(self, authority: CertificateAuthority, database: Database, clock: Clock, *, ttl_s: float) -> None:
        self._authority, self._database, self._clock = authority, database, clock
        self._ttl = timedelta(seconds=ttl_s)
        self._signed: dict[str, _Signed] = {}
        self._one = asyncio.Lock()

    async def der(self, issuer: str | None = None) -> bytes:
        """The list that the issuing CA of this serial signs, or the newest one. NotFoundError when there is no such CA."""
        # Who asks at the same time as others waits for the one list.
        async with self._one:
            known = self._authority.issuers()
            name = known[-1] if issuer is None else issuer
            if name not in known:
                raise NotFoundError(f"there is no issuing CA {name!r}")
            self._signed = {each: signed for each, signed in self._signed.items() if each in known}
            now, before = self._clock.now(), self._signed.get(name)
            async with self._database.reading() as connection:
                fresh = before is not None and before.at <= now < before.at + self._ttl / 2
                if fresh and before and await store.revocation_mark(connection, before.at) == before.mark:
                    return before.der
                rows = await store.revoked_certificates(connection, now)
            entries = [RevokedSerial(int(serial, 16), revoked_at) for serial, revoked_at in rows]
            der = await asyncio.to_thread(self._sign, name, entries, now)
            self._signed[name] = _Signed(der, now, (len(rows), rows[-1][1] if rows else None))
            return der

    def _sign(self, issuer: str, entries: list[RevokedSerial], now: datetime) -> bytes:
        number = int(now.timestamp())
        return self._authority.revocation_list(issuer, entries, number, now, self._ttl).public_bytes(Encoding.DER)
