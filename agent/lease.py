"""The agent's lease: while the bus acknowledges its heartbeats, others count on its runs; after that it must end them.

What counts is when the newest acknowledged heartbeat was *sent*: whoever received it cannot have done so earlier, so the
agent's own reckoning runs out first.
"""

from __future__ import annotations


class Lease:
    """Times are seconds on the agent's monotonic clock. The lease counts as lost ``reserve_s`` before its end: the time
    that ending the runs takes."""

    def __init__(self, lease_s: float, reserve_s: float, now_s: float) -> None:
        self._bound_s = max(lease_s - reserve_s, lease_s / 2)
        self._contact_at_s = now_s
        self.held_since_s = now_s
        self.held = True

    def contact_age_s(self, now_s: float) -> float:
        """Time since the newest proof of contact."""
        return now_s - self._contact_at_s

    def acknowledged(self, sent_at_s: float, now_s: float) -> bool:
        """A heartbeat sent at ``sent_at_s`` was acknowledged at ``now_s``. True when this regains a lost lease."""
        self._contact_at_s = max(self._contact_at_s, sent_at_s)
        if self.held or now_s - self._contact_at_s >= self._bound_s:
            return False
        self.held = True
        self.held_since_s = now_s
        return True

    def runs_out(self, now_s: float) -> bool:
        """Whether the lease is lost at this moment (true once)."""
        if not self.held or now_s - self._contact_at_s < self._bound_s:
            return False
        self.held = False
        return True
