"""The domains of a one-machine stack, read from YAML, and the configuration file that each domain's agent gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from meridian.embedded.ports import write_atomically
from meridian.errors import ConfigurationError

DEFAULT_FILE = Path(__file__).with_name("domains.yaml")


@dataclass(frozen=True, slots=True)
class Domain:
    """One domain as declared; ``declaration`` has the field names of the contract ``DomainInventory``, with its links."""

    domain_id: str
    declaration: Mapping[str, Any]


def read_domains(path: Path) -> tuple[Domain, ...]:
    """The domains that ``path`` declares, each with the links that begin at it (a pair is linked both ways).

    Raises ConfigurationError, which names the place, for a file that cannot be read or a link to an unknown domain.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"domains file {path}: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("domains"), list):
        raise ConfigurationError(f"domains file {path}: no list `domains`")
    declared: dict[str, dict[str, Any]] = {}
    for position, entry in enumerate(content["domains"]):
        domain_id = entry.get("domain_id") if isinstance(entry, dict) else None
        if not isinstance(domain_id, str) or domain_id in declared or not domain_id.replace("-", "").isalnum():
            raise ConfigurationError(
                f"domains file {path}: domains[{position}].domain_id: a unique name of letters, digits and hyphens is needed"
            )
        declared[domain_id] = {**entry, "links": []}
    for position, link in enumerate(content.get("links") or ()):
        ends = link.get("between") if isinstance(link, dict) else None
        if not isinstance(ends, list) or len(set(ends)) != 2 or not declared.keys() >= set(ends):
            raise ConfigurationError(f"domains file {path}: links[{position}].between: two of the domains are needed")
        values = {name: value for name, value in link.items() if name != "between"}
        for here, there in (ends, reversed(ends)):
            declared[here]["links"].append({"to_domain_id": there, **values})
    return tuple(Domain(domain_id, declaration) for domain_id, declaration in declared.items())


def write_agent_config(
    directory: Path, domain: Domain, connection: Mapping[str, str | float], probes: Mapping[str, str] | None = None
) -> Path:
    """Write the file that ``python -m agent --config FILE`` reads: ``domain`` and, beside it, how the agent connects.

    ``probes``: HOST:PORT by domain on which its agent answers probes; without them links stay as declared.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / f"{domain.domain_id}.yaml"
    body: dict[str, Any] = {"domain": dict(domain.declaration), **connection}
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
