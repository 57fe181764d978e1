"""Standard Workload Format 2.2 of the Parallel Workloads Archive (Feitelson, Tsafrir, Krakov 2014), and its machine files.

18 numbers a line: job, submit, wait, run time, allocated processors, CPU time, used memory, requested processors, requested
time, requested memory, status, user, group, executable, queue, partition, preceding job, think time. -1 is unknown; times in
seconds, memory in kilobytes per processor; lines that begin with ``;`` are header comments.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from simulation.model import MOST_NODES, UNKNOWN, Network, SimDomain, SimNode, Trace, TraceJob
from simulation.traces.errors import TraceError
from simulation.traces.reading import MOST_WHOLE, Collected, Row, lines, read_text

COLUMNS = (
    *("job", "submit", "wait", "run_time", "allocated_processors", "cpu_time", "used_memory", "requested_processors"),
    *("requested_time", "requested_memory", "status", "user", "group", "executable", "queue", "partition"),
    *("preceding_job", "think_time"),
)
MACHINE_COLUMNS = ("id", "name", "nodes", "processors_per_node", "speed", "memory_kb")
CODES = frozenset({"status", "user", "group", "executable"})
CANCELLED = 5
PARTIAL = frozenset({2, 3, 4})
_INDEX = {name: index for index, name in enumerate(COLUMNS)}
_MACHINE_INDEX = {name: index for index, name in enumerate(MACHINE_COLUMNS)}


def load(path: Path | str, *, processors: str = "allocated", statuses: Collection[int] | str | None = None) -> Trace:
    """One rank with one CPU per processor: the ``allocated`` number, else the requested (``processors="requested"``: the
    other way round).

    ``estimate_s`` is the requested time, ``user`` the user id, ``tenant`` the group, ``name`` the executable's number.
    ``statuses`` keeps only these completion codes, also as text ``0,1`` (0 failed, 1 completed, 5 cancelled, -1 unknown). Left out: partial
    executions (2-4; the whole job has a line of its own), cancelled before start, unknown or zero run time, no processors.
    """
    if processors not in {"allocated", "requested"}:
        raise TraceError(f"option processors is 'allocated' or 'requested', not {processors!r}")
    kept = _statuses(statuses)
    text, sha256 = read_text(path, comment=b";")
    collected = Collected()
    for line, content in lines(text):
        cells = content.split()
        if not cells or cells[0].startswith(";"):
            continue
        if len(cells) != len(COLUMNS):
            raise TraceError(f"{len(cells)} fields, not {len(COLUMNS)}", path=path, line=line)
        row = Row(path, line, _INDEX, cells)
        values = {name: _value(row, name) for name in COLUMNS}
        job_id = str(row.whole("job"))
        row.number("submit")
        reason = _skip(values, kept, processors)
        if reason:
            collected.skipped[reason] += 1
            continue
        collected.add(row, _job(collected.claim(row, "job", job_id), row, values, processors))
    return collected.trace(path, Path(path).stem, sha256)


def _value(row: Row, column: str) -> float:
    """A number that is -1 where it is unknown, else not negative. Codes and identifiers are whole numbers."""
    value = row.number(column, least=-1.0)
    if -1 < value < 0:
        raise row.error(column, f"is less than 0, and not -1: {row.text(column)}")
    if column in CODES and not value.is_integer():
        raise row.error(column, f"is not a whole number: {row.text(column)}")
    return value


def _statuses(statuses: Collection[int] | str | None) -> frozenset[int] | None:
    if statuses is None:
        return None
    try:
        return frozenset(int(code) for code in (statuses.split(",") if isinstance(statuses, str) else statuses))
    except (TypeError, ValueError):
        raise TraceError(f"option statuses must be completion codes, not {statuses!r}") from None


def _ranks(values: dict[str, float], processors: str) -> float:
    first, second = values["allocated_processors"], values["requested_processors"]
    if processors == "requested":
        first, second = second, first
    return first if first > 0 else second


def _skip(values: dict[str, float], statuses: Collection[int] | None, processors: str) -> str:
    status = int(values["status"])
    if status in PARTIAL:
        return "partial execution"
    if status == CANCELLED and values["run_time"] <= 0:
        return "cancelled before start"
    if statuses is not None and status not in statuses:
        return f"status {status}"
    if values["run_time"] < 0:
        return "unknown duration"
    if values["run_time"] == 0:
        return "zero duration"
    return "no processors" if _ranks(values, processors) <= 0 else ""


def _job(job_id: str, row: Row, values: dict[str, float], processors: str) -> TraceJob:
    ranks = _ranks(values, processors)
    if not ranks.is_integer():
        raise row.error(f"{processors}_processors", f"is not a whole number: {ranks:g}")
    if ranks > MOST_WHOLE:
        raise row.error(f"{processors}_processors", f"is more than {MOST_WHOLE}: {ranks:g}")
    column = "requested_memory" if values["requested_memory"] > 0 else "used_memory"
    memory_bytes = int(max(values[column], 0) * 1024)
    if memory_bytes > MOST_WHOLE:
        raise row.error(column, f"is more than {MOST_WHOLE} bytes: {values[column]:g} kB")
    return TraceJob(
        job_id=job_id,
        submit_s=values["submit"],
        duration_s=values["run_time"],
        ranks=int(ranks),
        cpus=1.0,
        memory_bytes=memory_bytes,
        estimate_s=values["requested_time"] if values["requested_time"] > 0 else UNKNOWN,
        tenant=_label("group", values["group"]) or "default",
        user=_label("user", values["user"]),
        name=_label("executable", values["executable"]),
    )


def _label(kind: str, value: float) -> str:
    return f"{kind}-{int(value)}" if value >= 0 else ""


def machines(path: Path | str) -> Network:
    """The machine file that goes with a log: id, name, nodes, processors per node, speed, memory of a node (kB) a line.

    Each line is a domain of CPU nodes. The speed, relative to the first line's, is not used: it must be the same on all.
    """
    text, sha256 = read_text(path)
    domains: list[SimDomain] = []
    speeds: set[float] = set()
    for line, content in lines(text):
        cells = content.split()
        if not cells:
            continue
        if len(cells) != len(MACHINE_COLUMNS):
            raise TraceError(f"{len(cells)} fields, not {len(MACHINE_COLUMNS)}", path=path, line=line)
        row = Row(path, line, _MACHINE_INDEX, cells)
        name = row.text("name")
        if any(domain.domain_id == name for domain in domains):
            raise row.error("name", f"machine {name!r} is there twice")
        speeds.add(row.number("speed"))
        if len(speeds) > 1:
            raise row.error("speed", "machines of different speeds are not supported")
        cpus, memory = row.whole("processors_per_node", least=1), row.whole("memory_kb", most=MOST_WHOLE // 1024) * 1024
        count = row.whole("nodes", least=1, most=MOST_NODES)
        nodes = [SimNode(f"{name}-{index}", name, float(cpus), memory) for index in range(count)]
        domains.append(SimDomain(name, nodes))
    return Network(domains, name=Path(path).name.split(".")[0], sha256=sha256)
