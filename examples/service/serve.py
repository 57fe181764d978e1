"""A long-running service: greedy completions from the transformer of ../train_transformer, over HTTP on loopback.

It serves the checkpoint given by --checkpoint. Without one it trains a small model first; that model is kept in
MERIDIAN_CHECKPOINT_DIR, so a restarted replica serves at once. /health tells which of the two is going on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train_transformer"))

import numpy as np  # noqa: E402
from checkpoints import Checkpoint, CheckpointInvalidError, find_checkpoint, load_checkpoint  # noqa: E402
from launch import EXIT_TERMINATED, Launch, StopRequest  # noqa: E402
from training import IncompatibleCheckpointError, Options, Run  # noqa: E402
from transformer import TransformerConfig, named_views, next_token_logits  # noqa: E402

_HOST = "127.0.0.1"
_MAX_PROMPT_BYTES = 4096
_MAX_COMPLETION_BYTES = 256
_DEFAULT_COMPLETION_BYTES = 64
_POLL_S = 0.1


class RequestError(Exception):
    """The request cannot be answered as it stands; the message goes to the caller."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Model:
    """A trained transformer that continues text."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.step = checkpoint.step
        self._config = TransformerConfig(**checkpoint.header["recipe"]["model"])
        self._parameters = named_views(checkpoint.arrays["parameters"], self._config)

    def complete(self, prompt: bytes, length_bytes: int) -> bytes:
        """The `length_bytes` most likely bytes after the prompt, one by one; only the last context is seen."""
        text = list(prompt)
        for _ in range(length_bytes):
            context = np.array(text[-self._config.sequence :], dtype=np.int64)
            text.append(int(next_token_logits(self._parameters, self._config, context).argmax()))
        return bytes(text[len(prompt) :])


@dataclass(slots=True)
class Endpoints:
    """What the two addresses answer. `model` is None until there is something to serve."""

    model: Model | None = field(default=None)

    def answer(self, target: str) -> dict[str, Any]:
        """Raises RequestError."""
        url = urlsplit(target)
        if url.path == "/health":
            if self.model is None:
                raise RequestError(503, "the model is being trained")
            return {"status": "ready", "step": self.model.step}
        if url.path == "/complete":
            return self._complete(parse_qs(url.query, keep_blank_values=True))
        raise RequestError(404, f"no such address: {url.path}; there are /health and /complete?prompt=...")

    def _complete(self, query: dict[str, list[str]]) -> dict[str, Any]:
        prompt = query.get("prompt", [""])[0]
        encoded = prompt.encode(errors="replace")
        if not 1 <= len(encoded) <= _MAX_PROMPT_BYTES:
            raise RequestError(400, f"prompt: must be 1 to {_MAX_PROMPT_BYTES} bytes long, not {len(encoded)}")
        wanted = query.get("max_bytes", [str(_DEFAULT_COMPLETION_BYTES)])[0]
        if not (re.fullmatch(r"[0-9]{1,9}", wanted) and 1 <= int(wanted) <= _MAX_COMPLETION_BYTES):
            raise RequestError(400, f"max_bytes: must be a whole number from 1 to {_MAX_COMPLETION_BYTES}")
        if self.model is None:
            raise RequestError(503, "the model is being trained")
        completion = self.model.complete(encoded, int(wanted))
        return {"prompt": prompt, "completion": completion.decode(errors="replace"), "step": self.model.step}


def start_server(endpoints: Endpoints, port: int) -> ThreadingHTTPServer:
    """Answer on loopback from a thread of its own; port 0 takes any free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                status, content = 200, endpoints.answer(self.path)
            except RequestError as error:
                status, content = error.status, {"status": error.status, "detail": str(error)}
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if status == 200 else "application/problem+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer((_HOST, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server


def obtain_model(checkpoint: Path | None, steps: int, stop: StopRequest) -> Model | None:
    """The model of `checkpoint`, or one trained for `steps`; None when told to stop before it was ready.

    Raises CheckpointInvalidError, IncompatibleCheckpointError.
    """
    if checkpoint is not None:
        return Model(load_checkpoint(checkpoint))
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(os.environ.get("MERIDIAN_CHECKPOINT_DIR") or scratch)
        options = Options(
            steps=steps,
            layers=2,
            hidden=64,
            heads=4,
            sequence=64,
            batch=16,
            learning_rate=4e-3,
            seed=0,
            checkpoint_every=50,
            keep_checkpoints=2,
            step_time_s=0.0,
            text=None,
        )
        alone = Launch(0, 1, _HOST, 0, os.environ.get("MERIDIAN_RUN_ID", ""), 0, directory, restore_from=None)
        if Run(options, alone, stop).execute() != 0:
            return None
        trained = find_checkpoint(None, directory, print)
        assert trained is not None
        return Model(trained)


def main() -> int:
    """Exit codes: 143 stopped by SIGTERM, 2 a checkpoint that cannot be served."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=None, help="a file written by train_transformer")
    parser.add_argument("--steps", type=int, default=150, help="how long to train when there is no checkpoint")
    arguments = parser.parse_args()
    stop = StopRequest()
    stop.listen()
    endpoints = Endpoints()
    server = start_server(endpoints, int(os.environ.get("MERIDIAN_SERVICE_PORT") or 0))
    print(f"listening on http://{_HOST}:{server.server_port}", flush=True)
    try:
        endpoints.model = obtain_model(arguments.checkpoint, arguments.steps, stop)
        if endpoints.model is not None:
            print(f"serving the model of step {endpoints.model.step}", flush=True)
        while not stop.requested:
            time.sleep(_POLL_S)
    except (CheckpointInvalidError, IncompatibleCheckpointError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    finally:
        server.shutdown()
        server.server_close()
    return EXIT_TERMINATED


if __name__ == "__main__":
    sys.exit(main())
