"""Numbers of options that have an end: ``nan`` and ``inf`` pass every comparison of a range, and neither JSON nor a time knows them."""

from __future__ import annotations

import math
from typing import Any

import click


class Amount(click.FloatRange):
    """A finite number within bounds (those of `click.FloatRange`); without any, not below 0."""

    def __init__(self, least: float = 0, most: float | None = None, *, min_open: bool = False) -> None:
        super().__init__(least, most, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; usage error when it is none, has no end, or is outside of the bounds."""
        found = float(click.FLOAT.convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return float(super().convert(value, param, ctx))
