"""The X.509-SVID profile (spiffe/spiffe, standards/X509-SVID.md) as two pure sides: what we issue and what we accept."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from meridian.errors import FieldError, InvalidArgumentError
from services.identity.spiffe import SpiffeId, parse_spiffe_id

ORGANISATION = "Meridian"
MAX_CSR_CHARACTERS = 16_384


def key_usage(*, authority: bool) -> x509.KeyUsage:
    """Signing certificates and CRLs for an authority, digital signatures for a leaf; nothing else."""
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def fingerprint_of(key: ec.EllipticCurvePublicKey) -> str:
    """SHA-256 of the key's SubjectPublicKeyInfo, hexadecimal: how the centre recognises an agent."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize().hex()


def public_key_of_csr(pem: str, pointer: str) -> ec.EllipticCurvePublicKey:
    """The P-256 key of a CSR that is signed by it. InvalidArgumentError names the field ``pointer``."""

    def refuse(detail: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{pointer}: {detail}", errors=(FieldError(pointer, detail),))

    if len(pem) > MAX_CSR_CHARACTERS:
        raise refuse(f"the certificate signing request is longer than {MAX_CSR_CHARACTERS} characters")
    try:
        csr = x509.load_pem_x509_csr(pem.encode())
        key = csr.public_key()
    except ValueError:
        raise refuse("not a PEM certificate signing request") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise refuse("the key is not an elliptic curve key; P-256 is required")
    if not isinstance(key.curve, ec.SECP256R1):
        raise refuse(f"the curve is {key.curve.name}; P-256 (secp256r1) is required")
    try:
        valid = csr.is_signature_valid
    except (ValueError, InvalidSignature):
        valid = False
    if not valid:
        raise refuse("the request is not signed by its own key")
    return key


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a leaf certificate is to say."""

    spiffe_id: str
    common_name: str
    key: ec.EllipticCurvePublicKey
    not_before: datetime
    not_after: datetime
    serial: int


def sign_leaf(leaf: Leaf, issuer: x509.Certificate, issuer_key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """A leaf by the profile: one URI SAN, no CA, critical key usage digitalSignature, client and server use."""
    identifier = x509.SubjectKeyIdentifier.from_public_key(leaf.key)
    issuer_identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANISATION),
            x509.NameAttribute(NameOID.COMMON_NAME, leaf.common_name[:64]),
        ]
    )
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.subject)
        .public_key(leaf.key)
        .serial_number(leaf.serial)
        .not_valid_before(leaf.not_before)
        .not_valid_after(min(leaf.not_after, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(authority=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(leaf.spiffe_id)]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_identifier), critical=False
        )
        .sign(issuer_key, hashes.SHA256())
    )


def sign_authority(
    name: str,
    trust_domain: str,
    key: ec.EllipticCurvePublicKey,
    *,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    now: datetime,
    ttl: timedelta,
) -> x509.Certificate:
    """An authority of the trust domain: the root when ``issuer`` is None, else an issuing CA below it."""
    subject = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANISATION), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )
    not_after = now + ttl if issuer is None else min(now + ttl, issuer.not_valid_after_utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=1 if issuer is None else 0), critical=True)
        .add_extension(key_usage(authority=True), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{trust_domain}")]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
    if issuer is not None:
        identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
        )
    return builder.sign(issuer_key, hashes.SHA256())


E = TypeVar("E", bound=x509.ExtensionType)


def _extension(certificate: x509.Certificate, kind: type[E], name: str) -> x509.Extension[E]:
    try:
        return certificate.extensions.get_extension_for_class(kind)
    except x509.ExtensionNotFound:
        raise InvalidArgumentError(f"the certificate has no {name}") from None


def _check_leaf(leaf: x509.Certificate) -> SpiffeId:
    names = _extension(leaf, x509.SubjectAlternativeName, "subject alternative name").value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise InvalidArgumentError(f"the certificate has {len(uris)} URI names; exactly one is allowed")
    spiffe_id = parse_spiffe_id(uris[0])
    if not spiffe_id.segments:
        raise InvalidArgumentError("a leaf must not carry the id of the trust domain itself")
    if _extension(leaf, x509.BasicConstraints, "basic constraints").value.ca:
        raise InvalidArgumentError("a leaf must not be an authority")
    usage = _extension(leaf, x509.KeyUsage, "key usage")
    if not usage.critical:
        raise InvalidArgumentError("key usage must be critical")
    if not usage.value.digital_signature:
        raise InvalidArgumentError("key usage lacks digitalSignature")
    if usage.value.key_cert_sign or usage.value.crl_sign:
        raise InvalidArgumentError("a leaf must not be allowed to sign certificates or CRLs")
    return spiffe_id


def verify_svid(
    chain: list[x509.Certificate], roots: list[x509.Certificate], trust_domain: str, at: datetime
) -> SpiffeId:
    """Validate a chain (leaf first) by section 5 of the standard; returns the leaf's id.

    InvalidArgumentError names the rule that is broken. Revocation is not looked at here.
    """
    if not chain:
        raise InvalidArgumentError("the chain is empty")
    spiffe_id = _check_leaf(chain[0])
    if spiffe_id.trust_domain != trust_domain:
        raise InvalidArgumentError(f"the id belongs to trust domain {spiffe_id.trust_domain!r}")
    for certificate in chain:
        if not certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc:
            raise InvalidArgumentError(f"certificate {certificate.serial_number:x} is not valid at this time")
    for depth, authority in enumerate(chain[1:]):
        constraints = _extension(authority, x509.BasicConstraints, "basic constraints").value
        usage = _extension(authority, x509.KeyUsage, "key usage").value
        if not constraints.ca or not usage.key_cert_sign:
            raise InvalidArgumentError("an intermediate certificate is no authority")
        if constraints.path_length is not None and depth > constraints.path_length:
            raise InvalidArgumentError("the path is longer than an authority allows")
    links = list(itertools.pairwise(chain))
    anchor = next((root for root in roots if root.subject == chain[-1].issuer and at <= root.not_valid_after_utc), None)
    if anchor is None:
        raise InvalidArgumentError("the chain does not end at a known root")
    for certificate, issuer in [*links, (chain[-1], anchor)]:
        try:
            certificate.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature):
            raise InvalidArgumentError(
                f"certificate {certificate.serial_number:x} was not signed by the next in the chain"
            ) from None
    return spiffe_id
