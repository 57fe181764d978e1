"""Reading of nested plugin options: a policy keeps lists and mappings as tuples, so that it can be hashed. Every error is a
PolicyError with the path of the option."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from services.scheduler.core.errors import PolicyError


def mapping_of(path: str, value: Any, known: Iterable[str] | None = None) -> dict[str, Any]:
    """A mapping, or the pairs of one; with ``known`` other names are refused."""
    if isinstance(value, Mapping):
        found = {str(name): item for name, item in value.items()}
    else:
        pairs = _sequence(value)
        if pairs is None or not all(_is_pair(item) for item in pairs):
            raise PolicyError(f"{path}: a mapping is wanted, not {value!r}")
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise PolicyError(f"{path}.{next(name for name in names if names.count(name) > 1)}: is given twice")
    if known is not None:
        names = sorted(known)
        for name in found:
            if name not in names:
                raise PolicyError(f"{path}.{name}: unknown option; known are {', '.join(names)}")
    return found


def list_of(path: str, value: Any) -> list[Any]:
    """A list."""
    found = _sequence(value)
    if found is None:
        raise PolicyError(f"{path}: a list is wanted, not {value!r}")
    return list(found)


def text_of(path: str, value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise PolicyError(f"{path}: a name is wanted, not {value!r}")
    return value


def number_of(path: str, value: Any, least: float = 0.0, above: float = -math.inf, most: float = math.inf) -> float:
    """A finite number from ``least``, greater than ``above``, to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PolicyError(f"{path}: a finite number is wanted, not {value!r}")
    if value <= above:
        raise PolicyError(f"{path}: must be above {above:g}, not {value:g}")
    if value < least:
        raise PolicyError(f"{path}: must be at least {least:g}, not {value:g}")
    if value > most:
        raise PolicyError(f"{path}: must be at most {most:g}, not {value:g}")
    return float(value)


def whole_of(path: str, value: Any, least: int = 0) -> int:
    """A whole number from ``least``."""
    number = number_of(path, value, least)
    if number != int(number):
        raise PolicyError(f"{path}: a whole number is wanted, not {value!r}")
    return int(number)


def flag_of(path: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise PolicyError(f"{path}: true or false is wanted, not {value!r}")
    return value


def numbers_by_name(path: str, value: Any, *, above: float = -math.inf) -> dict[str, float]:
    """A mapping of names to finite numbers of at least 0 (and greater than ``above``)."""
    return {name: number_of(f"{path}.{name}", item, above=above) for name, item in mapping_of(path, value).items()}


def _sequence(value: Any) -> tuple[Any, ...] | list[Any] | None:
    return value if isinstance(value, list | tuple) else None


def _is_pair(item: Any) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str)
