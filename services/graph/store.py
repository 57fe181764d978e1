"""SQL of domains and nodes; that of the log of changes: change_log.py. A batch loads its domains at once and saves them at once; values travel as arrays."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from meridian.contracts.graph.v1 import graph_pb2
from meridian.contracts.resource.v1 import resource_pb2
from services.graph.facts import Certificate, Decided, DomainFacts, NodeIncident, Readings
from services.graph.image import DomainImage
from services.graph.node_state import Incident, NodeState, Rule
from services.graph.readings_row import packed, unpacked
from services.graph.update_plan import TrackedDomain

_TEXTS = postgresql.ARRAY(sa.Text)
_DOUBLES = postgresql.ARRAY(sa.Double)
_INTEGERS = postgresql.ARRAY(sa.Integer)
_BYTES = postgresql.ARRAY(sa.LargeBinary)
_BOOLEANS = postgresql.ARRAY(sa.Boolean)


def _statement(sql: str, **arrays: sa.types.TypeEngine[Any]) -> sa.TextClause:
    return sa.text(sql).bindparams(*(sa.bindparam(name, type_=kind) for name, kind in arrays.items()))


async def lock_domains(connection: AsyncConnection, domain_ids: Iterable[str]) -> None:
    """One writer per domain until the transaction ends."""
    statement = _statement(
        "SELECT pg_advisory_xact_lock(hashtext('meridian.graph.' || id)) FROM unnest(:ids) AS id ORDER BY id",
        ids=_TEXTS,
    )
    await connection.execute(statement, {"ids": sorted(set(domain_ids))})


async def version(connection: AsyncConnection) -> int:
    """The version of the graph."""
    found: int = (await connection.execute(sa.text("SELECT version FROM graph_version"))).scalar_one()
    return found


async def newest_versions(connection: AsyncConnection, until: int) -> dict[str, int]:
    """Per domain the version of its newest change that is kept and not above ``until``."""
    sql = """
        SELECT d.domain_id, (
            SELECT l.version FROM change_log l
            WHERE l.domain_id = d.domain_id AND l.kind <> 'image' AND l.version <= :until
            ORDER BY l.at DESC, l.seq DESC LIMIT 1
        ) AS version FROM domains d
    """
    found = await connection.execute(sa.text(sql), {"until": until})
    return {row.domain_id: row.version for row in found if row.version is not None}


# -- domains ---------------------------------------------------------------------------------------------------------


def _with_links(image: DomainImage) -> bytes:
    message = resource_pb2.DomainInventory()
    message.CopyFrom(image.domain)
    message.links.extend(image.links.values())
    return message.SerializeToString()


def _image_of(published: bytes) -> DomainImage:
    message = resource_pb2.DomainInventory.FromString(published)
    links = {(link.from_domain_id, link.to_domain_id): link for link in message.links}
    image = DomainImage(message, {}, {key: _copied(link) for key, link in links.items()})
    message.ClearField("links")
    return image


def _copied(link: resource_pb2.Link) -> resource_pb2.Link:
    copy = resource_pb2.Link()
    copy.CopyFrom(link)
    return copy


class Recent:
    """Domains as this process stored them last. One is as good as what is stored while nobody has stored it since."""

    def __init__(self) -> None:
        self._domains: dict[str, TrackedDomain] = {}

    def take(self, domain_id: str, stored_at_s: float) -> TrackedDomain | None:
        """The domain, if it is what was stored at that time. Until it is stored again it counts as no longer known."""
        found = self._domains.pop(domain_id, None)
        if found is None or found.stored_at_s != stored_at_s:
            return None
        found.stored_at_s, found.observed = math.nan, False
        return found

    def keep(self, domains: Iterable[TrackedDomain]) -> None:
        """They were stored; if their transaction fails, what is stored has another time."""
        self._domains.update((domain.facts.domain_id, domain) for domain in domains)


async def load(
    connection: AsyncConnection, domain_ids: Iterable[str], recent: Recent | None = None
) -> dict[str, TrackedDomain]:
    """The domains, new ones among them; lock them first. Those in ``recent`` that nobody stored since are not read."""
    known: dict[str, TrackedDomain] = {}
    if recent is not None:
        statement = _statement("SELECT domain_id, updated_at_s FROM domains WHERE domain_id = ANY(:ids)", ids=_TEXTS)
        for row in await connection.execute(statement, {"ids": sorted(set(domain_ids))}):
            found = recent.take(row.domain_id, row.updated_at_s)
            if found is not None:
                known[row.domain_id] = found
    missing = sorted(set(domain_ids) - known.keys())
    return known | (await _read(connection, missing) if missing else {})


async def _read(connection: AsyncConnection, domain_ids: Sequence[str]) -> dict[str, TrackedDomain]:
    wanted = {"ids": list(domain_ids)}
    domains = {domain_id: TrackedDomain(DomainFacts(domain_id)) for domain_id in domain_ids}
    for row in await connection.execute(
        _statement("SELECT * FROM domains WHERE domain_id = ANY(:ids)", ids=_TEXTS), wanted
    ):
        domain = domains[row.domain_id]
        if row.inventory is not None:
            domain.facts.inventory = resource_pb2.DomainInventory.FromString(row.inventory)
        domain.facts.observed_at_s = row.observed_at_s
        domain.facts.silence = row.silence
        domain.published = _image_of(row.published)
        domain.metrics_published_at_s = row.metrics_published_at_s
        domain.image_published_at_s = row.image_published_at_s
        domain.image_logged_at_s = row.image_logged_at_s
    for row in await connection.execute(
        _statement("SELECT * FROM nodes WHERE domain_id = ANY(:ids)", ids=_TEXTS), wanted
    ):
        domain = domains[row.domain_id]
        domain.published.nodes[row.node_id] = graph_pb2.GraphNode.FromString(row.published)
        domain.facts.readings[row.node_id] = unpacked(row.reading_names, row.reading_numbers, row.readings)
        if row.bad_readings:
            domain.facts.bad_readings[row.node_id] = tuple(row.bad_readings)
        domain.facts.decided[row.node_id] = Decided(Rule(row.rule), row.rule_reason, row.rule_since_s)
        domain.stored[row.node_id] = domain.state_of(row.node_id)
    for row in await connection.execute(
        _statement("SELECT * FROM certificates WHERE domain_id = ANY(:ids)", ids=_TEXTS), wanted
    ):
        domains[row.domain_id].facts.certificates[row.identity_id] = Certificate(
            row.identity_id, row.node_id, row.accelerator_index, row.issued_at_s, row.revoked
        )
    for row in await connection.execute(
        _statement("SELECT * FROM incidents WHERE domain_id = ANY(:ids)", ids=_TEXTS), wanted
    ):
        domain = domains[row.domain_id]
        domain.facts.incidents[row.node_id] = NodeIncident(Incident(row.incident), row.reason, row.at_s)
        domain.stored_incidents = dict(domain.facts.incidents)
    return domains


_DOMAINS = """
    INSERT INTO domains (domain_id, inventory, observed_at_s, silence, published, metrics_published_at_s,
        image_published_at_s, image_logged_at_s, oldest_reading_at_s, updated_at_s)
    SELECT d, i, o, s, p, m, im, il, r, :now_s
    FROM unnest(:ids, :inventories, :observed, :silences, :published, :metrics, :images, :logged, :oldest)
        AS x (d, i, o, s, p, m, im, il, r)
    ON CONFLICT (domain_id) DO UPDATE SET inventory = excluded.inventory, observed_at_s = excluded.observed_at_s,
        silence = excluded.silence, published = excluded.published,
        metrics_published_at_s = excluded.metrics_published_at_s, image_published_at_s = excluded.image_published_at_s,
        image_logged_at_s = excluded.image_logged_at_s, oldest_reading_at_s = excluded.oldest_reading_at_s,
        updated_at_s = excluded.updated_at_s
    RETURNING 1
"""
_NODES = """
    INSERT INTO nodes (domain_id, node_id, published, state, reading_names, reading_numbers, bad_readings, rule, rule_reason,
        rule_since_s)
    SELECT d, n, p, st, rn, r, ARRAY(SELECT jsonb_array_elements_text(CAST(b AS jsonb))), u, t, s
    FROM unnest(:domain_ids, :node_ids, :nodes, :states, :reading_names, :readings, :bad, :rules, :reasons, :since)
        AS x (d, n, p, st, rn, r, b, u, t, s)
    ON CONFLICT (domain_id, node_id) DO UPDATE SET published = excluded.published, state = excluded.state,
        reading_names = excluded.reading_names, reading_numbers = excluded.reading_numbers, readings = excluded.readings,
        bad_readings = excluded.bad_readings, rule = excluded.rule, rule_reason = excluded.rule_reason,
        rule_since_s = excluded.rule_since_s
    RETURNING 1
"""
_SAVE = f"WITH saved AS ({_DOMAINS}), saved_nodes AS ({_NODES})"
_ARRAYS: dict[str, sa.types.TypeEngine[Any]] = {
    "ids": _TEXTS, "inventories": _BYTES, "observed": _DOUBLES, "silences": _TEXTS, "published": _BYTES, "metrics": _DOUBLES,
    "images": _DOUBLES, "logged": _DOUBLES, "oldest": _DOUBLES, "domain_ids": _TEXTS, "node_ids": _TEXTS, "nodes": _BYTES,
    "states": _INTEGERS, "reading_names": _TEXTS, "readings": _BYTES, "bad": _TEXTS, "rules": _TEXTS, "reasons": _TEXTS,
    "since": _DOUBLES,
}  # fmt: skip
_SAVE_ONLY = _statement(f"{_SAVE} SELECT 0", **_ARRAYS)
# The condition holds always; it is there so that the row for which all writers wait is taken when the rest is written.
_SAVE_AND_COUNT = _statement(
    f"{_SAVE} UPDATE graph_version SET version = version + :count "  # noqa: S608 - all of it stands above
    "WHERE (SELECT count(*) FROM saved) + (SELECT count(*) FROM saved_nodes) >= 0 RETURNING version",
    **_ARRAYS,
)


async def save(
    connection: AsyncConnection, domains: Sequence[TrackedDomain], now_s: float, versions: int | None = None
) -> int:
    """Store domains with their nodes and incidents; identities are stored by `save_certificates`.

    With ``versions`` the version of the graph is advanced by so many, in the same statement because each one waits for the
    database and its answer; from here to the commit all writers of the graph then wait for each other. Returns the version before, 0
    where none was asked for.
    """
    if not domains:
        return 0
    facts = [domain.facts for domain in domains]
    await _remove_nodes(connection, domains)
    await _save_incidents(
        connection, [domain for domain in domains if domain.stored_incidents != domain.facts.incidents]
    )
    nodes = [(domain, node_id) for domain in domains for node_id in domain.unsaved()]
    decided = [domain.facts.decided[node_id] for domain, node_id in nodes]
    readings = [packed(domain.facts.readings.get(node_id, {})) for domain, node_id in nodes]
    parameters = {
        "now_s": now_s,
        "ids": [item.domain_id for item in facts],
        "inventories": [item.inventory.SerializeToString() if item.inventory else None for item in facts],
        "observed": [item.observed_at_s for item in facts],
        "silences": [item.silence for item in facts],
        "published": [_with_links(domain.published) for domain in domains],
        "metrics": [domain.metrics_published_at_s for domain in domains],
        "images": [domain.image_published_at_s for domain in domains],
        "logged": [domain.image_logged_at_s for domain in domains],
        "oldest": [item.oldest_reading_s() for item in facts],
        "domain_ids": [domain.facts.domain_id for domain, _ in nodes],
        "node_ids": [node_id for _, node_id in nodes],
        "nodes": [domain.published.nodes[node_id].SerializeToString() for domain, node_id in nodes],
        "states": [domain.published.nodes[node_id].state for domain, node_id in nodes],
        "reading_names": [names for names, _ in readings],
        "readings": [numbers for _, numbers in readings],
        "bad": [_texts_of(domain.facts.bad_readings.get(node_id, ())) for domain, node_id in nodes],
        "rules": [item.rule.value for item in decided],
        "reasons": [item.reason for item in decided],
        "since": [item.since_s for item in decided],
    }
    before = 0
    if versions is None:
        await connection.execute(_SAVE_ONLY, parameters)
    else:
        found = await connection.execute(_SAVE_AND_COUNT, parameters | {"count": versions})
        before = found.scalar_one() - versions
    for domain in domains:
        domain.saved(now_s)
    return before


def _texts_of(texts: tuple[str, ...]) -> str:
    return json.dumps(texts) if texts else "[]"


async def _remove_nodes(connection: AsyncConnection, domains: Sequence[TrackedDomain]) -> None:
    gone = [
        (domain.facts.domain_id, node_id)
        for domain in domains
        for node_id in domain.stored.keys() - domain.published.nodes.keys()
    ]
    if gone:
        statement = _statement(
            "DELETE FROM nodes n USING unnest(:owners, :node_ids) AS x (d, i) WHERE x.d = n.domain_id AND x.i = n.node_id",
            owners=_TEXTS,
            node_ids=_TEXTS,
        )
        parameters = {"owners": [domain_id for domain_id, _ in gone], "node_ids": [node_id for _, node_id in gone]}
        await connection.execute(statement, parameters)


async def _save_incidents(connection: AsyncConnection, domains: Sequence[TrackedDomain]) -> None:
    if not domains:
        return
    facts = [domain.facts for domain in domains]
    await connection.execute(
        _statement("DELETE FROM incidents WHERE domain_id = ANY(:ids)", ids=_TEXTS),
        {"ids": [item.domain_id for item in facts]},
    )
    rows = [(item.domain_id, node_id, found) for item in facts for node_id, found in item.incidents.items()]
    if rows:
        statement = _statement(
            "INSERT INTO incidents (domain_id, node_id, incident, reason, at_s) "
            "SELECT d, n, i, r, a FROM unnest(:domain_ids, :node_ids, :incidents, :reasons, :times) AS x (d, n, i, r, a)",
            domain_ids=_TEXTS, node_ids=_TEXTS, incidents=_TEXTS, reasons=_TEXTS, times=_DOUBLES,
        )  # fmt: skip
        parameters = {
            "domain_ids": [domain_id for domain_id, _, _ in rows],
            "node_ids": [node_id for _, node_id, _ in rows],
            "incidents": [found.incident.value for _, _, found in rows],
            "reasons": [found.reason for _, _, found in rows],
            "times": [found.at_s for _, _, found in rows],
        }
        await connection.execute(statement, parameters)


async def save_certificates(connection: AsyncConnection, rows: Sequence[tuple[str, Certificate]]) -> None:
    """Store identities ``(domain id, certificate)`` that were issued or revoked."""
    if not rows:
        return
    statement = _statement(
        "INSERT INTO certificates (identity_id, domain_id, node_id, accelerator_index, issued_at_s, revoked) "
        "SELECT i, d, n, a, t, r FROM unnest(:ids, :domain_ids, :node_ids, :indices, :times, :revoked) "
        "AS x (i, d, n, a, t, r) ON CONFLICT (identity_id) DO UPDATE SET domain_id = excluded.domain_id, "
        "node_id = excluded.node_id, accelerator_index = excluded.accelerator_index, "
        "issued_at_s = excluded.issued_at_s, revoked = excluded.revoked",
        ids=_TEXTS, domain_ids=_TEXTS, node_ids=_TEXTS, indices=_INTEGERS, times=_DOUBLES, revoked=_BOOLEANS,
    )  # fmt: skip
    parameters = {
        "ids": [item.identity_id for _, item in rows],
        "domain_ids": [domain_id for domain_id, _ in rows],
        "node_ids": [item.node_id for _, item in rows],
        "indices": [item.index for _, item in rows],
        "times": [item.issued_at_s for _, item in rows],
        "revoked": [item.revoked for _, item in rows],
    }
    await connection.execute(statement, parameters)


# -- what is due -----------------------------------------------------------------------------------------------------


async def domains_due(
    connection: AsyncConnection, now_s: float, *, image_interval_s: float, silent_after_s: float
) -> list[str]:
    """Domains whose whole image is due, or that fell silent since they were looked at last."""
    sql = (
        "SELECT domain_id FROM domains WHERE image_published_at_s > 0 AND (image_published_at_s <= :image_before_s "
        "OR (observed_at_s < :silent_before_s AND updated_at_s <= observed_at_s + :silent_s)) ORDER BY domain_id"
    )
    parameters = {
        "image_before_s": now_s - image_interval_s,
        "silent_before_s": now_s - silent_after_s,
        "silent_s": silent_after_s,
    }
    return [row.domain_id for row in await connection.execute(sa.text(sql), parameters)]


async def domains_silent_since(connection: AsyncConnection, limit_s: float) -> list[str]:
    """Domains with nodes and without an observation since ``limit_s``."""
    sql = (
        "SELECT domain_id FROM domains d WHERE observed_at_s < :limit_s AND image_published_at_s > 0 "
        "AND EXISTS (SELECT FROM nodes n WHERE n.domain_id = d.domain_id) ORDER BY domain_id"
    )
    return [row.domain_id for row in await connection.execute(sa.text(sql), {"limit_s": limit_s})]


async def ages(connection: AsyncConnection) -> list[tuple[str, float]]:
    """Time of the oldest reading that each domain with nodes relies on, seconds since 1970."""
    sql = (
        "SELECT domain_id, oldest_reading_at_s FROM domains d "
        "WHERE EXISTS (SELECT FROM nodes n WHERE n.domain_id = d.domain_id)"
    )
    return [(row.domain_id, row.oldest_reading_at_s) for row in await connection.execute(sa.text(sql))]


async def count_by_state(connection: AsyncConnection) -> dict[NodeState, int]:
    """Number of nodes in each state that occurs."""
    rows = await connection.execute(sa.text("SELECT state, count(*) FROM nodes GROUP BY state"))
    return {NodeState(row[0]): row[1] for row in rows}


# -- the present graph -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The graph as consumers know it, at one version."""

    version: int
    images: Mapping[str, DomainImage]
    oldest_reading_at_s: Mapping[str, float]


async def snapshot(connection: AsyncConnection) -> Snapshot:
    """Version, domains and nodes as of one moment; ``connection``: of `Database.snapshot`."""
    number = await version(connection)
    images: dict[str, DomainImage] = {}
    oldest: dict[str, float] = {}
    sql = "SELECT domain_id, published, oldest_reading_at_s FROM domains WHERE image_published_at_s > 0 ORDER BY domain_id"
    for row in await connection.execute(sa.text(sql)):
        images[row.domain_id] = _image_of(row.published)
        oldest[row.domain_id] = row.oldest_reading_at_s
    for row in await connection.execute(sa.text("SELECT domain_id, node_id, published FROM nodes ORDER BY node_id")):
        images[row.domain_id].nodes[row.node_id] = graph_pb2.GraphNode.FromString(row.published)
    return Snapshot(number, images, oldest)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with the rule in force."""

    domain_id: str
    node: graph_pb2.GraphNode
    decided: Decided
    readings: Readings
    bad_readings: tuple[str, ...]


async def node(connection: AsyncConnection, node_id: str) -> NodeView | None:
    """One node."""
    row = (await connection.execute(sa.text("SELECT * FROM nodes WHERE node_id = :id"), {"id": node_id})).first()
    if row is None:
        return None
    return NodeView(
        domain_id=row.domain_id,
        node=graph_pb2.GraphNode.FromString(row.published),
        decided=Decided(Rule(row.rule), row.rule_reason, row.rule_since_s),
        readings=unpacked(row.reading_names, row.reading_numbers, row.readings),
        bad_readings=tuple(row.bad_readings),
    )
