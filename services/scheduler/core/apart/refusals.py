"""Who was refused by whom, and when a unit may be asked for again; see `dispatching` for the rules."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from services.scheduler.core.apart.rounds import Asked, Link
from services.scheduler.core.pending import Pending
from services.scheduler.core.state import UnitKey
from services.scheduler.core.two_level import DomainSummary

_SPLIT_WAIT_S = 0.05
"""How long the first wait of a unit is that was refused a part, at least; it doubles up to 64 times of it."""


class Refusals:
    """Refusals of the rounds that go on (``twice``: units that were refused again), and what outlives them: waits of units that were
    refused a part, refusals of domains with a scheduler of their own, and the last word of each domain about a unit."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._excluded: dict[UnitKey, frozenset[str]] = {}
        self._twice: set[UnitKey] = set()
        self._why: dict[UnitKey, str] = {}
        self._splits: dict[UnitKey, int] = {}
        self._resting: dict[UnitKey, float] = {}
        self._told_off: dict[UnitKey, dict[str, tuple[int, str]]] = {}
        self._last: dict[UnitKey, dict[str, str]] = {}

    # -- what happens --------------------------------------------------------------------------------------------------

    def refused(self, asked: Asked) -> None:
        """All parts of a unit were answered, and not all granted."""
        key = asked.name.key
        if len(asked.parts) > 1:
            self._splits[key] = self._splits.get(key, 0) + 1
            self._resting[key] = 0.0
        if key in self._excluded:
            self._twice.add(key)
        self._excluded[key] = self._excluded.get(key, frozenset()) | asked.refused.keys()
        self._last.setdefault(key, {}).update(asked.refused)
        self._why[key] = "; ".join(f"{name}: {reason}" for name, reason in asked.refused.items())

    def told_off(self, key: UnitKey, name: str, sequence: int, reason: str) -> None:
        """A domain with a scheduler of its own chose not to take a unit, when its summary had this sequence."""
        self._told_off.setdefault(key, {})[name] = sequence, reason

    def granted(self, key: UnitKey) -> None:
        """The unit is carried out."""
        self._last.pop(key, None)

    def rounds_over(self) -> None:
        """Nothing more can be asked now."""
        self._excluded.clear()
        self._twice.clear()
        self._why.clear()

    def begin_round(
        self, pending: Pending, told: Mapping[str, DomainSummary], links: Mapping[str, Link], now_s: float
    ) -> None:
        """Forget what does not wait any more and what domains have changed since. Who was refused a part rests from now on; who
        has rested may ask again."""
        for key in [key for key in self._last if key not in pending]:
            del self._last[key]
        for key, said in list(self._told_off.items()):
            if key not in pending:
                del self._told_off[key]
                continue
            for name, (sequence, _) in list(said.items()):
                if told[name].sequence != sequence or not links[name].own_scheduler:
                    del said[name]
        for key, until_s in list(self._resting.items()):
            if key not in pending:
                del self._resting[key]
                self._splits.pop(key, None)
            elif until_s == 0.0:
                times = self._splits[key]
                part = zlib.crc32(f"{self._shard} {key} {times}".encode()) / 2**32
                self._resting[key] = now_s + _SPLIT_WAIT_S * 2.0 ** min(times - 1, 6) * (1.0 + part)
            elif until_s <= now_s:
                del self._resting[key]

    # -- what follows --------------------------------------------------------------------------------------------------

    @property
    def some(self) -> bool:
        """Whether somebody was refused in the rounds that go on."""
        return bool(self._excluded)

    @property
    def rested_s(self) -> list[float]:
        """When units that rest may ask again."""
        return list(self._resting.values())

    @property
    def not_asked(self) -> set[UnitKey]:
        """Units that are not asked for in this round."""
        return self._twice | self._resting.keys()

    @property
    def excluded(self) -> dict[UnitKey, frozenset[str]]:
        """Domains that a unit is not asked of: they refused it in these rounds, or chose not to take it and have not changed since."""
        found = dict(self._excluded)
        for key, said in self._told_off.items():
            if said:
                found[key] = found.get(key, frozenset()) | said.keys()
        return found

    def why(self, key: UnitKey) -> str:
        """What domains said of a unit in these rounds, or still say; empty when nothing."""
        said = self._told_off.get(key, {})
        return self._why.get(key) or "; ".join(f"{name}: {reason}" for name, (_, reason) in said.items())

    def last(self, key: UnitKey) -> Mapping[str, str]:
        """The last refusal of each domain that a unit was asked of."""
        return self._last.get(key, {})
