"""The client follows a stream over connections that break, behind what it has seen and behind where it began."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from meridian.client import ApiError, Client

EVENT = {"id": 9, "type": "JobQueued", "data": {"reason": "a\u2028b\u0085c"}}
"""Characters that end lines for many, but in a stream do not."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[str | None]]]:
    """A stream that breaks once before its first event; and the positions asked for."""
    asked: list[str | None] = []

    class Stream(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers.get("last-event-id"))
            if len(asked) == 3:
                self.send_response(503)
                self.send_header("content-length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b": listening\nid: 7\n\n")
            if len(asked) > 1:
                text = json.dumps(EVENT, ensure_ascii=False)
                self.wfile.write(f"event: JobQueued\r\nid: 9\ndata: {text}\n\n".encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Stream) as http:
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", asked
        http.shutdown()
        thread.join()


def test_a_connection_that_breaks_before_the_first_event_loses_none(server: tuple[str, list[str | None]]) -> None:
    url, asked = server
    with Client(url, token="t") as client:
        events = client.events()
        assert next(events) == EVENT
        assert next(events) == EVENT, "the stream broke again, and the gateway was away for a moment"
    assert asked == [None, "7", "9", "9"]


def test_an_answer_that_is_no_stream_ends_the_first_try(server: tuple[str, list[str | None]]) -> None:
    url, asked = server
    asked += [None, None]
    with Client(url, token="t") as client, pytest.raises(ApiError):
        next(client.events())
