"""Values of a policy file: each is what is wanted there, or is said to be wrong with its place."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection

from services.scheduler.policy.marked_yaml import Marked, Problems

LARGEST = 2**53
Values = dict[str, Marked]


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """There is nothing of this kind and name; which was meant, or which there are."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"there is no {kind} {name!r}; did you mean {near[0]!r}?"
    return f"there is no {kind} {name!r}; known are {', '.join(sorted(known)) or 'none'}"


class ValueReader:
    """Reads values; what is wrong is added to ``problems``, and something of the wanted kind is given in its place."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems

    def mapping(self, at: Marked, known: Collection[str] | None = None) -> Values:
        """The entries of a mapping, of those ``known`` where only they make sense; empty where it is none."""
        if not isinstance(at.value, dict):
            self.wrong(at, "a mapping")
            return {}
        found: Values = at.value
        if known is None:
            return found
        for name in found.keys() - set(known):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            self.problems.add(found[name], f"unknown key; {hint}")
        return {name: item for name, item in found.items() if name in known}

    def wrong(self, at: Marked, wanted: str) -> None:
        """Something else is ``wanted`` there."""
        shown = {dict: "a mapping", list: "a list", type(None): "nothing"}.get(type(at.value)) or repr(at.value)
        self.problems.add(at, f"{wanted} is wanted, not {shown}")

    def text(self, at: Marked) -> str:
        """A text that is not empty; else an empty one."""
        if isinstance(at.value, str) and at.value:
            return at.value
        self.wrong(at, "a text")
        return ""

    def finite(self, at: Marked, *, above: float | None = None, least: float = 0.0) -> float:
        """A number ``above`` one, or of at ``least`` one; 1 where it is none."""
        value = at.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(at, "a number")
        elif isinstance(value, float) and not math.isfinite(value):
            self.problems.add(at, f"a finite number is wanted, not {value!r}")
        elif abs(value) > LARGEST:
            self.problems.add(at, f"must be at most {LARGEST:g}, not {value!r}")
        elif above is not None and value <= above:
            self.problems.add(at, f"must be above {above:g}, not {value!r}")
        elif value < least:
            self.problems.add(at, f"must be at least {least:g}, not {value!r}")
        else:
            return float(value)
        return 1.0

    def integer(self, at: Marked) -> int:
        """A whole number of at least 0; 0 where it is none."""
        value = at.value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
            self.wrong(at, "a whole number of at least 0")
            return 0
        return value
