"""How this rank was started: the torchrun variables and the ones that Meridian adds, read once.

Without them (a plain `python train.py`) the program is a job of one rank.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

EXIT_TERMINATED = 143


class LaunchError(Exception):
    """A variable that the engine sets has an impossible value."""


class TerminatedError(Exception):
    """SIGTERM arrived at a point where there is nothing to save."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Identity of this rank, its meeting point, and where state survives a restart."""

    rank: int
    world_size: int
    master_address: str
    master_port: int
    run_id: str
    epoch: int
    checkpoint_dir: Path | None
    restore_from: Path | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Launch:
        """Raises LaunchError naming the variable that is wrong."""
        world_size = _integer(environment, "WORLD_SIZE", 1)
        rank = _integer(environment, "RANK", 0)
        if world_size < 1 or not 0 <= rank < world_size:
            raise LaunchError(f"RANK={rank} is impossible with WORLD_SIZE={world_size}")
        return cls(
            rank=rank,
            world_size=world_size,
            master_address=environment.get("MASTER_ADDR") or "127.0.0.1",
            master_port=_integer(environment, "MASTER_PORT", 29500),
            run_id=environment.get("MERIDIAN_RUN_ID", ""),
            epoch=_integer(environment, "MERIDIAN_EPOCH", 0),
            checkpoint_dir=_path(environment, "MERIDIAN_CHECKPOINT_DIR"),
            restore_from=_path(environment, "MERIDIAN_RESTORE_FROM"),
        )


@dataclass(slots=True)
class StopRequest:
    """Remembers SIGTERM until the training loop reaches a point where it can act on it."""

    requested: bool = field(default=False)

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True


def _integer(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    try:
        return int(text)
    except ValueError as error:
        raise LaunchError(f"{name} must be an integer, not {text!r}") from error


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(name)
    return Path(text).resolve() if text else None
