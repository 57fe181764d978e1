"""The secrets of a network on one machine: made once per data directory, kept in files that only their owner can read.

identity/bootstrap.json   what the identity service starts with: the join token, and one client of the tenant "local"
identity/join-token       the token with which agents join, and with which the gateway speaks to them
client.json               how `meridian` on this machine reaches the gateway
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from meridian.embedded.ports import write_atomically

CLIENT_ID = "local"
TENANT_ID = "local"
SCOPES = ("jobs:read", "jobs:write", "resources:read", "operator", "admin")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where the secrets of a stack are."""

    join_token: str
    join_token_path: Path
    bootstrap_path: Path


def ensure_credentials(data_dir: Path, gateway_url: str | None) -> Credentials:
    """The secrets of ``data_dir``, made at the first call; ``client.json`` follows the gateway's address."""
    bootstrap_path = data_dir / "identity" / "bootstrap.json"
    join_token_path = data_dir / "identity" / "join-token"
    if bootstrap_path.exists():
        known = json.loads(bootstrap_path.read_text(encoding="utf-8"))
    else:
        client = {
            "client_id": CLIENT_ID,
            "client_secret": secrets.token_urlsafe(32),
            "tenant_id": TENANT_ID,
            "scopes": list(SCOPES),
        }
        known = {"join_tokens": [secrets.token_urlsafe(32)], "clients": [client]}
        write_atomically(bootstrap_path, json.dumps(known, indent=2))
    join_token: str = known["join_tokens"][0]
    write_atomically(join_token_path, join_token)
    if gateway_url is not None:
        client = known["clients"][0]
        entry = {"url": gateway_url, "client_id": client["client_id"], "client_secret": client["client_secret"]}
        write_atomically(data_dir / "client.json", json.dumps(entry, indent=2))
    return Credentials(join_token, join_token_path, bootstrap_path)
