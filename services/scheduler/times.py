"""Times as people and other programs read them."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(at_s: float) -> str | None:
    """A time in seconds since 1970 as text; None for 0 (never)."""
    if not at_s:
        return None
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
