"""Idle nodes fall asleep, and wake when work is placed on them: what the power, the scheduler and the job see of it.

A node may sleep when its network says what that means (`may_sleep`). It falls asleep ``after_s`` after it held its last job; a
placing wakes it, and the job begins when it is ready. While it wakes, nothing is busy on it (simulation/energy.py). The core
reads who sleeps as the fact ``asleep``, and places as if all were awake: sleeping costs time, not room.
"""

from __future__ import annotations

import math

from meridian.errors import InvalidArgumentError
from services.scheduler.core.view import View
from simulation.energy import Energy
from simulation.model import Network, SimNode


def may_sleep(node: SimNode) -> bool:
    """Whether the network describes the node's sleep (watts asleep or a time to wake), and sleeping saves anything."""
    return (node.sleep_watts > 0 or node.wake_s > 0) and node.sleep_watts < node.idle_watts


class Sleeping:
    """Who sleeps, who wakes and since when who is idle, by rows of the view's table. Times in seconds.

    Steps: 1. a node that holds nothing more tells when it will fall asleep if nothing comes (`gave`); 2. at that time it
    does, if it was idle all along (`fall_asleep`); 3. who gets work is awake: at once, or after its waking time (`took`,
    `ready`). All nodes are awake and idle at ``from_s``.
    """

    def __init__(self, network: Network, view: View, energy: Energy, after_s: float, from_s: float = 0.0) -> None:
        if not after_s >= 0:
            raise InvalidArgumentError(f"sleep_after_s: {after_s} is not a number of 0 or more")
        index = view.table.node_index
        self._view, self._energy, self._after_s = view, energy, after_s
        self._able = {index[node.node_id]: node.node_id for node in network.nodes if may_sleep(node)}
        self._idle_since = dict.fromkeys(self._able, from_s)
        self._units = dict.fromkeys(self._able, 0)
        self._asleep: set[int] = set()
        self._waking: dict[int, float] = {}

    @property
    def idle(self) -> dict[int, float]:
        """Since when each node that may sleep is idle and awake."""
        return {row: since_s for row, since_s in self._idle_since.items() if row not in self._asleep}

    def is_asleep(self, row: int) -> bool:
        """Whether the node sleeps (one that wakes does not)."""
        return row in self._asleep

    def waking(self, row: int) -> bool:
        """Whether the node wakes and is not ready yet."""
        return row in self._waking

    def is_idle_since(self, row: int, since_s: float) -> bool:
        """Whether the node is awake and held nothing since then."""
        return self._idle_since.get(row) == since_s and row not in self._asleep

    def took(self, row: int, now_s: float) -> float:
        """A rank is placed on the node; when the node is ready (``now_s``: at once)."""
        if row not in self._able:
            return now_s
        self._units[row] += 1
        self._idle_since.pop(row, None)
        if row in self._asleep:
            self._asleep.discard(row)
            ready_s = self._energy.wake(self._able[row], now_s)
            self._view.set_asleep([row], asleep=False)
            if ready_s > now_s:
                self._waking[row] = ready_s
            return ready_s
        return self._waking.get(row, now_s)

    def ready(self, row: int, ready_s: float) -> bool:
        """The node is awake now; False when that waking was cut short."""
        if self._waking.get(row) != ready_s:
            return False
        del self._waking[row]
        return True

    def gave(self, row: int, now_s: float) -> float:
        """A rank left the node; when it will fall asleep if nothing comes: infinite when it holds something."""
        if row not in self._able:
            return math.inf
        self._units[row] -= 1
        if self._units[row]:
            return math.inf
        self._idle_since[row] = now_s
        return now_s + self._after_s

    def fall_asleep(self, row: int, since_s: float, now_s: float) -> None:
        """Put the node to sleep, if it is idle since then."""
        if not self.is_idle_since(row, since_s):
            return
        self._waking.pop(row, None)
        self._energy.sleep(self._able[row], now_s)
        self._asleep.add(row)
        self._view.set_asleep([row], asleep=True)
