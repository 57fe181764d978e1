"""Where the public data sets lie that some benchmarks run on."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """``--data FOLDER``: by default the folder that MERIDIAN_DATA names, otherwise it must be given."""
    named = os.environ.get("MERIDIAN_DATA")
    parser.add_argument("--data", type=Path, default=named, required=named is None, help="folder of public data sets")
