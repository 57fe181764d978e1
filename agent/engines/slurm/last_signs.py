"""When ranks on a node count as ended of which nobody has told the end. Pure.

Slurm says that a job has ended when every node that it reaches has told so; one that it does not reach it has given up (``NODE_FAIL``),
and what ran there may run on: a daemon that died or a network between controller and node takes no program with it. Who is told
that a run has ended places its unit again, so such a node's ranks count as ended only when their step is silent for longer than they
live without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.engines.slurm.words import SlurmNode

BEAT_PATIENCE_S = 3.0
"""A step that lives beats every second; one that is silent for so long on a node that Slurm reaches is none any more."""
SILENCE_MARGIN_S = 10.0
"""Beyond the time for which ranks live without a sign of the agent: their node's clock and the file system may be late."""


@dataclass(frozen=True, slots=True)
class LastSign:
    """What is known of a node's step. ``heard``: it has spoken, at least once. ``confirmed``: Slurm, asked after the job's end,
    reaches the node. Times in seconds."""

    heard: bool
    silent_s: float
    confirmed: bool = False


def silence_limit_s(agent_silence_s: float) -> float:
    """A step that is silent for longer has no ranks any more, as they end after ``agent_silence_s`` without it."""
    return agent_silence_s + SILENCE_MARGIN_S


def nothing_runs(sign: LastSign, limit_s: float) -> bool:
    """Whether no rank of an ended job is left on a node; ``limit_s``: see `silence_limit_s`."""
    if not sign.heard:
        return True
    return sign.silent_s > (BEAT_PATIENCE_S if sign.confirmed else limit_s)


def reaches(node: SlurmNode | None) -> bool:
    """Whether Slurm hears a node, so that its word on what runs there counts."""
    return node is not None and node.lives and not node.states & {"NOT_RESPONDING", "UNKNOWN"}
