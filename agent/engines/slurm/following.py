"""One run in an allocation as the agent follows it: the files of its steps are read on, and nothing is said twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.engines.local.gang import Cause
from agent.engines.own_scheduler import UnitName
from agent.engines.recorded_runs import Run
from agent.engines.slurm import folder
from agent.engines.slurm.last_signs import LastSign
from agent.node import wire

MOST_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class News:
    """What was new of a run: bytes of each node's events, and each node's beat."""

    events: Mapping[str, bytes]
    beats: Mapping[str, str]


@dataclass(slots=True)
class FollowedRun(Run):
    """A run and how far its files have been read. Times are the loop's."""

    name: UnitName
    job: int
    place: Path
    # Node ids by Slurm's names.
    node_ids: Mapping[str, str]
    began_s: float
    read_bytes: dict[str, int] = field(default_factory=dict)
    # Messages of each node's file that were passed on before an agent that is gone now was killed; they are not passed on again.
    passed: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    decoders: dict[str, wire.LineDecoder] = field(default_factory=dict)
    beats: dict[str, tuple[str, float]] = field(default_factory=dict)
    unsaved: bool = False
    # What ranks said before all of them had begun.
    held: list[tuple[str, wire.Message, bool]] = field(default_factory=list)
    stopping: bool = False
    cancelled: bool = False
    over_s: float | None = None
    slurm_over_s: float | None = None
    # Ranks of a node were ended by their own node's process, and nobody said how.
    gone: bool = False
    # Why it ends, once Slurm has ended its job.
    slurm_cause: Cause | None = None
    # Nodes that were given up though a step of theirs answered.
    unended: tuple[str, ...] = ()

    def read(self) -> News:
        """Read what is new. Blocking."""
        events, beats = {}, {}
        for node in self.node_ids:
            try:
                with (self.place / f"{node}.events").open("rb") as file:
                    file.seek(self.read_bytes.get(node, 0))
                    events[node] = file.read(MOST_READ_BYTES)
            except OSError:
                events[node] = b""
            beats[node] = folder.text_of(self.place / f"{node}.beat")
        return News(events, beats)

    def messages(self, node: str, data: bytes) -> list[tuple[wire.Message, bool]]:
        """Whole messages in new bytes of a node's file, and whether each is news.

        :raises WireError: the file is not what a step writes.
        """
        self.read_bytes[node] = self.read_bytes.get(node, 0) + len(data)
        found = []
        for message in self.decoders.setdefault(node, wire.LineDecoder()).feed(data):
            number = self.seen[node] = self.seen.get(node, 0) + 1
            news = number > self.passed.get(node, 0)
            self.unsaved = self.unsaved or news
            found.append((message, news))
        return found

    def save(self) -> None:
        """Write down how far events have been passed on. Blocking."""
        self.unsaved = False
        folder.write_json(self.place / folder.READ, dict(self.seen))

    def sign_of(self, node: str, now_s: float, *, confirmed: bool) -> LastSign:
        """What is known of a node's step; one that nobody has looked at yet may have spoken to an agent before."""
        beat, at_s = self.beats.get(node, ("", self.began_s))
        return LastSign(bool(beat) or node not in self.beats, now_s - at_s, confirmed)

    def silent_since_s(self, node: str, beat: str, now_s: float) -> float:
        """Since when nothing new was seen of a node's step. Of one that has spoken an empty ``beat`` is one that cannot be read."""
        known, at_s = self.beats.get(node, ("", self.began_s))
        if node not in self.beats or (beat and beat != known):
            self.beats[node] = beat, now_s
            return now_s
        return at_s
