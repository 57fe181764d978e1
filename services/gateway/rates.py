"""Rate limits, counted in Redis for all replicas together; while Redis is away each replica counts for itself."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage, RedisStorage
from redis.exceptions import RedisError

from meridian.clock import Clock
from meridian.errors import ConfigurationError, ResourceExhaustedError

log = logging.getLogger(__name__)

# After a failure Redis is left alone for this long.
_REDIS_PAUSE_S = 5.0
_REDIS_TIMEOUT_S = 0.25


class RateLimitError(ResourceExhaustedError):
    """The limit of this window is used up."""

    def __init__(self, detail: str, retry_after_s: int) -> None:
        super().__init__(detail)
        self.headers = {"Retry-After": str(max(1, retry_after_s))}


@dataclass(frozen=True, slots=True)
class Standing:
    """How a caller stands towards its limit after this request."""

    allowed: bool
    limit: int
    window_s: int
    remaining: int
    reset_s: int

    def headers(self) -> dict[str, str]:
        """As draft-ietf-httpapi-ratelimit-headers-10 has it."""
        return {
            "RateLimit-Policy": f'"default";q={self.limit};w={self.window_s}',
            "RateLimit": f'"default";r={self.remaining};t={self.reset_s}',
        }


def parse_limit(text: str) -> RateLimitItem:
    """A limit such as ``100/minute``; ConfigurationError when it cannot be read."""
    try:
        return parse(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is no rate limit such as 100/minute") from None


class RateLimiter:
    """Counts requests per key in fixed windows that begin at multiples of their length: one round trip per request."""

    def __init__(self, redis_url: str, clock: Clock) -> None:
        self._clock = clock
        timeouts: dict[str, Any] = {"socket_timeout": _REDIS_TIMEOUT_S, "socket_connect_timeout": _REDIS_TIMEOUT_S}
        self._shared = RedisStorage(
            f"async+{redis_url}", implementation="redispy", key_prefix="meridian:gateway", **timeouts
        )
        self._own = MemoryStorage()
        self._redis_again_s = -math.inf

    async def hit(self, limit: RateLimitItem, *key: str) -> Standing:
        """Count one request."""
        if self._clock.monotonic_s() >= self._redis_again_s:
            try:
                return await self._hit(self._shared, limit, key)
            except (RedisError, OSError, TimeoutError) as error:
                self._redis_again_s = self._clock.monotonic_s() + _REDIS_PAUSE_S
                log.warning("rate limits are counted in this process only", extra={"error": repr(error)})
        return await self._hit(self._own, limit, key)

    async def _hit(self, storage: RedisStorage | MemoryStorage, limit: RateLimitItem, key: tuple[str, ...]) -> Standing:
        window_s = limit.get_expiry()
        now_s = self._clock.now().timestamp()
        window = int(now_s // window_s)
        count = await storage.incr(limit.key_for(*key, str(window)), window_s)
        reset_s = max(1, math.ceil((window + 1) * window_s - now_s))
        return Standing(count <= limit.amount, limit.amount, window_s, max(0, limit.amount - count), reset_s)
