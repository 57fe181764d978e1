"""What Slurm's programs print, read: queue, nodes, what a job was given, why it is not to be had. Text to values, pure.

Text and not JSON: ``squeue -o`` and ``scontrol -o`` have read the same since long before 22.05, while ``--json`` has changed its
form with every release and is missing from half of 22.05's programs. Sources: squeue(1), scontrol(1), "Job State Codes" and "Job
Reason Codes" there. Times are asked for with ``TZ=UTC``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from agent.collectors.slurm import gres_counts
from agent.collectors.unknown import UnknownError
from agent.engines.slurm.allocation import hosts_of

SEPARATOR = "\x1f"
QUEUE_FORMAT = SEPARATOR.join(("%A", "%T", "%S", "%N", "%j", "%r"))
"""Job, state, start (of a pending one: as expected), nodes, name, reason."""
ACCELERATOR_GRES = frozenset({"gpu", "npu", "mlu", "dcu"})

WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
    }
)  # fmt: skip
# Slurm has given a node up that is DOWN; one that only does not answer (yet) may come back, and what runs there does run.
_DEAD_NODE = frozenset({"DOWN", "FAIL", "ERROR", "POWERED_DOWN", "FUTURE"})
_CLOSED_NODE = frozenset(
    {
        "DRAIN", "DRAINED", "DRAINING", "MAINT", "FAILING", "REBOOT_ISSUED", "REBOOT_REQUESTED", "RESERVED", "BLOCKED",
        "NOT_RESPONDING", "UNKNOWN", "POWERING_DOWN",
    }
)  # fmt: skip
# A job that waits for one of these waits for ever, as it is.
_NEVER = re.compile(
    r"Partition(TimeLimit|NodeLimit|Config|Down|Inactive)|BadConstraints|JobHeld(Admin|User)|Invalid(Account|QOS)"
    r"|(Account|QOS)NotAllowed|ReservationDeleted|DependencyNeverSatisfied|JobLaunchFailure|SystemFailure"
    r"|\w*Max\w*(PerJob|PerNode)\w*|(Assoc|QOS)\w*MinG?\w*|\w*MaxWall\w*|(Assoc|QOS)GrpWall\w*"
)
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9:/]*)=(\S*)")
_WHOLE = re.compile(r"[0-9]{1,18}")
MAX_NUMBERED = 100_000
"""Accelerators of a node, or nodes of a job, in one text: more are those of a garbled answer."""
_INDICES = re.compile(r"(?P<name>[\w.+-]+)(?::[\w.+-]+)*?:\d+\(IDX:(?P<indices>[^)]*)\)")
_NODE_PART = re.compile(r"Nodes=(\S+) CPU_IDs=\S+ Mem=\d+(?: GRES=(\S*))?")


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job as the queue shows it. ``starts_at``: since when it runs, or when it is expected to; None: not known."""

    number: int
    state: str
    reason: str = ""
    starts_at: datetime | None = None
    nodes: tuple[str, ...] = ()
    name: str = ""

    @property
    def waits(self) -> bool:
        """It has no nodes yet, or they are being made ready."""
        return self.state in WAITING

    @property
    def ended(self) -> bool:
        """Nothing of it runs any more."""
        return self.state in ENDED

    @property
    def hopeless(self) -> bool:
        """It waits for what will not come without somebody changing it."""
        return self.waits and _NEVER.fullmatch(self.reason) is not None


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as ``scontrol show node -d`` shows it; ``booted_at_s`` 0: not known. ``gres``, ``used``: accelerators by type.

    Without ``amounts_known`` the numbers could not be read, and stand for nothing.
    """

    name: str
    states: frozenset[str]
    cpus: int
    cpus_in_use: int
    memory_mib: int
    memory_in_use_mib: int
    gres: Mapping[str, int]
    used: Mapping[str, int]
    indices_in_use: frozenset[int]
    booted_at_s: int
    amounts_known: bool = True

    @property
    def lives(self) -> bool:
        """Slurm has not given it up."""
        return not self.states & _DEAD_NODE

    @property
    def takes_jobs(self) -> bool:
        """It answers, new jobs may begin there now, and what they find there is known."""
        return self.lives and self.amounts_known and not self.states & _CLOSED_NODE


def queue_of(text: str) -> tuple[dict[int, QueuedJob], tuple[str, ...]]:
    """Jobs by number, of ``squeue -o QUEUE_FORMAT``, and the lines that are not of that form.

    The name is free text: it may hold separators, and one with line breaks is several lines. Of a line in which only name,
    reason or nodes cannot be read the job is known without them; of others nothing.

    :raises ValueError: no line is of that form, though there are some.
    """
    jobs: dict[int, QueuedJob] = {}
    odd: list[str] = []
    lines = [line for line in text.split("\n") if line]
    for line in lines:
        number, *words = line.split(SEPARATOR, 4)
        if len(words) != 4 or not _WHOLE.fullmatch(number.strip()):
            odd.append(line)
            continue
        state, start, nodes = (word.strip() for word in words[:3])
        name, ends, reason = words[3].rpartition(SEPARATOR)
        try:
            hosts = hosts_of(nodes)
        except ValueError:
            hosts, ends = (), ""
        if not ends:
            odd.append(line)
        reason = reason.strip() if ends else ""
        jobs[int(number)] = QueuedJob(
            int(number), state, "" if reason == "None" else reason, time_of(start), hosts, name
        )
    if lines and not jobs:
        raise ValueError(f"squeue: {lines[0][:80]!r} is not of the form that was asked for")
    return jobs, tuple(odd)


def time_of(text: str) -> datetime | None:
    """``2026-11-22T01:42:01`` (asked for in UTC); None: ``N/A``, ``Unknown``, ``None``."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


def nodes_of(text: str) -> tuple[dict[str, SlurmNode], dict[str, str]]:
    """Nodes by name, of ``scontrol show node -d -o``: one line each. And what cannot be read with its reason, by the node or by the
    line that is none: of a node without readable amounts its state is known, nothing of others is lost.

    :raises ValueError: no line is a node, though there are some.
    """
    found: dict[str, SlurmNode] = {}
    odd: dict[str, str] = {}
    lines = [line for line in text.split("\n") if line.strip()]
    for line in lines:
        fields: dict[str, str] = {}
        for field, value in _FIELD.findall(line):
            fields.setdefault(field, value)  # free words, which may look like fields, come last
        name = fields.get("NodeName", "")
        if not name:
            odd[line] = "is no node"
            continue
        try:
            found[name] = _node(name, fields)
        except (ValueError, UnknownError) as error:
            odd[name] = str(error)
            states = {key: value for key, value in fields.items() if key in {"State", "BootTime"}}
            found[name] = replace(_node(name, states), amounts_known=False)
    if lines and not found:
        raise ValueError(f"scontrol show node: {lines[0][:80]!r} is no node")
    return found, odd


def _node(name: str, fields: Mapping[str, str]) -> SlurmNode:
    booted = time_of(fields.get("BootTime", ""))
    used = fields.get("GresUsed", "")
    return SlurmNode(
        name,
        states=_states(fields.get("State", "")),
        cpus=_whole(fields.get("CPUEfctv") or fields.get("CPUTot") or "0"),
        cpus_in_use=_whole(fields.get("CPUAlloc") or "0"),
        memory_mib=_whole(fields.get("RealMemory") or "0"),
        memory_in_use_mib=_whole(fields.get("AllocMem") or "0"),
        gres=_by_type(fields.get("Gres", "")),
        used=_by_type(used),
        indices_in_use=frozenset(indices_of(used)),
        booted_at_s=int(booted.timestamp()) if booted is not None else 0,
    )


def given_of(text: str) -> dict[str, tuple[int, ...] | None]:
    """Indices of accelerators by node, of ``scontrol show job -d -o``; None: some were given, and it does not number them.

    :raises ValueError: an index that is none.
    :raises UnknownError: a GRES text that cannot be read.
    """
    given: dict[str, tuple[int, ...] | None] = {}
    for nodes, gres in _NODE_PART.findall(text):
        indices = indices_of(gres)
        counted = sum(_by_type(gres).values())
        for node in hosts_of(nodes):
            given[node] = indices if len(indices) == counted else None
    return given


def indices_of(gres: str) -> tuple[int, ...]:
    """Numbers of the accelerators that a text such as ``gpu:h100:3(IDX:0-1,3)`` names, in order.

    :raises ValueError: a range that is none, or names more than `MAX_NUMBERED`.
    """
    found: set[int] = set()
    for item in _INDICES.finditer(gres):
        if item["name"] in ACCELERATOR_GRES and item["indices"] not in {"N/A", ""}:
            for part in item["indices"].split(","):
                low, _, high = part.partition("-")
                first, last = _whole(low), _whole(high or low)
                if last - first >= MAX_NUMBERED:
                    raise ValueError(f"{gres[:80]!r} names more than {MAX_NUMBERED} accelerators")
                found.update(range(first, last + 1))
    return tuple(sorted(found))


def tasks_of(text: str) -> tuple[int, ...]:
    """Tasks on each node, of ``SLURM_TASKS_PER_NODE``: ``2(x3),1`` is 2, 2, 2, 1.

    :raises ValueError: it has another form.
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?", part)
        if match is None:
            raise ValueError(f"SLURM_TASKS_PER_NODE: {text[:80]!r} cannot be read")
        if len(found) + int(match[2] or 1) > MAX_NUMBERED:
            raise ValueError(f"SLURM_TASKS_PER_NODE: {text[:80]!r} has more than {MAX_NUMBERED} nodes")
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found)


def refusal_of(text: str) -> str:
    """The reason in what ``sbatch`` prints when it takes a job not."""
    lines = [
        line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in text.splitlines() if line.strip()
    ]
    last = lines[-1] if lines else "sbatch failed and said nothing"
    return last.removeprefix("Batch job submission failed: ")


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no number of Slurm's")
    return int(text)


def _states(text: str) -> frozenset[str]:
    """``IDLE*+DRAIN`` as its words; ``*`` says that the node does not answer."""
    words = {part.strip("*~#!%$@^-") for part in text.split("+")}
    return frozenset(words - {""} | ({"NOT_RESPONDING"} if "*" in text else set()))


def _by_type(text: str) -> dict[str, int]:
    plain = "" if text == "(null)" else re.sub(r"\([^)]*\)", "", text)
    return {kind: count for (name, kind), count in gres_counts(plain).items() if name in ACCELERATOR_GRES}
