"""A fact: one quantity, every statement about it, and which one is used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Tier(StrEnum):
    """How good the evidence of a statement is, best first."""

    OFFICIAL = "official"
    """The vendor states it: datasheet, whitepaper, product page, paper."""
    MEASURED = "measured"
    """Somebody measured it and published how. Of a peak it is what was reached, so never more than the peak."""
    ESTIMATED = "estimated"
    """Derived, copied without a source, or reported by third parties."""


_RANK = {tier: rank for rank, tier in enumerate(Tier)}


@dataclass(frozen=True, slots=True)
class Statement:
    """What one source says."""

    value: float
    tier: Tier
    source: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A quantity in ``unit``; ``statements`` are ordered, the first is the one in use."""

    name: str
    unit: str
    statements: tuple[Statement, ...]

    @classmethod
    def of(cls, name: str, unit: str, statements: Iterable[Statement]) -> Fact:
        """The fact that rests on ``statements``: the best tier is used, within a tier the one listed first."""
        return cls(name, unit, tuple(sorted(statements, key=lambda statement: _RANK[statement.tier])))

    @property
    def value(self) -> float:
        """The value in use."""
        return self.statements[0].value

    @property
    def tier(self) -> Tier:
        """The evidence of the value in use."""
        return self.statements[0].tier

    @property
    def disagreement(self) -> float:
        """Greatest over smallest value stated; 1 when all agree."""
        values = [statement.value for statement in self.statements]
        return max(values) / min(values)

    @property
    def why(self) -> str:
        """Why the value in use is used."""
        used, others = self.statements[0], self.statements[1:]
        if not others:
            return "the only statement"
        if all(_RANK[other.tier] > _RANK[used.tier] for other in others):
            return f"{used.tier} goes before {others[0].tier}"
        return f"listed first among {used.tier} statements"
