"""`python -S -E -m agent.node '{"fd": 3, "node": "north/n1", "incarnation": 1, "beat_s": 0.1, "silence_s": 10}'`."""

from __future__ import annotations

import json
import socket
import sys

from agent.node.machine import Machine


def main() -> None:
    """Take the inherited socket and be the machine. Arguments are one JSON object: argparse costs more than the rest."""
    arguments = json.loads(sys.argv[1])
    link = socket.socket(fileno=arguments["fd"])
    link.set_inheritable(False)
    Machine(
        link,
        node_id=arguments["node"],
        incarnation=arguments["incarnation"],
        beat_s=arguments["beat_s"],
        silence_s=arguments["silence_s"],
    ).run()


if __name__ == "__main__":
    main()
