"""YAML files of users, with errors that name the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

import yaml

from meridian import plain_yaml
from meridian.errors import InvalidArgumentError


def read_yaml(file: Path | TextIO) -> Any:
    """What a file says.

    :raises InvalidArgumentError: it is no text or no YAML; names the file and, where YAML says it, the line.
    """
    name = str(file) if isinstance(file, Path) else file.name
    try:
        return plain_yaml.load(file.read_text(encoding="utf-8") if isinstance(file, Path) else file)
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"{name} is not a text file in UTF-8") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a day in no calendar, lists in lists without end
        raise InvalidArgumentError(f"{name} is not valid YAML: {error}") from None
