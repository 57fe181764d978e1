"""Identity may take its time: who has a token under a key that is known does not wait for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import httpx
import pytest
from joserfc.jwk import OKPKey

from meridian.clock import VirtualClock
from services.gateway.auth import KeyCache
from tests.harness import PATIENCE_S

KEY = OKPKey.generate_key("Ed25519", {"kid": "k"})
MAX_AGE_S = 60.0


@pytest.fixture
def identity() -> Iterator[tuple[str, Event, Event]]:
    """Answers at once, and from then on when it is let; tells when it was asked again."""
    asked, let = Event(), Event()
    answered: list[int] = []

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if answered:
                asked.set()
                let.wait()
            answered.append(1)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"keys": [{**KEY.as_dict(private=False), "kid": "k"}]}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Keys) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked, let
        let.set()
        server.shutdown()
        thread.join()


async def test_one_request_waits_for_identity_and_not_all(identity: tuple[str, Event, Event]) -> None:
    url, asked, let = identity
    clock = VirtualClock()
    async with httpx.AsyncClient(timeout=2 * PATIENCE_S) as http:
        keys = KeyCache(http, url, clock, MAX_AGE_S)
        assert await keys.key("k") is not None
        clock.advance(MAX_AGE_S + 1)
        waiting = asyncio.create_task(keys.key("k"))
        assert await asyncio.to_thread(asked.wait, PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            assert await keys.key("k") is not None
        assert not waiting.done()
        let.set()
        assert await waiting is not None
