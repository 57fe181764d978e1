"""How the agent and the programs inside an allocation speak: small files in a folder that both see. Standard library only.

    SHARED/lease                                 the agent, while it has contact: a text that changes (`Lease` of the agent)
    SHARED/<job>.<unit>.<epoch>/<Slurm's job>/   one allocation
        held.json        the batch step: it runs, on these nodes, with so many tasks on each
        launch.json      the agent: the run as ordered, and for each node what it starts
        <node>.events    the node's step: what its ranks did, one JSON object per line
        <node>.beat      the node's step: a text that changes
        stop.json        the agent: end the run
        read.json        the agent: how far it has passed events on
        out.txt          what batch step and srun print

Files are written beside and renamed, so a reader sees a whole one or none. Slurm's sites have such a file system as a rule
(home or scratch); with NFS a name that was just made may be seen some seconds late (``actimeo``), which delays and breaks nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

HELD = "held.json"
LAUNCH = "launch.json"
STOP = "stop.json"
READ = "read.json"
OUT = "out.txt"
LEASE = "lease"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that nobody sees a part of it.

    :raises OSError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    beside.write_text(text)
    beside.replace(path)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file as a whole."""
    write_whole(path, json.dumps(content, separators=(",", ":")))


def read_json(path: Path) -> dict[str, Any] | None:
    """The object of a JSON file; None: there is none (yet)."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        if isinstance(found, dict):
            return found
    return None


def text_of(path: Path) -> str:
    """The text of a small file; empty: there is none (yet)."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
