"""What identity knows: kinds and states of identities, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum


class Kind(StrEnum):
    """What an identity stands for; also the fourth segment of its SPIFFE id."""

    AGENT = "agent"
    NODE = "node"
    DEVICE = "device"
    TENANT = "tenant"


class Status(StrEnum):
    """Life cycle. ISSUED <-> QUARANTINED; both -> RETIRED (replaced) or REVOKED; these two are final."""

    ISSUED = "issued"
    QUARANTINED = "quarantined"
    RETIRED = "retired"
    REVOKED = "revoked"


LIVE = (Status.ISSUED, Status.QUARANTINED)


class EvidenceLevel(IntEnum):
    """How an identity was proven (SPIRE's names of attestation in brackets)."""

    SELF_DECLARED = 0
    JOIN_TOKEN = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """One identity as stored. ``agent_id`` is the agent that vouches for a node or device."""

    identity_id: str
    kind: Kind
    domain_id: str
    spiffe_id: str
    status: Status
    reason: str
    evidence_level: int
    created_at: datetime
    updated_at: datetime
    node_id: str = ""
    accelerator_index: int | None = None
    agent_id: str = ""
    emulated: bool = False
    vendor: str = ""
    model: str = ""
    replaces: str = ""
