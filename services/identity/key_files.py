"""Private keys on disk: one directory of mode 0700, files of mode 0600, written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from meridian.errors import ConfigurationError
from services.identity.credentials import SALT_BYTES


def private_directory(path: Path) -> Path:
    """Create ``path`` readable by its owner only."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600; a crash leaves the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def pem_of(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    """PKCS 8 in PEM, not encrypted: the file's mode protects it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read_ec_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """ConfigurationError when the file is no P-256 private key."""
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"{path}: private key cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigurationError(f"{path}: not a P-256 private key")
    return key


def installation_salt(directory: Path) -> bytes:
    """The salt of join token hashes; made on first use. Callers that share the directory must exclude each other."""
    path = private_directory(directory) / "join-token.salt"
    if not path.exists():
        write_private(path, secrets.token_bytes(SALT_BYTES))
    return path.read_bytes()
