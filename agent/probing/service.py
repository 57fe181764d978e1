"""The probing part of an agent: answers others, asks those whose address is configured."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from agent.probing.address import address_of
from agent.probing.estimates import LinkMeasurement
from agent.probing.prober import Pace, Peer, Prober
from agent.probing.responder import Responder
from agent.probing.shaping import SCALE, Shape
from agent.settings import AgentSettings
from meridian.clock import Clock

_log = logging.getLogger(__name__)


class Probing:
    """Does nothing where no port and no address of a peer is configured."""

    def __init__(self, settings: AgentSettings, clock: Clock) -> None:
        domain, probing = settings.domain, settings.probing
        peers = tuple(Peer(link.to_domain_id, *address_of(link.probe)) for link in domain.links if link.probe)
        pace = Pace(
            interval_s=probing.interval_s,
            packets=probing.packets,
            transfer_bytes=probing.transfer_bytes,
            transfer_interval_s=probing.transfer_interval_s,
            scale=SCALE if domain.emulated else 1.0,
        )
        self._prober = Prober(domain.domain_id, peers, pace, clock)
        shapes = {
            link.to_domain_id: Shape(link.rtt_s, link.loss, link.bandwidth_bytes_per_s / SCALE)
            for link in domain.links
            if domain.emulated
        }
        self._responder = Responder(domain.domain_id, probing.host, probing.port, shapes) if probing.port else None

    def measured(self) -> Mapping[str, LinkMeasurement]:
        """By domain; times are monotonic seconds."""
        return self._prober.measured()

    async def run(self) -> None:
        """Until cancelled. A port that is taken is logged: an agent without probes still does its work."""
        async with contextlib.AsyncExitStack() as cleanup:
            if self._responder is not None:
                try:
                    await self._responder.start()
                    cleanup.push_async_callback(self._responder.stop)
                except OSError as error:
                    _log.error("probes are not answered: port %d: %s", self._responder.port, error)
            await self._prober.run()
            await asyncio.Event().wait()
