"""From single probes to what is said of a link. Pure; times in seconds on one monotonic clock."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

BURSTS = 6
TRANSFERS = 3


@dataclass(frozen=True, slots=True)
class LinkMeasurement:
    """A link as measured. ``bandwidth_bytes_per_s`` None: not measured yet. ``rtt_s`` None: no reply ever came."""

    rtt_s: float | None
    loss: float
    bandwidth_bytes_per_s: float | None
    measured_at_s: float


@dataclass(slots=True)
class LinkEstimate:
    """Folds bursts and transfers.

    The round trip is the median over the last `BURSTS` bursts, which a late packet does not move; loss is the share of
    packets of those bursts without reply; bandwidth is the greatest of the last `TRANSFERS` transfers, because other
    traffic and a busy machine only ever lower what one transfer sees (the windowed maximum of BBR, Cardwell et al., 2016).
    """

    _bursts: deque[tuple[tuple[float, ...], int]] = field(default_factory=lambda: deque(maxlen=BURSTS))
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=TRANSFERS))
    _last_rtt_s: float | None = None
    _measured_at_s: float | None = None

    def burst(self, replies_s: tuple[float, ...], sent: int, at_s: float) -> None:
        """``sent`` packets went out, and these are the round trips of those that were answered."""
        assert 0 <= len(replies_s) <= sent, (len(replies_s), sent)
        self._bursts.append((replies_s, sent))
        self._measured_at_s = at_s
        times = [value for replies, _ in self._bursts for value in replies]
        if times:
            self._last_rtt_s = statistics.median(times)

    def transfer(self, size_bytes: int, took_s: float) -> None:
        """So many bytes arrived in that time."""
        if size_bytes > 0 and took_s > 0:
            self._rates.append(size_bytes / took_s)

    def now(self) -> LinkMeasurement | None:
        """What is known; None before the first burst."""
        if self._measured_at_s is None:
            return None
        sent = sum(count for _, count in self._bursts)
        answered = sum(len(replies) for replies, _ in self._bursts)
        loss = 1 - answered / sent if sent else 0.0
        return LinkMeasurement(self._last_rtt_s, loss, max(self._rates, default=None), self._measured_at_s)
