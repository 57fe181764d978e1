"""`python -m agent --config FILE.yaml`: run the agent of one domain until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from agent.app import Agent
from agent.settings import AgentSettings, read_settings
from meridian.errors import MeridianError
from meridian.observability import configure_logging, logged_as


async def _serve(settings: AgentSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Agent(settings).run(stop)


def main() -> int:
    """Exit status 0 after a signal, 2 for a wrong configuration, 1 when a part failed."""
    parser = argparse.ArgumentParser(prog="python -m agent", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        settings = read_settings(arguments.config)
    except MeridianError as error:
        print(f"{error.title}: {error.detail}", file=sys.stderr)
        return 2
    configure_logging(settings.log_level)
    with logged_as(f"agent-{settings.domain.domain_id}"):
        try:
            asyncio.run(_serve(settings))
        except Exception:  # the process boundary: whatever it was, it is logged and the process ends
            logging.getLogger(__name__).exception("the agent failed")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
