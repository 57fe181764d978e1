"""Recognise heartbeats that waited somewhere and arrive late, without trusting the sender's clock.

The difference between arrival and sending is the delay plus the unknown difference of the clocks. Its minimum is taken
as the difference of the clocks; what exceeds it is delay. A backlog is caught up with, so its delay shrinks; a sender
whose clock was set back keeps a constant excess, and after a second of that the clock is believed.
"""

from __future__ import annotations

from dataclasses import dataclass

_CATCH_UP_S = 1.0


@dataclass(slots=True)
class BacklogFilter:
    """The state for one sender. ``limit_s`` is the delay above which a message says nothing about the present."""

    limit_s: float = 5.0
    offset_s: float | None = None
    late_since_s: float | None = None
    first_excess_s: float = 0.0

    def is_backlog(self, sent_at_s: float, arrived_at_s: float) -> bool:
        """Whether a message sent (on its sender's clock) and arrived (on ours) at these times is backlog."""
        offset_s = arrived_at_s - sent_at_s
        if self.offset_s is None or offset_s < self.offset_s:
            self.offset_s = offset_s
        excess_s = offset_s - self.offset_s
        if excess_s <= self.limit_s:
            self.late_since_s = None
            return False
        if self.late_since_s is None:
            self.late_since_s = arrived_at_s
            self.first_excess_s = excess_s
            return True
        if arrived_at_s - self.late_since_s < _CATCH_UP_S:
            return True
        # Messages at the sender's pace for a second: had they been backlog, the excess would have shrunk.
        if excess_s > self.first_excess_s - _CATCH_UP_S / 2:
            self.offset_s = offset_s
            self.late_since_s = None
            return False
        self.late_since_s = arrived_at_s
        self.first_excess_s = excess_s
        return True
