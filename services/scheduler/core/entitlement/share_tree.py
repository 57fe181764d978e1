"""Trees of shares between queues, and the checks of amounts and weights that the divisions of fair shares have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meridian.errors import InvalidArgumentError
from services.scheduler.core.errors import PolicyError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShareNode:
    """A queue of a tree of shares: ``parent`` "" at the top; ``shares`` are relative to its siblings."""

    name: str
    parent: str = ""
    shares: float = 1.0


class ShareTree:
    """Names, parents and children of a tree with a root 0 above the top; leaves are the nodes without children."""

    def __init__(self, nodes: Sequence[ShareNode], *, zero_shares: bool = False) -> None:
        self.names = ["", *(node.name for node in nodes)]
        self.index = {name: at for at, name in enumerate(self.names)}
        if "" in self.names[1:] or len(self.index) <= len(nodes):
            raise PolicyError("queues need names of their own")
        self.shares = [1.0, *(float(node.shares) for node in nodes)]
        self.parent = [-1]
        self.children: list[list[int]] = [[] for _ in self.names]
        for at, node in enumerate(nodes, start=1):
            if not (0 < node.shares < math.inf or (zero_shares and node.shares == 0)):
                raise PolicyError(f"queue {node.name!r}: shares must be above 0 and finite, not {node.shares!r}")
            if node.parent not in self.index:
                raise PolicyError(f"queue {node.name!r}: parent {node.parent!r} does not exist")
            self.parent.append(self.index[node.parent])
            self.children[self.index[node.parent]].append(at)
        self.order = [0]
        for at in self.order:
            self.order += self.children[at]
        if len(self.order) < len(self.names):
            stray = next(name for at, name in enumerate(self.names) if at not in set(self.order))
            raise PolicyError(f"queue {stray!r}: parent makes a cycle")

    def leaf(self, name: str) -> int:
        """The number of a queue; InvalidArgumentError when it is unknown or has queues below it."""
        at = self.index.get(name, 0)
        if not at or self.children[at]:
            raise InvalidArgumentError(f"{name!r} is not a queue without queues below it")
        return at

    def leaves(self) -> list[int]:
        """The numbers of all queues without queues below them."""
        return [at for at in range(1, len(self.names)) if not self.children[at]]

    def totals(self, usage: Mapping[str, float]) -> list[float]:
        """Usage of every node: its own and that of all below."""
        total = [0.0] * len(self.names)
        for name, value in usage.items():
            if not 0 <= value < math.inf:
                raise InvalidArgumentError(f"usage of {name!r} must be at least 0 and finite, not {value!r}")
            total[self.leaf(name)] = float(value)
        for at in reversed(self.order[1:]):
            total[self.parent[at]] += total[at]
        return total


def checked_amounts(name: str, values: npt.ArrayLike) -> Floats:
    """Values of any shape as numbers; InvalidArgumentError with ``name`` unless all are finite and at least 0."""
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array >= 0) & (array < np.inf)):
        raise InvalidArgumentError(f"{name} must be at least 0 and finite")
    return array


def checked_weights(values: npt.ArrayLike) -> Floats:
    """Weights of any shape as numbers; PolicyError unless all are finite and above 0."""
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array > 0) & (array < np.inf)):
        raise PolicyError("weights must be above 0 and finite")
    return array
