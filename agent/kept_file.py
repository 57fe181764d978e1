"""Small files in which the agent keeps what it may forget: what cannot be written is told and does no harm."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


def keep(path: Path, content: Any) -> None:
    """Write the file as a whole: who reads it sees the former or the new content. A disk that fails is told in the log."""
    fresh = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(content))
        fresh.replace(path)
    except OSError as error:
        _log.warning("%s: %s", path, error)
