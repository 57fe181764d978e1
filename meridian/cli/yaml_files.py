"""YAML files of users, with errors that name the file."""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import Any, TextIO

import yaml

from meridian import plain_yaml
from meridian.errors import InvalidArgumentError


def read_yaml(file: Path | TextIO) -> Any:
    """What a file says, as JSON can say it: days and times, which YAML knows, are texts.

    :raises InvalidArgumentError: it is no text or no YAML, or holds what JSON has not; names the file and, where YAML says it, the line.
    """
    name = str(file) if isinstance(file, Path) else file.name
    try:
        content = plain_yaml.load(file.read_text(encoding="utf-8") if isinstance(file, Path) else file)
        return _as_json(content, name, "", frozenset())
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"{name} is not a text file in UTF-8") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a day in no calendar, lists in lists without end
        raise InvalidArgumentError(f"{name} is not valid YAML: {error}") from None


def _as_json(value: Any, file: str, place: str, within: frozenset[int]) -> Any:
    """``value`` with texts for days and times; ``within`` are the lists and mappings that hold it, by identity."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | dict):
        if id(value) in within:
            raise InvalidArgumentError(f"{file}: {place}: it holds itself")
        within |= {id(value)}
        if isinstance(value, list):
            return [_as_json(item, file, f"{place}[{number}]", within) for number, item in enumerate(value)]
        return {
            _as_json(key, file, place, within): _as_json(item, file, f"{place}.{key}".removeprefix("."), within)
            for key, item in value.items()
        }
    if (isinstance(value, float) and not math.isfinite(value)) or not isinstance(value, str | int | float | None):
        raise InvalidArgumentError(
            f"{file}: {place or 'it'}: {str(value)[:40]!r} is no text, finite number or word of truth"
        )
    return value
