"""`python -m agent.benchmark`: one probe run in a process of its own, its result as JSON on stdout.

The agent starts it on an idle node. It ends at once when its stdin is closed, so that nothing runs on after the agent.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import uuid
from datetime import UTC, datetime

from agent.benchmark import program
from agent.benchmark.backends import backend


def main() -> int:
    """Measure and print; exit status 1 and the reason on stderr when the device is not there."""
    parser = argparse.ArgumentParser(prog="python -m agent.benchmark")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--sizes", choices=["full", "quick", "tiny"], default="full")
    parser.add_argument("--nice", type=int, default=0)
    options = parser.parse_args()
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    os.nice(options.nice)
    found = backend(options.device)
    if isinstance(found, str):
        print(found, file=sys.stderr)
        return 1
    sizes = program.sizes_of(options.sizes, cuda=found.name == "cuda")
    values = program.run(found, sizes, time.perf_counter)
    now = datetime.now(UTC).isoformat()
    print(json.dumps(program.body(f"probe-{uuid.uuid4()}", found.chip(), found.software, now, sizes, values)))
    return 0


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
