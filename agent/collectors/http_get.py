"""A GET that cannot hang and cannot flood: one deadline for all of it and a bound on its size.

Exporters have been seen to hang in the middle of an answer, so a time limit per read is not enough.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from agent.collectors.unknown import UnknownKind
from meridian.errors import ConfigurationError, UnavailableError

CHUNK_BYTES = 64 * 1024


class ScrapeError(UnavailableError):
    """The exporter gave no usable answer; the detail says why."""

    code = "SCRAPE_FAILED"
    title = "Exporter does not answer"

    def __init__(self, detail: str, kind: UnknownKind = UnknownKind.UNAVAILABLE) -> None:
        super().__init__(detail)
        self.kind = kind


def get_text(url: str, deadline_s: float, max_bytes: int, headers: Mapping[str, str] | None = None) -> str:
    """The body of a 200 answer. Blocking for at most about ``deadline_s``.

    :raises ScrapeError: refused, too slow, too large, another status, or not UTF-8.
    :raises ConfigurationError: the URL is not http or https.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"exporter URL {url!r} is not http or https")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    ends_at = time.monotonic() + deadline_s
    connection = kind(parts.hostname, parts.port, timeout=deadline_s)
    path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    try:
        sent = {"Accept": "text/plain;version=0.0.4, application/json;q=0.5", "Connection": "close", **(headers or {})}
        connection.request("GET", path, headers=sent)
        assert connection.sock is not None
        descriptor = connection.sock
        descriptor.settimeout(max(ends_at - time.monotonic(), 0.001))
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise ScrapeError(f"status {response.status}")
        body = bytearray()
        while True:
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                raise ScrapeError(f"no complete answer within {deadline_s:g} s")
            descriptor.settimeout(left_s)
            chunk = response.read1(CHUNK_BYTES)
            if not chunk:
                break
            body += chunk
            if len(body) > max_bytes:
                raise ScrapeError(f"answer exceeds {max_bytes} bytes", UnknownKind.LIMIT_EXCEEDED)
        return body.decode()
    except TimeoutError:
        raise ScrapeError(f"no complete answer within {deadline_s:g} s") from None
    except UnicodeDecodeError:
        raise ScrapeError("answer is not UTF-8") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ScrapeError(str(error) or type(error).__name__) from None
    finally:
        connection.close()
