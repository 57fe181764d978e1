"""A token issuer with a key of its own, whose JWKS a real HTTP server publishes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwt
from joserfc.jwk import OKPKey


@dataclass
class Issuer:
    """Signs tokens as identity does; ``answers`` are what the server says to other paths."""

    url: str = ""
    keys: list[OKPKey] = field(default_factory=list)
    answers: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    down: bool = False
    time_s: Callable[[], float] = time.time

    def add_key(self, kid: str) -> OKPKey:
        key = OKPKey.generate_key("Ed25519", parameters={"kid": kid, "use": "sig", "alg": "EdDSA"})
        self.keys.append(key)
        return key

    def token(
        self,
        scope: str = "jobs:read jobs:write resources:read",
        tenant: str = "tenant-a",
        key: OKPKey | None = None,
        header: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """A token as identity issues it; a claim of None is left out."""
        key = key or self.keys[-1]
        now = int(self.time_s())
        body = {
            "iss": "meridian", "sub": f"client-of-{tenant}", "tenant": tenant, "scope": scope, "aud": "meridian",
            "jti": f"tok-{tenant}-{time.monotonic_ns()}", "iat": now, "exp": now + 600, **claims,
        }  # fmt: skip
        body = {name: value for name, value in body.items() if value is not None}
        return jwt.encode({"alg": "EdDSA", "kid": key.kid, **(header or {})}, body, key, algorithms=["EdDSA"])

    def headers(self, *args: Any, **kwargs: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(*args, **kwargs)}"}


@contextmanager
def serving() -> Iterator[Issuer]:
    """An issuer with one key, published until the block ends."""
    issuer = Issuer()
    issuer.add_key("key-1")

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            path = self.path.split("?")[0]
            headers = {name.lower(): value for name, value in self.headers.items()}
            issuer.requests.append((self.command, self.path, headers, body))
            if issuer.down:
                status, answer = 500, {"detail": "down"}
            elif path == "/.well-known/jwks.json":
                status, answer = 200, {"keys": [key.as_dict(private=False) for key in issuer.keys]}
            else:
                status, answer = issuer.answers.get((self.command, path), (404, {"detail": "nothing here"}))
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_DELETE = _answer

        def log_message(self, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
