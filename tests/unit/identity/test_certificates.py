"""The X.509-SVID profile: what the authority issues is valid, and each broken rule is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from meridian.errors import ConfigurationError, InvalidArgumentError, NotFoundError
from services.identity.authority import CertificateAuthority, RevokedSerial
from services.identity.key_files import read_ec_key
from services.identity.x509_profile import (
    Leaf,
    fingerprint_of,
    key_usage,
    public_key_of_csr,
    sign_authority,
    sign_leaf,
    verify_svid,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAME = "spiffe://meridian.local/cpn/beijing/agent/abc"


def opened(directory: Path, now: datetime = NOW, trust_domain: str = "meridian.local") -> CertificateAuthority:
    authority = CertificateAuthority(directory, trust_domain, root_ttl_s=3650 * 86400, issuing_ttl_s=30 * 86400)
    authority.open(now)
    return authority


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return opened(tmp_path / "ca")


def leaf(**changes: Any) -> Leaf:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    values = {
        "spiffe_id": NAME,
        "common_name": "agent",
        "key": key,
        "not_before": NOW,
        "not_after": NOW + HOUR,
        "serial": 7,
    }
    return Leaf(**(values | changes))


def chain_of(authority: CertificateAuthority, **changes: Any) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(authority.issue(leaf(**changes))[1].encode())


def test_an_issued_certificate_is_a_valid_svid(authority: CertificateAuthority) -> None:
    chain = chain_of(authority)
    assert str(verify_svid(chain, [authority.root], "meridian.local", NOW)) == NAME
    usages = chain[0].extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    assert chain[0].not_valid_after_utc - chain[0].not_valid_before_utc == HOUR


def test_a_leaf_does_not_outlive_its_authority(authority: CertificateAuthority) -> None:
    chain = chain_of(authority, not_after=NOW + timedelta(days=4000))
    assert chain[0].not_valid_after_utc == chain[1].not_valid_after_utc


def signed_by(authority: CertificateAuthority, tmp_path: Path, *extensions: tuple[Any, bool]) -> list[x509.Certificate]:
    """A certificate of the issuing CA with any extensions."""
    [path] = (tmp_path / "ca").glob("issuing-*.crt")
    issuer = x509.load_pem_x509_certificate(path.read_bytes())
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]))
        .issuer_name(issuer.subject)
        .public_key(ec.generate_private_key(ec.SECP256R1()).public_key())
        .serial_number(9)
        .not_valid_before(NOW)
        .not_valid_after(NOW + HOUR)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return [builder.sign(read_ec_key(path.with_suffix(".key")), hashes.SHA256()), issuer]


def names(*uris: str) -> tuple[Any, bool]:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris]), False


def usage(*, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    """A leaf's, which may sign more than it should."""
    return x509.KeyUsage(
        True, False, False, False, False, key_cert_sign=key_cert_sign, crl_sign=crl_sign,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


NO_CA = (x509.BasicConstraints(ca=False, path_length=None), True)
USAGE = (key_usage(authority=False), True)


@pytest.mark.parametrize(
    ("extensions", "rule"),
    [
        ([NO_CA, USAGE], "no subject alternative name"),
        ([names(NAME, NAME + "2"), NO_CA, USAGE], "2 URI names"),
        ([names("https://example.org"), NO_CA, USAGE], "scheme"),
        ([names("spiffe://meridian.local"), NO_CA, USAGE], "trust domain itself"),
        ([names("spiffe://elsewhere/a"), NO_CA, USAGE], "trust domain 'elsewhere'"),
        ([names(NAME), (x509.BasicConstraints(ca=True, path_length=0), True), USAGE], "authority"),
        ([names(NAME), NO_CA], "no key usage"),
        ([names(NAME), NO_CA, (key_usage(authority=False), False)], "critical"),
        ([names(NAME), NO_CA, (key_usage(authority=True), True)], "digitalSignature"),
        ([names(NAME), NO_CA, (usage(key_cert_sign=True), True)], "sign certificates or CRLs"),
        ([names(NAME), NO_CA, (usage(crl_sign=True), True)], "sign certificates or CRLs"),
    ],
)
def test_each_broken_rule_is_refused(
    authority: CertificateAuthority, tmp_path: Path, extensions: list[tuple[Any, bool]], rule: str
) -> None:
    chain = signed_by(authority, tmp_path, *extensions)
    with pytest.raises(InvalidArgumentError, match=rule):
        verify_svid(chain, [authority.root], "meridian.local", NOW)


def test_the_good_one_among_them_is_accepted(authority: CertificateAuthority, tmp_path: Path) -> None:
    verify_svid(signed_by(authority, tmp_path, names(NAME), NO_CA, USAGE), [authority.root], "meridian.local", NOW)


def test_time_and_chain_are_checked(authority: CertificateAuthority, tmp_path: Path) -> None:
    chain, roots = chain_of(authority), [authority.root]
    for at in (NOW - timedelta(seconds=1), NOW + HOUR + timedelta(seconds=1)):
        with pytest.raises(InvalidArgumentError, match="not valid at this time"):
            verify_svid(chain, roots, "meridian.local", at)
    foreign = opened(tmp_path / "other")
    with pytest.raises(InvalidArgumentError, match="known root"):
        verify_svid(chain, [foreign.root], "meridian.local", NOW)
    with pytest.raises(InvalidArgumentError, match="not signed by"):
        verify_svid([chain[0], *chain_of(foreign)[1:]], [authority.root, foreign.root], "meridian.local", NOW)
    with pytest.raises(InvalidArgumentError, match="known root"):
        verify_svid([chain[0]], roots, "meridian.local", NOW)
    with pytest.raises(InvalidArgumentError, match="empty"):
        verify_svid([], roots, "meridian.local", NOW)


def test_an_authority_signs_no_other_below_the_depth_it_was_given(tmp_path: Path) -> None:
    authority = opened(tmp_path / "ca")
    [path] = (tmp_path / "ca").glob("issuing-*.crt")
    issuing = x509.load_pem_x509_certificate(path.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    deeper = sign_authority(
        "deeper", "meridian.local", key.public_key(), issuer=issuing,
        issuer_key=read_ec_key(path.with_suffix(".key")), now=NOW, ttl=HOUR,
    )  # fmt: skip
    chain = [sign_leaf(leaf(), deeper, key), deeper, issuing]
    with pytest.raises(InvalidArgumentError, match="longer than an authority allows"):
        verify_svid(chain, [authority.root], "meridian.local", NOW)


def test_a_root_that_has_expired_is_no_root(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    short, long = (
        sign_authority("root", "meridian.local", key.public_key(), issuer=None, issuer_key=key, now=NOW, ttl=ttl)
        for ttl in (HOUR / 2, HOUR)
    )
    chain = [sign_leaf(leaf(), long, key)]
    at = NOW + HOUR * 0.75
    assert str(verify_svid(chain, [long], "meridian.local", at)) == NAME
    with pytest.raises(InvalidArgumentError, match="known root"):
        verify_svid(chain, [short], "meridian.local", at)


def test_an_issuing_authority_that_has_expired_signs_nothing_any_more(tmp_path: Path) -> None:
    first = opened(tmp_path / "ca").issuers()
    later = NOW + timedelta(days=31)
    authority = opened(tmp_path / "ca", later)
    assert len(authority.issuers()) == 1
    assert not set(authority.issuers()) & set(first)
    with pytest.raises(NotFoundError):
        authority.revocation_list(first[0], [], 1, later, HOUR)


def test_the_authority_lasts_and_renews_its_issuer_at_half_life(tmp_path: Path) -> None:
    first = opened(tmp_path / "ca")
    old = chain_of(first)
    again = opened(tmp_path / "ca", NOW + timedelta(days=14))
    assert again.root == first.root
    assert chain_of(again)[1] == old[1]
    renewed = opened(tmp_path / "ca", NOW + timedelta(days=16))
    assert renewed.root == first.root
    later = NOW + timedelta(days=16)
    new = chain_of(renewed, not_before=later, not_after=later + HOUR)
    assert new[1] != old[1]
    verify_svid(new, [first.root], "meridian.local", later)


def test_a_directory_of_another_trust_domain_or_with_a_wrong_key_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "ca")
    with pytest.raises(ConfigurationError, match="trust domain"):
        opened(tmp_path / "ca", trust_domain="elsewhere")
    opened(tmp_path / "other")
    (tmp_path / "ca" / "root.key").write_bytes((tmp_path / "other" / "root.key").read_bytes())
    with pytest.raises(ConfigurationError, match="does not belong"):
        opened(tmp_path / "ca")


def test_each_issuing_authority_signs_a_list_of_what_was_revoked(tmp_path: Path) -> None:
    old = chain_of(opened(tmp_path / "ca"))[1]
    later = NOW + timedelta(days=16)
    authority = opened(tmp_path / "ca", later)
    assert len(authority.issuers()) == 2
    new = chain_of(authority, not_before=later, not_after=later + HOUR)[1]
    assert old.subject != new.subject
    for issuer in (old, new):
        crl = authority.revocation_list(f"{issuer.serial_number:x}", [RevokedSerial(7, NOW)], 3, later, HOUR)
        assert crl.get_revoked_certificate_by_serial_number(7) is not None
        assert crl.get_revoked_certificate_by_serial_number(8) is None
        assert crl.issuer == issuer.subject
        assert crl.is_signature_valid(issuer.public_key())  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        authority.revocation_list("abc", [], 3, later, HOUR)


def csr(key: Any, algorithm: Any = None) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "agent")])
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(name)
        .sign(key, algorithm)
        .public_bytes(Encoding.PEM)
        .decode()
    )


def test_only_a_p256_request_with_its_own_signature_is_taken() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    assert fingerprint_of(public_key_of_csr(csr(key, hashes.SHA256()), "/csr")) == fingerprint_of(key.public_key())
    rsa_key = rsa.generate_private_key(65537, 2048)
    cases = {
        "not a PEM": "hello",
        "not an elliptic curve": csr(rsa_key, hashes.SHA256()),
        "not an elliptic curve key": csr(ed25519.Ed25519PrivateKey.generate()),
        "secp384r1": csr(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256()),
        "longer than": csr(key, hashes.SHA256()) + " " * 20_000,
    }
    for rule, pem in cases.items():
        with pytest.raises(InvalidArgumentError, match=rule) as caught:
            public_key_of_csr(pem, "/csr")
        assert caught.value.errors[0].pointer == "/csr"
