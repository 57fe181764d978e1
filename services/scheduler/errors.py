"""Errors of the live scheduler."""

from __future__ import annotations

from meridian.errors import UnavailableError


class LeadershipLostError(UnavailableError, ConnectionError):
    """Another scheduler has taken over; this process must end.

    The advisory lock chooses who leads; the term fences: every write reads the term under a share lock, and a new holder
    first raises it, which waits for writes in progress. A ConnectionError, so that the bus holds its events back for the
    new leader instead of burying them.
    """

    code = "LEADERSHIP_LOST"
