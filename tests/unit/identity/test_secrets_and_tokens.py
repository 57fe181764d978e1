"""Secrets, token keys and the bootstrap file."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from joserfc import jwt
from joserfc.jwk import OKPKey
from joserfc.jws import extract_compact

from meridian.errors import ConfigurationError, UnauthenticatedError
from services.identity.authority import CertificateAuthority
from services.identity.bootstrap import read_bootstrap
from services.identity.credentials import NOBODY, hash_secret, secret_matches
from services.identity.key_files import installation_salt
from services.identity.token_keys import SETTLED_S, Grant, TokenKeys

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GRANT = Grant("tok-1", "app", "acme", ("jobs:read",), NOW, NOW + timedelta(hours=1))


def keys(directory: Path, now: datetime = NOW, audience: str = "meridian", issuer: str = "https://issuer") -> TokenKeys:
    found = TokenKeys(directory, issuer=issuer, audience=audience, key_ttl_s=86400, token_ttl_s=3600)
    found.open(now)
    return found


def test_a_secret_matches_its_hash_and_no_other() -> None:
    stored = hash_secret("s3cret-s3cret", b"salt-salt-salt-1")
    assert "s3cret" not in stored
    assert secret_matches("s3cret-s3cret", stored)
    assert not secret_matches("s3cret-s3creT", stored)
    assert not secret_matches("", NOBODY)
    assert hash_secret("s3cret-s3cret", b"salt-salt-salt-2") != stored


def test_hashes_are_those_of_scrypt_as_it_is_specified() -> None:
    # RFC 7914, section 12: N = 16384, r = 8, p = 1; the first 32 bytes.
    digest = bytes.fromhex("7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2")
    stored = hash_secret("pleaseletmein", b"SodiumChloride")
    assert stored == f"scrypt${b64encode(b'SodiumChloride').decode()}${b64encode(digest).decode()}"
    for place in (0, 31):
        other = bytearray(digest)
        other[place] ^= 1
        assert not secret_matches("pleaseletmein", f"{stored.rpartition('$')[0]}${b64encode(other).decode()}")


def test_private_keys_are_their_owners_alone(tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    directory.mkdir(mode=0o755)
    keys(directory)
    CertificateAuthority(directory, "meridian.local", root_ttl_s=86400 * 365, issuing_ttl_s=86400).open(NOW)
    installation_salt(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert {name.partition("-")[0] for name in modes} == {"token", "root.key", "root.crt", "issuing", "join"}
    assert set(modes.values()) == {0o600}


def test_a_token_comes_back_as_it_was_granted(tmp_path: Path) -> None:
    ring = keys(tmp_path)
    assert ring.read(ring.sign(GRANT), NOW) == GRANT


def test_a_token_that_is_late_forged_or_of_another_issuer_is_refused(tmp_path: Path) -> None:
    ring = keys(tmp_path / "one")
    token = ring.sign(GRANT)
    head, body, signature = token.split(".")
    forged = keys(tmp_path / "two").sign(replace(GRANT, scopes=("admin",)))
    unsigned = "eyJhbGciOiJub25lIn0." + body + "."
    flipped = f"{head}.{body}.{('A' if signature[0] != 'A' else 'B') + signature[1:]}"
    other_audience = keys(tmp_path / "one", audience="elsewhere").sign(GRANT)
    other_issuer = keys(tmp_path / "one", issuer="https://elsewhere").sign(GRANT)
    for bad in (forged, unsigned, flipped, other_audience, other_issuer, "", "a.b.c", token[:-10]):
        with pytest.raises(UnauthenticatedError):
            ring.read(bad, NOW)
    with pytest.raises(UnauthenticatedError):
        ring.read(token, NOW + timedelta(hours=2))


@pytest.mark.parametrize("missing", ["exp", "iss", "aud", "sub", "tenant", "jti"])
def test_a_token_that_leaves_out_a_claim_is_refused(tmp_path: Path, missing: str) -> None:
    ring = keys(tmp_path)
    [path] = tmp_path.glob("token-*.key")
    key = OKPKey.import_key(path.read_bytes())
    token = extract_compact(ring.sign(GRANT).encode())
    claims = json.loads(token.payload)
    protected = token.protected
    assert ring.read(jwt.encode(protected, claims, key, algorithms=["EdDSA"]), NOW) == GRANT
    del claims[missing]
    with pytest.raises(UnauthenticatedError, match=missing):
        ring.read(jwt.encode(protected, claims, key, algorithms=["EdDSA"]), NOW)


def test_keys_change_with_time_and_old_tokens_stay_good(tmp_path: Path) -> None:
    token = keys(tmp_path).sign(replace(GRANT, expires_at=NOW + timedelta(days=2)))
    later = keys(tmp_path, NOW + timedelta(days=1))
    assert len(later.public_set()["keys"]) == 2
    assert later.read(token, NOW + timedelta(days=1)).token_id == "tok-1"
    assert "d" not in later.public_set()["keys"][0]
    much_later = NOW + timedelta(days=9)
    assert len(keys(tmp_path, much_later).public_set()["keys"]) == 2
    assert len(keys(tmp_path, much_later + timedelta(hours=2)).public_set()["keys"]) == 1


@pytest.mark.parametrize("age", [timedelta(days=2), timedelta(days=2, hours=1), timedelta(days=30)])
def test_tokens_of_a_key_stay_good_however_late_the_next_one_was_made(tmp_path: Path, age: timedelta) -> None:
    """Identity did not run when the key was due to be replaced, and the key went before what it signed after that."""
    keys(tmp_path)
    start = NOW + age
    ring = keys(tmp_path, start)
    last = start + timedelta(seconds=SETTLED_S - 1)
    token = ring.sign(replace(GRANT, issued_at=last, expires_at=last + timedelta(hours=1)))
    for minutes in range(60):
        now = last + timedelta(minutes=minutes)
        ring.open(now)
        assert ring.read(token, now).token_id == "tok-1"


def test_a_new_key_signs_once_every_replica_has_had_time_to_read_it(tmp_path: Path) -> None:
    one, other = keys(tmp_path), keys(tmp_path)
    assert other.read(one.sign(GRANT), NOW) == GRANT
    due = NOW + timedelta(days=1)
    grant = replace(GRANT, issued_at=due, expires_at=due + timedelta(hours=1))
    one.open(due)
    assert len(one.public_set()["keys"]) == 2
    assert other.read(one.sign(grant), due) == grant, "its upkeep has not read the new key yet"
    settled = due + timedelta(seconds=SETTLED_S)
    for replica in (one, other):
        replica.open(settled)
    assert other.read(one.sign(grant), settled) == grant
    old, new = (key["kid"] for key in one.public_set()["keys"])
    assert extract_compact(one.sign(grant).encode()).protected["kid"] == new != old


def test_the_bootstrap_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.json"
    client = {"client_id": "app", "client_secret": "12345678", "tenant_id": "acme", "scopes": ["jobs:read"]}
    path.write_text(json.dumps({"join_tokens": ["12345678"], "clients": [client]}))
    assert read_bootstrap(path).clients[0].client_id == "app"
    for content, problem in (
        ("{", "JSON"),
        (json.dumps({"join_tokens": ["short"]}), "join_tokens"),
        (json.dumps({"clients": [client | {"scopes": ["fly"]}]}), "fly"),
        (json.dumps({"clients": [client | {"tenant_id": "Not allowed"}]}), "tenant_id"),
        (json.dumps({"client": []}), "client"),
    ):
        path.write_text(content)
        with pytest.raises(ConfigurationError, match=problem) as caught:
            read_bootstrap(path)
        assert "12345678" not in caught.value.detail
    with pytest.raises(ConfigurationError):
        read_bootstrap(tmp_path / "missing.json")
