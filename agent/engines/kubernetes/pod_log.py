"""The output of one rank: its pod's log, followed, parted into log text and reports, and picked up again where an agent left it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from agent.engines.kubernetes.api import KubernetesApi
from agent.engines.kubernetes.site import CONTAINER
from agent.node.rank_log import RankLog
from agent.node.rank_output import OutputScanner, Report

MOST_LINE_BYTES = 1024 * 1024
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})"
)


@dataclass(slots=True)
class PodLog:
    """What was read of a log. ``position`` is the time that the kubelet gave the newest line, as text that sorts as time."""

    path: str
    log: RankLog
    position: str = ""
    scanner: OutputScanner = field(default_factory=OutputScanner)
    rest: bytes = b""
    # Lines up to here were read by an earlier stream.
    known_until: str = ""

    def feed(self, data: bytes) -> list[Report]:
        """Lines with their times in front; those that are known are passed over. Text goes to the log file."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > MOST_LINE_BYTES:
            lines, self.rest = [*lines, self.rest], b""
        found: list[Report] = []
        for line in lines:
            found += self._line(line, b"\n")
        return found

    def finish(self) -> list[Report]:
        """The container has ended: what has no end of line is text."""
        found = self._line(self.rest, b"") if self.rest else []
        self.rest = b""
        self.log.write(self.scanner.finish())
        self.log.close()
        return found

    def _line(self, line: bytes, end: bytes) -> list[Report]:
        stamp, space, text = line.partition(b" ")
        when = sortable(stamp.decode(errors="replace")) if space else ""
        if when and when <= self.known_until:
            return []
        if when:
            self.position = when
        else:  # the continuation of a line that the kubelet cut, or its own word
            text = line
        words, reports = self.scanner.feed(text + end)
        self.log.write(words)
        return reports


def sortable(stamp: str) -> str:
    """A time of the kubelet's (RFC 3339, up to nine digits of a second, its node's zone) in UTC with nine digits; empty: it is none."""
    found = _TIME.fullmatch(stamp)
    if found is None:
        return ""
    whole, fraction, zone = found.groups()
    try:
        at = datetime.fromisoformat(whole + zone.replace("Z", "+00:00")).astimezone(UTC)
    except (ValueError, OverflowError):
        return ""
    return f"{at:%Y-%m-%dT%H:%M:%S}.{(fraction or '').ljust(9, '0')}Z"


async def follow(api: KubernetesApi, known: PodLog) -> AsyncIterator[list[Report]]:
    """Reports as they are printed, until the container's log has ended or the stream broke; then it is called again.

    :raises KubernetesRefusedError: there is no log (any more).
    :raises KubernetesSilentError: the connection broke.
    """
    known.rest, known.known_until = b"", known.position
    query = {"container": CONTAINER, "timestamps": "true"}
    if known.position:
        query["sinceTime"] = f"{known.position[:19]}Z"
    async for piece in api.log(known.path, **query):
        yield known.feed(piece)
