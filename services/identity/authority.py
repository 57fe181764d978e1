"""The certificate authority: a root that signs issuing CAs, and the newest issuing CA, which signs leaves and CRLs.

Keys and certificates lie in the key directory (`key_files`): ``root.key``, ``root.crt`` and, per issuing CA,
``issuing-<serial>.key`` and ``.crt``. A new issuing CA is made when the newest has lived half of its life; older ones stay
while a leaf of theirs may still be valid, to sign their CRLs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from meridian.errors import ConfigurationError, NotFoundError
from services.identity.key_files import pem_of, private_directory, read_ec_key, write_private
from services.identity.x509_profile import Leaf, fingerprint_of, sign_authority, sign_leaf


@dataclass(frozen=True, slots=True)
class Signer:
    """A certificate of an authority with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class RevokedSerial:
    """An entry of the revocation list."""

    serial: int
    revoked_at: datetime


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


class CertificateAuthority:
    """Opens the key directory, making what is missing; signs leaves and revocation lists."""

    def __init__(self, directory: Path, trust_domain: str, *, root_ttl_s: float, issuing_ttl_s: float) -> None:
        self.trust_domain = trust_domain
        self._directory = directory
        self._root_ttl = timedelta(seconds=root_ttl_s)
        self._issuing_ttl = timedelta(seconds=issuing_ttl_s)
        self._root: Signer | None = None
        self._issuing: list[Signer] = []

    def open(self, now: datetime) -> None:
        """Load or create root and issuing CA. Callers that share the directory must exclude each other.

        ConfigurationError when a file cannot be read or belongs to another trust domain.
        """
        private_directory(self._directory)
        self._root = self._load("root") or self._create("root", None, now)
        expected = f"spiffe://{self.trust_domain}"
        names = self._root.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if names.get_values_for_type(x509.UniformResourceIdentifier) != [expected]:
            raise ConfigurationError(
                f"{self._directory}: the root does not belong to trust domain {self.trust_domain!r}"
            )
        found = [self._load(path.stem) for path in sorted(self._directory.glob("issuing-*.crt"))]
        self._issuing = [signer for signer in found if signer and signer.certificate.not_valid_after_utc > now]
        self._issuing.sort(key=lambda signer: signer.certificate.not_valid_before_utc)
        if self.needs_new_issuer(now):
            self._issuing.append(self._create("issuing", self._root, now))

    def needs_new_issuer(self, now: datetime) -> bool:
        """Whether the newest issuing CA has lived half of its life."""
        if not self._issuing:
            return True
        newest = self._issuing[-1].certificate
        life = newest.not_valid_after_utc - newest.not_valid_before_utc
        return now >= newest.not_valid_before_utc + life / 2

    def _load(self, stem: str) -> Signer | None:
        path = self._directory / f"{stem}.crt"
        if not path.exists():
            return None
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
        except ValueError as error:
            raise ConfigurationError(f"{path}: certificate cannot be read: {error}") from None
        key = read_ec_key(path.with_suffix(".key"))
        if key.public_key() != certificate.public_key():
            raise ConfigurationError(f"{path}: the certificate does not belong to the key beside it")
        return Signer(certificate, key)

    def _create(self, kind: str, issuer: Signer | None, now: datetime) -> Signer:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = sign_authority(
            # Authorities are told apart by name, too: issuers of leaves and CRLs are looked up by it.
            f"Meridian {kind} CA {fingerprint_of(key.public_key())[:8]}",
            self.trust_domain,
            key.public_key(),
            issuer=issuer.certificate if issuer else None,
            issuer_key=issuer.key if issuer else key,
            now=now - timedelta(minutes=1),
            ttl=self._issuing_ttl if issuer else self._root_ttl,
        )
        stem = f"issuing-{certificate.serial_number:x}" if issuer else kind
        write_private(self._directory / f"{stem}.key", pem_of(key))
        write_private(self._directory / f"{stem}.crt", certificate.public_bytes(Encoding.PEM))
        return Signer(certificate, key)

    @property
    def root(self) -> x509.Certificate:
        """The trust anchor."""
        if self._root is None:
            raise ConfigurationError("the certificate authority is not open")
        return self._root.certificate

    @property
    def bundle_pem(self) -> str:
        """The trust anchors that members install."""
        return _pem(self.root)

    def issue(self, leaf: Leaf) -> tuple[x509.Certificate, str]:
        """Sign a leaf with the newest issuing CA; returns it and the chain (leaf, issuing CA) in PEM."""
        signer = self._issuing[-1]
        certificate = sign_leaf(leaf, signer.certificate, signer.key)
        return certificate, _pem(certificate) + _pem(signer.certificate)

    def issuers(self) -> list[str]:
        """Serials (hexadecimal) of the issuing CAs that have not expired, newest last."""
        return [f"{signer.certificate.serial_number:x}" for signer in self._issuing]

    def revocation_list(
        self, issuer: str, revoked: Sequence[RevokedSerial], number: int, now: datetime, ttl: timedelta
    ) -> x509.CertificateRevocationList:
        """The CRL (RFC 5280, section 5) that the issuing CA of that serial signs. NotFoundError when there is none.

        It holds every revoked serial that has not expired, whichever of our CAs issued it: serials are unique among them.
        """
        signer = next((item for item in self._issuing if f"{item.certificate.serial_number:x}" == issuer), None)
        if signer is None:
            raise NotFoundError(f"there is no issuing CA {issuer!r}")
        identifier = signer.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        entries = [
            x509.RevokedCertificateBuilder().serial_number(entry.serial).revocation_date(entry.revoked_at).build()
            for entry in revoked
        ]
        # All at once: to add them one by one copies the list each time.
        builder = (
            x509.CertificateRevocationListBuilder(revoked_certificates=entries)
            .issuer_name(signer.certificate.subject)
            .last_update(now)
            .next_update(now + ttl)
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        )
        return builder.sign(signer.key, hashes.SHA256())
