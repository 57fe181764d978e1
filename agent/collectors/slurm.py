"""Slurm's JSON (``sinfo --json``, ``scontrol show nodes --json``, ``squeue --json``, ``sdiag --json``) as readings.

Before Slurm 23.02 ``sinfo`` lists nodes as ``scontrol`` does, since then rows of alike nodes (`slurm_rows`).

The versions of its data parser write a number as it is or as ``{"set": ..., "infinite": ..., "number": ...}``, a state as a
text or a list. Sizes are in MiB. What is allocated comes from GRES strings such as ``gpu:h100:8(S:0-1)``. ``cpu_load`` is not
read: some versions multiply it by 100, and the file does not say which. Slurm: "JSON/YAML output" and gres.conf(5).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from agent.collectors.base import Reading, Source
from agent.collectors.metrics import HEALTH_DEGRADED, HEALTH_FAILED, HEALTH_OK, Metric
from agent.collectors.slurm_rows import nodes_of_rows
from agent.collectors.unknown import UnknownError, UnknownKind

MIB = 2**20
# NO_VAL and INFINITE of 16, 32 and 64 bits (slurm/slurm.h).
_NO_VALUES = frozenset({0xFFFE, 0xFFFF, 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF})
_GRES = re.compile(
    r"(?P<name>[A-Za-z0-9_.+/-]+)(?::(?!(?i:no_consume)(?:[:,(]|$))(?P<type>\(null\)|[A-Za-z0-9_.+/-]+))?(?::(?i:no_consume))?"
    r"(?::(?P<count>[0-9]{1,9})(?P<unit>[KkMmGgTtPp]?))?(?:\([^()]*\))?"
)
_TYPE_IS_COUNT = re.compile(r"[0-9]{1,9}[KkMmGgTtPp]?")
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4, "p": 1024**5}
ACCELERATORS = frozenset({"gpu", "npu", "mlu", "dcu", "gcu", "xpu", "hpu", "tpu"})
_SHARES = frozenset({"shard", "mps"})
_NOT_SAID = (None, "", "N/A", "(null)")
_FAILED = frozenset({"DOWN", "FAIL", "FAILING", "NOT_RESPONDING", "NO_RESPOND", "ERROR", "POWERED_DOWN_FAILED"})
# INVALID_REG: what the node registered with is less than its configuration; it takes no work until that is mended.
_DEGRADED = frozenset({
    "DRAIN", "DRAINED", "DRAINING", "MAINT", "MAINTENANCE", "REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED", "INVALID_REG",
    "INVAL",
})  # fmt: skip
_WELL = frozenset({"IDLE", "MIXED", "ALLOCATED", "ALLOC", "COMPLETING", "RESERVED", "PLANNED", "CLOUD", "DYNAMIC_NORM"})


def is_slurm(content: object) -> bool:
    """Whether a JSON document is one of Slurm's that can be read here."""
    if not isinstance(content, Mapping):
        return False
    if isinstance(content.get("statistics"), Mapping):
        return any(str(key).startswith(("jobs_", "schedule_", "bf_")) for key in content["statistics"])
    meta = content.get("meta")
    named = any(isinstance(content.get(key), list) for key in ("nodes", "jobs", "sinfo"))
    return named and (isinstance(meta, Mapping) or "errors" in content)


def readings_of(content: Mapping[str, Any], cluster: str, now: datetime) -> list[Reading]:
    """Readings of the nodes (by their names) and of the queue (of ``cluster``)."""
    readings: list[Reading] = []
    for key, nodes in (("nodes", _list(content, "nodes")), ("sinfo", nodes_of_rows(_list(content, "sinfo")))):
        readings += _nodes(key, nodes, now)
    if isinstance(content.get("jobs"), list):
        readings.append(_queue(content["jobs"], content.get("errors"), cluster, now))
    if isinstance(content.get("statistics"), Mapping):
        readings.append(_diagnosis(content["statistics"], cluster, now))
    return readings


def _nodes(key: str, nodes: Iterable[Any], now: datetime) -> Iterator[Reading]:
    seen: set[str] = set()
    for place, node in enumerate(nodes):
        name = node.get("name") if isinstance(node, Mapping) else None
        if isinstance(node, Mapping) and isinstance(name, str) and name and name not in seen:
            seen.add(name)
            yield from _node(node, name, now)
        else:
            reason = "has no name of its own"
            yield _unknown(f"{key}[{place}]", Metric.HEALTH, UnknownKind.UNKNOWN_DEVICE, reason, now)


def _queue(jobs: Iterable[Any], errors: object, cluster: str, now: datetime) -> Reading:
    # With an error the list is what there was until then: of a controller that does not answer it is empty.
    if isinstance(errors, list) and errors:
        first = errors[0] if isinstance(errors[0], Mapping) else {}
        text = str(first.get("error") or first.get("description") or errors[0])
        return _unknown(cluster, Metric.QUEUE_DEPTH, UnknownKind.UNAVAILABLE, f"Slurm: {text[:200]}", now)
    pending = sum(1 for job in jobs if isinstance(job, Mapping) and "PENDING" in _states(job.get("job_state")))
    return _known(cluster, Metric.QUEUE_DEPTH, pending, Source.AGGREGATION, now)


def _diagnosis(statistics: Mapping[str, Any], cluster: str, now: datetime) -> Reading:
    try:
        pending = number(statistics.get("jobs_pending"), "jobs_pending")
        _whole(pending, "jobs_pending")
    except UnknownError as unknown:
        return _unknown(cluster, Metric.QUEUE_DEPTH, unknown.kind, unknown.reason, now)
    at = now
    # Slurm counts its jobs every half a minute; where it says when, the figure is as old as that.
    for name in ("job_states_ts", "req_time"):
        with suppress(UnknownError):
            at = _time(number(statistics.get(name), name), now)
            break
    return _known(cluster, Metric.QUEUE_DEPTH, pending, Source.DIRECTLY_MEASURED, at)


def _node(node: Mapping[str, Any], name: str, now: datetime) -> Iterator[Reading]:
    def reading(metric: Metric, value: float, source: Source) -> Reading:
        return _known(name, metric, value, source, now)

    makers: tuple[tuple[Metric, Callable[[], tuple[float, Source]]], ...] = (
        (Metric.HEALTH, lambda: (_health(node), Source.DIRECTLY_MEASURED)),
        (Metric.CAPACITY_FREE, lambda: _free(node)),
        (Metric.MEMORY_LIMIT, lambda: (_real_memory(node) * MIB, Source.NOMINAL)),
        (Metric.MEMORY_USAGE, lambda: (_used(node) * MIB, Source.ESTIMATION)),
        (Metric.BOOT_TIME, lambda: (_boot(node), Source.DIRECTLY_MEASURED)),
    )
    for metric, make in makers:
        try:
            value, source = make()
        except UnknownError as unknown:
            yield _unknown(name, metric, unknown.kind, unknown.reason, now)
        else:
            yield _known(name, metric, value, source, now)


def _health(node: Mapping[str, Any]) -> float:
    states = _states(node.get("state")) | _states(node.get("state_flags"))
    if not states:
        raise UnknownError(UnknownKind.NOT_EXPORTED, "no state")
    if states & _FAILED:
        return HEALTH_FAILED
    if states & _DEGRADED:
        return HEALTH_DEGRADED
    if states & _WELL:
        return HEALTH_OK
    raise UnknownError(UnknownKind.UNKNOWN_STATE, f"unknown state {'+'.join(sorted(states))[:80]}")


def _states(value: object) -> set[str]:
    items = value if isinstance(value, list) else [value]
    found = {part.strip("*~#!%$@^-").upper() for item in items if isinstance(item, str) for part in item.split("+")}
    return found - {""}


def _free(node: Mapping[str, Any]) -> tuple[float, Source]:
    """Share of the accelerators that nobody has; of the processors where there are none."""
    total, used = gpus_of(node.get("gres")), float(gpus_of(node.get("gres_used")))
    if total:
        # Accelerators that are given out in shares are held by as much as of their shares is taken.
        used += total * _share_taken(node.get("gres"), node.get("gres_used"))
        if node.get("gres_used") in _NOT_SAID and number(node.get("alloc_cpus"), "alloc_cpus") != 0:
            # Only of a node on which nobody has a processor it is sure that nobody has an accelerator.
            raise UnknownError(UnknownKind.NOT_EXPORTED, "gres_used is missing")
        if used > total:
            raise UnknownError(UnknownKind.INCONSISTENT, f"{used:g} of {total} accelerators used")
        return 1 - used / total, Source.DIRECTLY_MEASURED
    cpus, taken = number(node.get("cpus"), "cpus"), number(node.get("alloc_cpus"), "alloc_cpus")
    _whole(cpus, "cpus", least=1)
    _whole(taken, "alloc_cpus")
    if taken > cpus:
        raise UnknownError(UnknownKind.INCONSISTENT, f"{taken:g} of {cpus:g} processors used")
    return 1 - taken / cpus, Source.DIRECTLY_MEASURED


def _memory(node: Mapping[str, Any], key: str, least: float = 0) -> float:
    value = number(node.get(key), key)
    _whole(value, key, least, most=2**30)
    return value


def _real_memory(node: Mapping[str, Any]) -> float:
    value = _memory(node, "real_memory", least=1)
    if value == 1:
        raise UnknownError(UnknownKind.PLACEHOLDER, "real_memory is 1 where it is not configured")
    return value


def _used(node: Mapping[str, Any]) -> float:
    total, free = _real_memory(node), _memory(node, "free_memory" if "free_memory" in node else "free_mem")
    if free == 0:
        raise UnknownError(UnknownKind.PLACEHOLDER, "free_memory is zero until the node has reported it")
    if free > total:
        raise UnknownError(UnknownKind.INCONSISTENT, f"{free:g} MiB free of {total:g}")
    return total - free


def _boot(node: Mapping[str, Any]) -> float:
    value = number(node.get("boot_time"), "boot_time")
    if value == 0:
        raise UnknownError(UnknownKind.PLACEHOLDER, "boot_time is zero until the node has reported it")
    _whole(value, "boot_time", least=1, most=1e11)
    return value


def gres_counts(text: object) -> dict[tuple[str, str], int]:
    """Amounts by name and type (empty: none) of a GRES string. ``gpu`` alone is one.

    :raises UnknownError: it is no GRES string, or stands there in its place.
    """
    if isinstance(text, UnknownError):
        raise text
    if text in _NOT_SAID:
        return {}
    if not isinstance(text, str) or len(text) > 4096:
        raise UnknownError(UnknownKind.NOT_A_NUMBER, "GRES is no text")
    counts: dict[tuple[str, str], int] = {}
    at = 0
    while at <= len(text):
        found = _GRES.match(text, at)
        if found is None or (found.end() < len(text) and text[found.end()] != ","):
            raise UnknownError(UnknownKind.NOT_A_NUMBER, f"GRES {text[:80]!r} cannot be read")
        # Slurm 19 to 22 write the type that is not given so, in what is used: gpu:(null):2(IDX:0-1).
        kind, count, unit = (found["type"] or "").replace("(null)", ""), found["count"], found["unit"] or ""
        if count is None and _TYPE_IS_COUNT.fullmatch(kind):
            kind, count, unit = "", kind.rstrip("KkMmGgTtPp"), kind.lstrip("0123456789")
        amount = int(count) * _UNITS[unit.lower()] if count is not None else 1
        key = found["name"].strip(), kind
        counts[key] = counts.get(key, 0) + amount
        at = found.end() + 1
    return counts


def gpus_of(text: object) -> int:
    """Number of accelerators (``ACCELERATORS``) in a GRES string."""
    return sum(count for (name, _), count in gres_counts(text).items() if name in ACCELERATORS)


def _share_taken(there: object, used: object) -> float:
    """What is taken of the shares (``shard``, ``mps``: gres.conf(5)) into which a node's accelerators are divided."""
    total, taken = (
        sum(count for (name, _), count in gres_counts(text).items() if name in _SHARES) for text in (there, used)
    )
    return taken / total if total else 0.0


def number(value: object, name: str) -> float:
    """A number of Slurm's JSON in either form.

    :raises UnknownError: not set, infinite, one of its "no value" numbers, no number, or stands there in its place.
    """
    if isinstance(value, UnknownError):
        raise value
    if isinstance(value, Mapping):
        if value.get("infinite") is True:
            raise UnknownError(UnknownKind.NOT_A_NUMBER, f"{name} is infinite")
        if value.get("set") is not True:
            raise UnknownError(UnknownKind.NOT_EXPORTED, f"{name} is not set")
        value = value.get("number")
    if value is None:
        raise UnknownError(UnknownKind.NOT_EXPORTED, f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnknownError(UnknownKind.NOT_A_NUMBER, f"{name} is no number")
    if value in _NO_VALUES or value == -2:
        raise UnknownError(UnknownKind.SENTINEL, f"{name} has no value (NO_VAL)")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise UnknownError(UnknownKind.NOT_A_NUMBER, f"{name} is no number")
    return found


def _whole(value: float, name: str, least: float = 0, most: float = 1e9) -> None:
    if not least <= value <= most:
        raise UnknownError(UnknownKind.OUT_OF_RANGE, f"{name} out of range: {value:g}")


def _list(content: Mapping[str, Any], key: str) -> Iterable[Any]:
    found = content.get(key)
    return found if isinstance(found, list) else ()


def _time(at_s: float, now: datetime) -> datetime:
    return datetime.fromtimestamp(at_s, UTC) if 0 < at_s < 4e9 else now


def _known(node_id: str, metric: Metric, value: float, source: Source, at: datetime) -> Reading:
    return Reading(node_id, metric, float(value), source, at)


def _unknown(node_id: str, metric: Metric, kind: UnknownKind, reason: str, at: datetime) -> Reading:
    return Reading(node_id, metric, None, Source.DIRECTLY_MEASURED, at, reason=reason, kind=kind)
