"""What two policies differ in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.scheduler.core.policy import Policy


def differences(before: Policy, after: Policy) -> list[dict[str, Any]]:
    """What differs, by dotted path: ``{"path", "before", "after"}``; None where a side has no such entry. Lists count whole;
    ``scores`` without a path below it says that only their order differs."""
    old, new = _leaves(before.as_json()), _leaves(after.as_json())
    paths = [path for path in {**old, **new} if path != "version" and old.get(path) != new.get(path)]
    found = [{"path": path, "before": old.get(path), "after": new.get(path)} for path in sorted(paths)]
    if not found and before.version != after.version:
        found = [
            {"path": name, "before": list(dict(getattr(before, name))), "after": list(dict(getattr(after, name)))}
            for name in ("scores", "tenant_weights", "domain_node_scores", "options")
            if getattr(before, name) != getattr(after, name)
        ]
    return found


def _leaves(body: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in body.items():
        if isinstance(value, Mapping):
            out |= _leaves(value, f"{prefix}{name}.")
        else:
            out[prefix + name] = list(value) if isinstance(value, tuple) else value
    return out
