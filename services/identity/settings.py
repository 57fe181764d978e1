"""Settings of identity (``MERIDIAN_IDENTITY_*``)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from meridian.settings import HttpSettings


class IdentitySettings(HttpSettings):
    """Names, lives of certificates and tokens, and where the private keys lie."""

    model_config = SettingsConfigDict(env_prefix="MERIDIAN_IDENTITY_", extra="ignore")

    trust_domain: str = "meridian.local"
    issuer: str = "https://identity.meridian.local"
    audience: str = "meridian"
    # Unset: <MERIDIAN_DATA_DIR>/identity.
    key_dir: Path | None = None
    bootstrap_file: Path | None = None

    # A domain of 10,000 nodes, with their accelerators and signing requests, is about half of it.
    max_body_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)

    certificate_ttl_s: float = Field(default=3600.0, gt=0)
    issuing_ca_ttl_s: float = Field(default=30 * 86400.0, gt=0)
    root_ca_ttl_s: float = Field(default=3650 * 86400.0, gt=0)
    crl_ttl_s: float = Field(default=3600.0, gt=0)
    token_ttl_s: float = Field(default=3600.0, gt=0)
    token_key_ttl_s: float = Field(default=30 * 86400.0, gt=0)
    # How far into the past a certificate starts, for clocks that lag behind.
    certificate_backdate_s: float = Field(default=60.0, ge=0)
