"""The public data sets of the tests marked ``external``, below the folder that MERIDIAN_DATA names.

Without the variable `tests/conftest.py` skips those tests, all for this one reason. With it a file that is missing is an
error: a test that asked for data and did not get it has shown nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "MERIDIAN_DATA"
ABSENT = f"{VARIABLE} does not name the folder of public data sets"


def is_named() -> bool:
    """Whether there is a folder to look in."""
    return bool(os.environ.get(VARIABLE))


def public_data(*parts: str) -> Path:
    """The file or folder ``parts`` of the data sets; FileNotFoundError when it is not there."""
    path = Path(os.environ[VARIABLE], *parts)
    if not path.exists():
        raise FileNotFoundError(f"{path} is not among the public data sets")
    return path
