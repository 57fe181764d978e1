"""What identity counts for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class IdentityMeasures:
    """Metrics named ``meridian_identity_*``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registrations = Counter(
            "meridian_identity_registrations_total", "Registrations by outcome", ["outcome"], registry=registry
        )
        self.tokens = Counter(
            "meridian_identity_tokens_total", "Token requests by outcome", ["outcome"], registry=registry
        )
        self.revocations = Counter(
            "meridian_identity_revocations_total", "Revocations by kind of subject", ["kind"], registry=registry
        )
        self.identities = Gauge(
            "meridian_identity_identities", "Identities by kind and status", ["kind", "status"], registry=registry
        )
