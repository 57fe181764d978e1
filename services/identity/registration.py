"""The rules of registration, as a pure decision: which compute id does each claimed node and accelerator get?

Steps of `decide`:

1. A node keeps the id that its domain knows under its node id. One held by another live agent key is a conflict; one held
   by a key that is no longer live passes to the new key; a revoked one is refused under its old key and replaced under a new.
2. An accelerator is recognised by an exclusive vendor id first (it may have moved to another slot), then by its slot, unless
   a vendor id there contradicts: then another chip was put in, the old identity retires and the new one replaces it.
3. An exclusive vendor id that a live agent key elsewhere claims too puts both identities into quarantine.

Vendor ids prove nothing for emulated parts: they are stored and never compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from meridian.errors import ConflictError, FieldError, InvalidArgumentError
from services.identity.compute_ids import MintId
from services.identity.records import LIVE, EvidenceLevel, Kind, Status

# Schemes whose values are unique in the world when the hardware is honest. PCI addresses, machine ids and SMBIOS ids are
# not among them: they are only unique per host, or cloned with images.
EXCLUSIVE_SCHEMES = frozenset({"gpu-uuid", "uuid", "serial", "sn", "vdie-id", "nvidia-device-id", "tpm-ek"})
_BLANK = frozenset({"", "0", "n/a", "na", "none", "unknown", "not available", "to be filled by o.e.m.", "[n/a]"})

Alias = tuple[str, str]


def canonical_scheme(name: str) -> str:
    """Lower case, dashes for underscores."""
    return name.strip().lower().replace("_", "-")


def exclusive_aliases(aliases: Mapping[str, str]) -> frozenset[Alias]:
    """The vendor ids that name one piece of hardware; blank and all-zero placeholders are left out."""
    found = set()
    for scheme, value in aliases.items():
        text = value.strip().lower()
        digits = set(text.removeprefix("gpu-")) - set("-:. ")
        if canonical_scheme(scheme) in EXCLUSIVE_SCHEMES and text not in _BLANK and digits - {"0"}:
            found.add((canonical_scheme(scheme), text))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """An accelerator as the agent describes it."""

    index: int
    vendor: str = ""
    model: str = ""
    emulated: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def exclusive(self) -> frozenset[Alias]:
        return frozenset() if self.emulated else exclusive_aliases(self.aliases)


@dataclass(frozen=True, slots=True)
class ClaimedNode:
    """A node as the agent describes it."""

    node_id: str
    emulated: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[ClaimedDevice, ...] = ()

    @property
    def exclusive(self) -> frozenset[Alias]:
        return frozenset() if self.emulated else exclusive_aliases(self.aliases)


@dataclass(frozen=True, slots=True)
class Known:
    """A node or device identity that is not retired."""

    identity_id: str
    kind: Kind
    domain_id: str
    node_id: str
    index: int | None
    agent_id: str
    agent_live: bool
    status: Status
    reason: str
    evidence_level: int
    aliases: frozenset[Alias] = frozenset()


class Action(StrEnum):
    """What a decision does to the stored identity."""

    MINT = "mint"
    KEEP = "keep"
    MOVE = "move"
    TAKE_OVER = "take_over"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Decision:
    """The identity that one claimed node or accelerator gets, and why."""

    identity_id: str
    kind: Kind
    node_id: str
    index: int | None
    action: Action
    status: Status
    reason: str
    evidence_level: int
    replaces: str = ""
    # Its certified facts differ from what was published before.
    announce: bool = False


@dataclass(frozen=True, slots=True)
class NodeDecision:
    """A node with its accelerators, in the order of the claim."""

    claim: ClaimedNode
    node: Decision
    devices: tuple[tuple[ClaimedDevice, Decision], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a registration changes."""

    nodes: tuple[NodeDecision, ...]
    # Identity id and reason.
    retire: Mapping[str, str]
    quarantine: Mapping[str, str]


def check_claims(nodes: Sequence[ClaimedNode]) -> None:
    """InvalidArgumentError names each node id, index or exclusive vendor id that is claimed twice."""
    errors: list[FieldError] = []
    node_ids: set[str] = set()
    owners: dict[Alias, str] = {}

    def own(aliases: Iterable[Alias], pointer: str) -> None:
        for alias in sorted(aliases):
            if alias in owners:
                errors.append(FieldError(f"{pointer}/aliases", f"{alias[0]} {alias[1]!r} is also at {owners[alias]}"))
            owners.setdefault(alias, pointer)

    for place, node in enumerate(nodes):
        pointer = f"/nodes/{place}"
        if node.node_id in node_ids:
            errors.append(FieldError(f"{pointer}/node_id", f"{node.node_id!r} stands twice in the list"))
        node_ids.add(node.node_id)
        own(node.exclusive, pointer)
        indices: set[int] = set()
        for slot, device in enumerate(node.devices):
            if device.index in indices:
                errors.append(
                    FieldError(f"{pointer}/accelerators/{slot}/index", f"{device.index} stands twice on this node")
                )
            indices.add(device.index)
            own(device.exclusive, f"{pointer}/accelerators/{slot}")
    if errors:
        detail = "; ".join(f"{error.pointer}: {error.detail}" for error in errors[:5])
        raise InvalidArgumentError(detail, errors=tuple(errors))


def decide(agent_id: str, domain_id: str, nodes: Sequence[ClaimedNode], known: Sequence[Known], mint: MintId) -> Plan:
    """Decide a registration. ``known``: the domain's identities, and all live claims on the claimed exclusive vendor ids.

    InvalidArgumentError for claims that contradict each other, ConflictError when another live agent key of the domain
    holds one of the node ids. The same claims by the same agent give the same ids.
    """
    check_claims(nodes)
    return _Decider(agent_id, domain_id, nodes, known, mint).plan(nodes)


class _Decider:
    def __init__(
        self, agent_id: str, domain_id: str, nodes: Sequence[ClaimedNode], known: Sequence[Known], mint: MintId
    ) -> None:
        self._agent_id = agent_id
        self._domain_id = domain_id
        self._mint = mint
        own = [item for item in known if item.domain_id == domain_id]
        # A revoked identity counts for the key it was revoked under, a living one for whoever holds the place now.
        self._nodes = {item.node_id: item for item in self._by_precedence(own, Kind.NODE)}
        self._slots = {(item.node_id, item.index): item for item in self._by_precedence(own, Kind.DEVICE)}
        self._devices = {alias: item for item in self._by_precedence(own, Kind.DEVICE) for alias in item.aliases}
        self._foreign: dict[Alias, list[Known]] = {}
        for item in known:
            if item.agent_id != agent_id and item.agent_live and item.status in LIVE:
                for alias in item.aliases:
                    self._foreign.setdefault(alias, []).append(item)
        # A chip that is found by its vendor id elsewhere does not hold its old slot any more.
        self._found_by_alias = {
            match.identity_id
            for node in nodes
            for device in node.devices
            if (match := self._by_alias(device)) is not None
        }
        self._given: set[str] = set()
        self._retire: dict[str, str] = {}
        self._quarantine: dict[str, str] = {}

    def _by_precedence(self, known: Iterable[Known], kind: Kind) -> list[Known]:
        wanted = [item for item in known if item.kind is kind and (item.status in LIVE or self._is_mine(item))]
        return sorted(wanted, key=lambda item: (item.status in LIVE, item.identity_id))

    def _is_mine(self, item: Known) -> bool:
        return item.agent_id == self._agent_id

    def plan(self, nodes: Sequence[ClaimedNode]) -> Plan:
        self._refuse_held_nodes(nodes)
        decided = tuple(
            NodeDecision(
                node, self._node(node), tuple((device, self._device(node.node_id, device)) for device in node.devices)
            )
            for node in nodes
        )
        return Plan(decided, self._retire, self._quarantine)

    def _refuse_held_nodes(self, nodes: Sequence[ClaimedNode]) -> None:
        errors = []
        for place, node in enumerate(nodes):
            item = self._nodes.get(node.node_id)
            if item and not self._is_mine(item) and item.agent_live and item.status in LIVE:
                detail = f"{node.node_id!r} is held by agent {item.agent_id}, whose certificate is still valid"
                errors.append(FieldError(f"/nodes/{place}/node_id", detail))
        if errors:
            raise ConflictError("; ".join(error.detail for error in errors[:5]), errors=tuple(errors))

    def _node(self, claim: ClaimedNode) -> Decision:
        item = self._nodes.get(claim.node_id)
        return self._decision(Kind.NODE, claim.node_id, None, item, claim.emulated, claim.exclusive)

    def _device(self, node_id: str, claim: ClaimedDevice) -> Decision:
        found = self._by_alias(claim)
        if found is not None and found.identity_id in self._given:
            found = None
        occupant = self._slots.get((node_id, claim.index))
        replaces = ""
        if found is None and occupant is not None:
            if occupant.identity_id not in self._found_by_alias and not _contradicts(claim.exclusive, occupant.aliases):
                found = occupant
            elif occupant.identity_id not in self._found_by_alias and occupant.status in LIVE:
                replaces = occupant.identity_id
                self._retire[occupant.identity_id] = f"another chip is in slot {claim.index} of {node_id}"
        if found is not None:
            self._given.add(found.identity_id)
        return self._decision(
            Kind.DEVICE, node_id, claim.index, found, claim.emulated, claim.exclusive, replaces=replaces
        )

    def _by_alias(self, claim: ClaimedDevice) -> Known | None:
        matches = [self._devices[alias] for alias in sorted(claim.exclusive) if alias in self._devices]
        usable = [item for item in matches if self._is_mine(item) or not item.agent_live]
        return usable[0] if usable else None

    def _decision(
        self,
        kind: Kind,
        node_id: str,
        index: int | None,
        item: Known | None,
        emulated: bool,
        exclusive: frozenset[Alias],
        *,
        replaces: str = "",
    ) -> Decision:
        level = EvidenceLevel.SELF_DECLARED if emulated else EvidenceLevel.JOIN_TOKEN
        if item is not None and item.status is Status.REVOKED:
            return Decision(
                item.identity_id, kind, node_id, index, Action.REFUSE, Status.REVOKED, item.reason, item.evidence_level
            )
        status, reason = self._standing(item, exclusive)
        if item is None:
            return Decision(
                self._mint(),
                kind,
                node_id,
                index,
                Action.MINT,
                status,
                reason,
                level,
                replaces,
                status is Status.ISSUED,
            )
        if (item.node_id, item.index) != (node_id, index):
            action = Action.MOVE
        elif not self._is_mine(item):
            action = Action.TAKE_OVER
        else:
            action = Action.KEEP
        changed = action is Action.MOVE or level != item.evidence_level
        announce = changed and status is Status.ISSUED
        if status is Status.QUARANTINED and item.status is Status.ISSUED:
            self._quarantine[item.identity_id] = reason
        return Decision(item.identity_id, kind, node_id, index, action, status, reason, level, "", announce)

    def _standing(self, item: Known | None, exclusive: frozenset[Alias]) -> tuple[Status, str]:
        if item is not None and item.status is Status.QUARANTINED:
            return item.status, item.reason
        for alias in sorted(exclusive):
            for other in self._foreign.get(alias, ()):
                reason = f"{alias[0]} {alias[1]!r} is claimed by two live agents, {other.agent_id} and {self._agent_id}"
                if other.status is Status.ISSUED:
                    self._quarantine[other.identity_id] = reason
                return Status.QUARANTINED, reason
        return Status.ISSUED, ""


def _contradicts(claimed: frozenset[Alias], known: frozenset[Alias]) -> bool:
    """Whether both name a value of the same scheme and no value is shared."""
    schemes = {scheme for scheme, _ in claimed} & {scheme for scheme, _ in known}
    return bool(schemes) and not claimed & known
