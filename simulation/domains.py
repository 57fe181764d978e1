"""Networks for a simulation, read from a YAML file. Its format: docs/simulation-formats.md. Networks by rule: made_networks.py.

Reading is strict and all or nothing: an unknown key, a value of the wrong type or out of range, a name used twice stops it
with the line of the file.
"""

from __future__ import annotations

import csv
import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from meridian.errors import MeridianError
from meridian.plain_yaml import misread
from simulation.model import MOST_ACCELERATORS, MOST_NODES, UNKNOWN, Network, SimDomain, SimLink, SimNode
from simulation.traces.errors import TraceError
from simulation.traces.reading import MOST_WHOLE
from simulation.traces.spot import series

GIB = 1 << 30
GB_PER_GIB = GIB / 1e9
HOURS = 24
_Value = TypeVar("_Value")


class NetworkError(MeridianError):
    """A network file is malformed, or no network can be made of the given numbers."""

    code = "INVALID_NETWORK"
    status = 400
    title = "Invalid network"

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None) -> None:
        where = ", ".join(([str(path)] if path is not None else []) + ([f"line {line}"] if line is not None else []))
        super().__init__(f"{where}: {message}" if where else message)
        self.path = None if path is None else Path(path)
        self.line = line


class _Item:
    """A node of the YAML tree with its place in the file."""

    def __init__(self, path: Path, node: yaml.Node, name: str) -> None:
        self.path = path
        self.node = node
        self.name = name

    def error(self, message: str) -> NetworkError:
        text = f"{self.name}: {message}" if self.name else message
        return NetworkError(text, path=self.path, line=self.node.start_mark.line + 1)

    def plain(self) -> Any:
        """The value of a scalar (text, number, flag, None)."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error("a single value is expected")
        try:
            return yaml.constructor.SafeConstructor().construct_object(self.node)
        except (yaml.YAMLError, ValueError) as error:
            raise self.error(f"cannot be read: {error}") from error

    def text(self) -> str:
        value = self.plain()
        if not isinstance(self.node, yaml.ScalarNode) or value is None or not self.node.value.strip():
            raise self.error("is empty")
        return str(self.node.value)

    def number(self, least: float = 0.0, *, above: bool = False) -> float:
        value = self.plain()
        if wrong := misread(self.node, value):
            raise self.error(wrong)
        if isinstance(value, str):  # YAML 1.1 takes 1e9 for text
            try:
                value = float(value)
            except ValueError:
                raise self.error(f"is not a number: {value!r}") from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise self.error(f"is not a number: {value!r}")
        if value < least or (above and value == least):
            raise self.error(f"must be {'more than' if above else 'at least'} {least:g}: {value:g}")
        return float(value)

    def whole(self, least: int = 0, most: int = MOST_WHOLE) -> int:
        value = self.number(least)
        if not value.is_integer():
            raise self.error(f"is not a whole number: {value:g}")
        if value > most:
            raise self.error(f"must be at most {most}: {value:g}")
        return int(value)

    def gib(self) -> int:
        """Bytes."""
        found = self.number() * GIB
        if found > MOST_WHOLE:
            raise self.error(f"must be at most {MOST_WHOLE / GIB:g}: {found / GIB:g}")
        return int(found)

    def accelerators(self) -> int:
        return self.whole(most=MOST_ACCELERATORS)

    def flag(self) -> bool:
        value = self.plain()
        if not isinstance(value, bool):
            raise self.error(f"is not true or false: {value!r}")
        return value

    def items(self) -> list[_Item]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error("a list is expected")
        return [_Item(self.path, node, f"{self.name}[{index}]") for index, node in enumerate(self.node.value)]

    def fields(self, known: Sequence[str] | None = None, required: Sequence[str] = ()) -> dict[str, _Item]:
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("a mapping is expected")
        found: dict[str, _Item] = {}
        for key, value in self.node.value:
            label = str(key.value)
            place = _Item(self.path, key, f"{self.name}.{label}" if self.name else label)
            if not isinstance(key, yaml.ScalarNode) or (known is not None and label not in known):
                raise place.error(f"unknown key; known are {', '.join(known or ())}")
            if label in found:
                raise place.error("is there twice")
            found[label] = _Item(self.path, value, place.name)
        for name in required:
            if name not in found:
                raise self.error(f"{name} is missing")
        return found


def _take(fields: dict[str, _Item], name: str, read: Callable[[_Item], _Value], default: _Value) -> _Value:
    return read(fields[name]) if name in fields else default


_TOP = ("name", "domains", "links")
_DOMAIN = (
    *("id", "region", "security_level", "price_micro_per_accelerator_hour", "currency", "carbon_g_per_kwh"),
    *("electricity_micro_per_kwh", "spot", "burst", "mtbf_node_s", "mttr_node_s", "nodes"),
)
_NODES = (
    *("count", "cpus", "memory_gib", "accelerators", "model", "vendor", "nodes_per_rack", "spine"),
    *("idle_watts", "busy_watts_per_accelerator", "sleep_watts", "wake_s", "resources"),
)
_SPOT = ("file", "accelerators_per_instance")
_LINK = ("from", "to", "bandwidth_bytes_per_s", "rtt_s", "price_micro_per_gib", "both_ways")
_MESH = ("regions_prices", "bandwidth_bytes_per_s", "rtt_s", "between")


def read_network(path: Path | str) -> Network:
    """The network of a YAML file. Raises `NetworkError` with the line; files named in it are relative to its folder."""
    path = Path(path)
    try:
        data = path.read_bytes()
        root = yaml.compose(data.decode("utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise NetworkError(f"cannot be read: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        raise NetworkError("is not UTF-8 text", path=path) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else None
        raise NetworkError(f"is not YAML: {error.problem}", path=path, line=line) from error
    except yaml.reader.ReaderError as error:
        # A character that YAML forbids; it says where, and not on which line.
        line = data.decode("utf-8").count("\n", 0, error.position) + 1
        message = f"is not YAML: {error.reason}: {chr(error.character)!r}"
        raise NetworkError(message, path=path, line=line) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise NetworkError(f"is not YAML: {error}", path=path) from error
    if root is None:
        raise NetworkError("is empty", path=path)
    fields = _Item(path, root, "").fields(_TOP, required=("domains",))
    digest = hashlib.sha256(data)
    domains: list[SimDomain] = []
    for item in fields["domains"].items():
        domain = _domain(item, digest)
        if any(other.domain_id == domain.domain_id for other in domains):
            raise item.error(f"domain {domain.domain_id!r} is there twice")
        domains.append(domain)
    if not domains:
        raise fields["domains"].error("at least one domain is needed")
    links = _links(fields["links"], domains, digest) if "links" in fields else []
    return Network(domains, links, _take(fields, "name", _Item.text, path.stem), digest.hexdigest())


def _file(item: _Item, digest: hashlib._Hash) -> Path:
    """The file that a scalar names; ``${VARIABLE}`` is taken from the environment. Its bytes enter the digest."""
    text = os.path.expandvars(item.text())
    if "$" in text:
        raise item.error(f"the environment variable is not set: {text}")
    found = item.path.parent / text
    try:
        digest.update(found.read_bytes())
    except OSError as error:
        raise item.error(f"cannot read {found}: {error.strerror}") from error
    return found


def _domain(item: _Item, digest: hashlib._Hash) -> SimDomain:
    fields = item.fields(_DOMAIN, required=("id", "nodes"))
    domain_id = fields["id"].text()
    nodes: list[SimNode] = []
    racks = 0
    for group in fields["nodes"].items():
        added, racks = _nodes(group, domain_id, len(nodes), racks)
        nodes += added
    if not nodes:
        raise fields["nodes"].error("at least one node is needed")
    return SimDomain(
        domain_id=domain_id,
        nodes=nodes,
        region=_take(fields, "region", _Item.text, ""),
        security_level=_take(fields, "security_level", _Item.whole, 0),
        price_micro_units=_take(fields, "price_micro_per_accelerator_hour", _Item.whole, 0),
        currency=_take(fields, "currency", _Item.text, "USD"),
        carbon_g_per_kwh=_take(fields, "carbon_g_per_kwh", _carbon, (0.0,)),
        electricity_micro_units_per_kwh=_take(fields, "electricity_micro_per_kwh", _Item.whole, 0),
        spot=_take(fields, "spot", lambda spot: _spot(spot, digest), ()),
        burst=_take(fields, "burst", _Item.flag, False),
        mtbf_node_s=_take(fields, "mtbf_node_s", _positive, UNKNOWN),
        mttr_node_s=_take(fields, "mttr_node_s", _positive, 1800.0),
    )


def _positive(item: _Item) -> float:
    return item.number(above=True)


def _carbon(item: _Item) -> tuple[float, ...]:
    if isinstance(item.node, yaml.ScalarNode):
        return (item.number(),)
    hours = item.items()
    if len(hours) != HOURS:
        raise item.error(f"one value or {HOURS} (by hour of the day) are expected, not {len(hours)}")
    return tuple(hour.number() for hour in hours)


def _spot(item: _Item, digest: hashlib._Hash) -> tuple[tuple[float, int], ...]:
    place, each = item, 1
    if not isinstance(item.node, yaml.ScalarNode):
        fields = item.fields(_SPOT, required=("file",))
        place, each = fields["file"], _take(fields, "accelerators_per_instance", lambda value: value.whole(1), 1)
    found = _file(place, digest)
    try:
        return series(found, accelerators_per_instance=each)
    except TraceError as error:
        raise place.error(error.detail) from error


def _resources(item: _Item) -> dict[str, float]:
    return {name: amount.number() for name, amount in item.fields().items()}


def _nodes(item: _Item, domain_id: str, before: int, racks: int) -> tuple[list[SimNode], int]:
    """The nodes of a group, and the number of racks of the domain with them; a group begins a new rack."""
    fields = item.fields(_NODES, required=("count", "cpus"))
    count = fields["count"].whole(1, MOST_NODES)
    per_rack = _take(fields, "nodes_per_rack", lambda value: value.whole(1), 0)
    accelerators = _take(fields, "accelerators", _Item.accelerators, 0)
    if accelerators and "model" not in fields:
        raise item.error("model is missing")
    spine = _take(fields, "spine", _Item.text, "")
    template: dict[str, Any] = {
        "domain_id": domain_id,
        "cpus": fields["cpus"].number(),
        "memory_bytes": _take(fields, "memory_gib", _Item.gib, 0),
        "accelerators": accelerators,
        "model": _take(fields, "model", _Item.text, ""),
        "vendor": _take(fields, "vendor", _Item.text, ""),
        "spine": f"{domain_id}-{spine}" if spine else "",
        "idle_watts": _take(fields, "idle_watts", _Item.number, 0.0),
        "busy_watts_per_accelerator": _take(fields, "busy_watts_per_accelerator", _Item.number, 0.0),
        "sleep_watts": _take(fields, "sleep_watts", _Item.number, 0.0),
        "wake_s": _take(fields, "wake_s", _Item.number, 0.0),
        "resources": _take(fields, "resources", _resources, dict[str, float]()),
    }
    nodes = [
        SimNode(
            node_id=f"{domain_id}-{before + index}",
            rack=f"{domain_id}-rack-{racks + index // per_rack}" if per_rack else "",
            **template,
        )
        for index in range(count)
    ]
    return nodes, racks + (-(-count // per_rack) if per_rack else 0)


def _links(item: _Item, domains: list[SimDomain], digest: hashlib._Hash) -> list[SimLink]:
    """Links one by one (a list), or all pairs of domains at the prices between their regions, some of them replaced."""
    known = {domain.domain_id for domain in domains}
    if isinstance(item.node, yaml.SequenceNode):
        return list(_explicit(item, known).values())
    fields = item.fields(_MESH, required=("regions_prices", "bandwidth_bytes_per_s", "rtt_s"))
    place = fields["regions_prices"]
    prices = read_region_prices(_file(place, digest))
    bandwidth, rtt = fields["bandwidth_bytes_per_s"].number(above=True), fields["rtt_s"].number()
    links: dict[tuple[str, str], SimLink] = {}
    for one, other in pairs_of(domains):
        price = 0.0 if one.region == other.region else prices.get((one.region, other.region))
        if price is None:
            raise place.error(f"no price from region {one.region!r} to {other.region!r}")
        micro = round(price * GB_PER_GIB * 1e6)
        links[one.domain_id, other.domain_id] = SimLink(one.domain_id, other.domain_id, bandwidth, rtt, micro)
    if "between" in fields:
        links |= _explicit(fields["between"], known)
    return list(links.values())


def pairs_of(domains: list[SimDomain]) -> Iterator[tuple[SimDomain, SimDomain]]:
    """Every domain with every other one."""
    return ((one, other) for one in domains for other in domains if one is not other)


def _explicit(item: _Item, known: set[str]) -> dict[tuple[str, str], SimLink]:
    links: dict[tuple[str, str], SimLink] = {}
    for entry in item.items():
        fields = entry.fields(_LINK, required=("from", "to", "bandwidth_bytes_per_s"))
        ends = (fields["from"].text(), fields["to"].text())
        for name, end in zip(("from", "to"), ends, strict=True):
            if end not in known:
                raise fields[name].error(f"no domain {end!r}")
        if ends[0] == ends[1]:
            raise entry.error("a link leads from a domain to another")
        bandwidth = fields["bandwidth_bytes_per_s"].number(above=True)
        rtt = _take(fields, "rtt_s", _Item.number, 0.0)
        price = _take(fields, "price_micro_per_gib", _Item.whole, 0)
        ways = [ends, ends[::-1]] if _take(fields, "both_ways", _Item.flag, False) else [ends]
        for source, target in ways:
            if (source, target) in links:
                raise entry.error(f"the link from {source!r} to {target!r} is there twice")
            links[source, target] = SimLink(source, target, bandwidth, rtt, price)
    return links


def read_region_prices(path: Path | str) -> dict[tuple[str, str], float]:
    """Price per GB (10^9 bytes) moved from region to region: a CSV with the columns ``src,dst,cost`` in currency units."""
    prices: dict[tuple[str, str], float] = {}
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NetworkError(f"cannot be read: {error}", path=path) from error
    for line, cells in enumerate(csv.reader(lines), start=1):
        if line == 1:
            if cells != ["src", "dst", "cost"]:
                raise NetworkError("the header is not src,dst,cost", path=path, line=line)
            continue
        try:
            source, target, cost = cells[0], cells[1], float(cells[2])
        except (IndexError, ValueError):
            raise NetworkError(f"is not src,dst,cost: {','.join(cells)}", path=path, line=line) from None
        if not 0 <= cost < math.inf:
            raise NetworkError(f"cost is not a price: {cost}", path=path, line=line)
        if (source, target) in prices:
            raise NetworkError(f"the pair {source}, {target} is there twice", path=path, line=line)
        prices[source, target] = cost
    return prices
