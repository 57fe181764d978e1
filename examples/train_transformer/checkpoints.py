"""Checkpoints that are either whole or absent, and that know when they have been damaged.

Write: temporary file in the same directory, fsync, rename, fsync of the directory. The file is a NumPy .npz with a JSON
header and a SHA-256 over header and arrays, so a reader recognises a truncated or altered file and takes the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from layers import Array

_FORMAT = "meridian-example-checkpoint/1"
_NAME = re.compile(r"^step-(\d{6,})\.npz$")
_RESERVED = ("header", "sha256")


class CheckpointInvalidError(Exception):
    """The file is missing, truncated, altered, or not a checkpoint of this program."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State after `step` updates."""

    path: Path
    step: int
    header: Mapping[str, Any]
    arrays: Mapping[str, Array]


def save_checkpoint(
    directory: Path, step: int, header: Mapping[str, Any], arrays: Mapping[str, Array], keep: int
) -> Path:
    """Write the checkpoint of `step` atomically, then delete all but the `keep` newest up to this step.

    Checkpoints of later steps (left over from a run that got further) are not counted and not touched.
    """
    if taken := [name for name in _RESERVED if name in arrays]:
        raise ValueError(f"array names {taken} are reserved")
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**header, "format": _FORMAT, "step": step}, sort_keys=True)
    target = directory.resolve() / f"step-{step:06d}.npz"
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            named = {**arrays, "header": np.array(text), "sha256": np.array(_digest(text, arrays))}
            np.savez(file, **named)  # type: ignore[arg-type]  # array names share the keywords with allow_pickle
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    _fsync_directory(directory)
    for _, old in [entry for entry in _listing(directory) if entry[0] <= step][keep:]:
        old.unlink(missing_ok=True)
    return target


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify one file; raises CheckpointInvalidError with the reason."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            text = str(stored["header"])
            expected = str(stored["sha256"])
            arrays: dict[str, Array] = {name: stored[name] for name in stored.files if name not in _RESERVED}
        header = json.loads(text)
    except (OSError, EOFError, KeyError, ValueError, TypeError, RuntimeError, zipfile.BadZipFile) as error:
        raise CheckpointInvalidError(f"{path}: {type(error).__name__}: {error}") from error
    if _digest(text, arrays) != expected:
        raise CheckpointInvalidError(f"{path}: content does not match its SHA-256")
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise CheckpointInvalidError(f"{path}: not a checkpoint of this program")
    return Checkpoint(path, int(header["step"]), header, arrays)


def find_checkpoint(restore_from: Path | None, directory: Path | None, log: Callable[[str], None]) -> Checkpoint | None:
    """The checkpoint to resume from: `restore_from` if it is whole, else the newest whole one in `directory`."""
    candidates = [restore_from] if restore_from else []
    if directory and directory.is_dir():
        candidates += [path for _, path in _listing(directory)]
    for path in dict.fromkeys(candidates):
        try:
            return load_checkpoint(path)
        except CheckpointInvalidError as error:
            log(f"skipping a damaged checkpoint: {error}")
    return None


def _listing(directory: Path) -> list[tuple[int, Path]]:
    """(step, path) of every finished checkpoint, newest first."""
    found = [(int(match[1]), path) for path in directory.iterdir() if (match := _NAME.match(path.name))]
    return sorted(found, reverse=True)


def _digest(text: str, arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.reshape(-1).data)
    return digest.hexdigest()


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
