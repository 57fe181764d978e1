"""Run the broker as a process: ``python -m meridian.embedded.broker --data-dir DIR``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import resource
import signal
from collections.abc import Coroutine
from pathlib import Path

from meridian.embedded.broker.broker import Broker, BrokerSettings
from meridian.errors import MeridianError


def main() -> int:
    """Parse the command line and serve until SIGTERM or SIGINT; returns the exit code."""
    options = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _raise_file_limit()
    settings = BrokerSettings(
        advertised_host=options.advertised_host,
        flush_interval_s=0.0 if options.flush == "always" else options.flush_interval_ms / 1000,
        default_partitions=options.default_partitions,
        auto_create_topics=not options.no_auto_create_topics,
        initial_rebalance_delay_s=options.initial_rebalance_delay_ms / 1000,
    )
    broker = Broker(options.data_dir, options.host, options.port, settings)
    try:
        _run(_serve(broker, options.port_file))
    except MeridianError as error:
        logging.getLogger(__name__).error("%s", error.detail)  # noqa: TRY400 - expected, its text says all
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m meridian.embedded.broker", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--data-dir", type=Path, required=True, help="where topics and groups are kept")
    parser.add_argument("--port-file", type=Path, help="written with the port once the broker listens")
    parser.add_argument(
        "--advertised-host",
        help="host that clients are told to connect to (default: --host; needed if that is 0.0.0.0)",
    )
    parser.add_argument("--flush", choices=["interval", "always"], default="interval", help="when to sync to disk")
    parser.add_argument("--flush-interval-ms", type=int, default=200, help="with --flush interval")
    parser.add_argument("--default-partitions", type=int, default=1, help="of topics created without a number")
    parser.add_argument("--no-auto-create-topics", action="store_true", help="only CreateTopics creates topics")
    parser.add_argument(
        "--initial-rebalance-delay-ms", type=int, default=20, help="wait of an empty group's first join"
    )
    return parser


def _run(serving: Coroutine[object, object, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


async def _serve(broker: Broker, port_file: Path | None) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await broker.start()
    gc.freeze()
    if port_file is not None:
        temporary = port_file.with_suffix(".tmp")
        temporary.write_text(str(broker.port), encoding="ascii")
        temporary.replace(port_file)
    print(f"embedded broker: single node, not for production; listening on {broker.host}:{broker.port}", flush=True)
    await stopped.wait()
    await broker.stop()


def _raise_file_limit() -> None:
    """A partition holds a file open: take as many as the system allows."""
    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    raise SystemExit(main())
