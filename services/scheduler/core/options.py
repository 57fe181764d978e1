"""Options of plugins, as a policy gives them: checked by name and range before a plugin sees them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from meridian.errors import MeridianError
from services.scheduler.core.errors import PolicyError


def numbers_of(plugin: str, options: Mapping[str, Any], **least: float) -> dict[str, float]:
    """The numeric options of a plugin; ``least`` names those it knows with their least value.

    PolicyError names an option that is unknown, no finite number, or too small.
    """
    refuse_unknown(plugin, options, least)
    found: dict[str, float] = {}
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise PolicyError(f"options.{plugin}.{name}: a finite number is wanted, not {value!r}")
        if value < least[name]:
            raise PolicyError(f"options.{plugin}.{name}: must be at least {least[name]:g}, not {value:g}")
        found[name] = float(value)
    return found


def refuse_unknown(plugin: str, options: Iterable[str], known: Iterable[str]) -> None:
    """PolicyError when there is an option that the plugin does not know."""
    names = set(known)
    for name in options:
        if name not in names:
            allowed = f"known are {', '.join(sorted(names))}" if names else "it has none"
            raise PolicyError(f"options.{plugin}.{name}: unknown option; {allowed}")


def configured(plugin: Any, options: Mapping[str, Any] | None) -> Any:
    """The plugin with the options of a policy; PolicyError when it has none to set, or fails with them."""
    if not options:
        return plugin
    configure = getattr(plugin, "configured", None)
    if configure is None:
        refuse_unknown(plugin.name, options, ())
        return plugin
    try:
        return configure(options)
    except MeridianError:
        raise
    except Exception as error:
        # Plugins may be anybody's code.
        raise PolicyError(
            f"options.{plugin.name}: the plugin fails with them: {type(error).__name__}: {error}"
        ) from error
