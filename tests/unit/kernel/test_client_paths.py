"""What the client is given as a name stays one step of the path, whatever characters it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from meridian.client import Client


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """Answers everything with an empty object; and what was asked for."""
    asked: list[str] = []

    class Echo(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as http:
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", asked
        http.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("ask", "path"),
    [
        (lambda client: client.node("rack#1"), "/v1/nodes/rack%231"),
        (lambda client: client.kill_node("rack/1?x"), "/v1/nodes/rack%2F1%3Fx/kill"),
        (lambda client: client.node_state("a b"), "/v1/nodes/a%20b/state"),
        (lambda client: client.job("a/../b"), "/v1/jobs/a%2F..%2Fb"),
        (lambda client: client.cancel("j#1"), "/v1/jobs/j%231/cancel"),
        (lambda client: client.trace("j?1"), "/v1/jobs/j%3F1/trace"),
        (lambda client: client.explanation("j%1"), "/v1/jobs/j%251/explanation"),
        (lambda client: client.policy_version("v#1"), "/v1/policy/versions/v%231"),
    ],
)
def test_a_name_is_one_step(server: tuple[str, list[str]], ask: Callable[[Client], object], path: str) -> None:
    url, asked = server
    with Client(url, token="t") as client:
        ask(client)
    assert [one.partition("?")[0] for one in asked] == [path]
