"""The domains of a one-machine stack, read from YAML, and the configuration file that each domain's agent gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from meridian.embedded.ports import write_atomically
from meridian.errors import ConfigurationError
from meridian.plain_yaml import PlainLoader

DEFAULT_FILE = Path(__file__).with_name("domains.yaml")


@dataclass(frozen=True, slots=True)
class Domain:
    """One domain as declared; ``declaration`` has the field names of the contract ``DomainInventory``, with its links. ``places`` says
    where in ``file`` each field of it is, by its path (``nodes.0.cpus``): line and path there."""

    domain_id: str
    declaration: Mapping[str, Any]
    file: Path | None = None
    places: Mapping[str, str] = field(default_factory=dict)


def read_domains(path: Path) -> tuple[Domain, ...]:
    """The domains that ``path`` declares, each with the links that begin at it (a pair is linked both ways).

    Raises ConfigurationError, which names line and place, for a file that cannot be read or a link to an unknown domain.
    """
    content, lines = _read(path)
    if not isinstance(content, dict) or not isinstance(content.get("domains"), list):
        raise ConfigurationError(f"domains file {path}: no list `domains`")
    declared: dict[str, dict[str, Any]] = {}
    places: dict[str, dict[str, str]] = {}
    for position, entry in enumerate(content["domains"]):
        at = f"domains.{position}"
        domain_id = entry.get("domain_id") if isinstance(entry, dict) else None
        if not isinstance(domain_id, str) or domain_id in declared or not domain_id.replace("-", "").isalnum():
            line = lines.get(f"{at}.domain_id", lines[at])
            raise ConfigurationError(
                f"domains file {path}, line {line}: domains[{position}].domain_id: a unique name of letters, digits and hyphens"
                " is needed"
            )
        declared[domain_id] = {**entry, "links": []}
        places[domain_id] = _places(lines, at, "")
    for position, link in enumerate(content.get("links") or ()):
        at = f"links.{position}"
        ends = link.get("between") if isinstance(link, dict) else None
        if not isinstance(ends, list) or len(set(ends)) != 2 or not declared.keys() >= set(ends):
            line = lines.get(f"{at}.between", lines[at])
            raise ConfigurationError(
                f"domains file {path}, line {line}: links[{position}].between: two of the domains are needed"
            )
        values = {name: value for name, value in link.items() if name != "between"}
        for here, there in (ends, reversed(ends)):
            places[here] |= _places(lines, at, f"links.{len(declared[here]['links'])}")
            declared[here]["links"].append({"to_domain_id": there, **values})
    return tuple(
        Domain(domain_id, declaration, path.resolve(), places[domain_id]) for domain_id, declaration in declared.items()
    )


def _read(path: Path) -> tuple[Any, dict[str, int]]:
    """What the file holds, and the lines of it all."""
    try:
        loader = PlainLoader(path.read_text(encoding="utf-8"))
        try:
            root = loader.get_single_node()
            return None if root is None else loader.construct_document(root), _lines(root, "")
        finally:
            loader.dispose()
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"domains file {path}: {error}") from None


def _lines(node: yaml.Node | None, path: str) -> dict[str, int]:
    """The line of each value below a node, by its path: names and places in lists, with dots between."""
    found: dict[str, int] = {}
    for name, line, value in _children(node):
        below = f"{path}.{name}" if path else name
        found[below] = line
        found |= _lines(value, below)
    return found


def _children(node: yaml.Node | None) -> Iterator[tuple[str, int, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key.value, key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            yield str(position), value.start_mark.line + 1, value


def _places(lines: Mapping[str, int], at: str, path: str) -> dict[str, str]:
    """What is below ``at`` in the file, by its path below ``path`` in the declaration of a domain."""
    found: dict[str, str] = {}
    for name, line in lines.items():
        if name == at or name.startswith(f"{at}."):
            parts = [f"[{part}]" if part.isdigit() else f".{part}" for part in name.split(".")]
            found[f"{path}{name.removeprefix(at)}".strip(".")] = f"line {line}: {''.join(parts).strip('.')}"
    return found


def write_agent_config(
    directory: Path, domain: Domain, connection: Mapping[str, str | float], probes: Mapping[str, str] | None = None
) -> Path:
    """Write the file that ``python -m agent --config FILE`` reads: ``domain`` and, beside it, how the agent connects.

    ``probes``: HOST:PORT by domain on which its agent answers probes; without them links stay as declared.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{domain.domain_id}.yaml"
    body: dict[str, Any] = {"domain": dict(domain.declaration), **connection}
    if domain.file is not None:
        body["declared_in"] = {"file": str(domain.file), "places": dict(domain.places)}
    if domain.declaration.get("emulated"):
        # Nodes of a test network are processes of the one who runs it, and jobs run any command there already.
        body["resource_commands"] = {"remote": "any"}
    if probes:
        links = [{**link, "probe": probes.get(link["to_domain_id"], "")} for link in domain.declaration["links"]]
        body["domain"]["links"] = links
        port = int(probes[domain.domain_id].rpartition(":")[2])
        body["probing"] = {"port": port, "transfer_bytes": 262144, "transfer_interval_s": 60.0}
    write_atomically(path, yaml.safe_dump(body, sort_keys=False))
    return path
