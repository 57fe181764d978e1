"""How right perception is: what is stored in the end against what was true at the source at the same instant.

    python -m bench.perception_accuracy [--seconds 90] [--domains 5] [--nodes 200] [--json OUT]

Real parts: the agent's collectors, scrapes and reports (five domains of 200 nodes in this process, whose nodes run no
processes), the embedded broker, the telemetry service and PostgreSQL as processes of their own. Emulated: each node has an
exporter of one of seven vendors with two devices, answered over HTTP by one process that writes down the truth
(`bench.exporter_farm`); a tenth of the devices' answers has a trap. Exporters are asked every 10 s, reports go every 5 s (in
operation: 15 s): ``--interval`` changes it.

A stored number is right when it is within 2 % of the truth or within one unit of resolution (MEASURES); where the truth is that
nothing can be known, every number is wrong. What was known at the source and is not stored is missing. This machine's own metrics
are compared with /proc, read by this program at the instants of the reports.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import itertools
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import asyncpg

from agent.bus_clients import Producer
from agent.engines.base import Engine
from agent.resource_reports import ResourceReports
from agent.settings import AgentSettings
from bench.exporter_farm import DEVICES, HEALTH, TEMPERATURE, VENDORS
from bench.result import Row, Setting, command_line, print_table, write
from bench.servers import ROOT, Servers, running, servers, service
from meridian.clock import SystemClock
from meridian.embedded.ports import choose_ports
from meridian.embedded.probes import tcp_accepts
from meridian.embedded.process import ProcessSpec

WITHIN = 0.02
RESOLUTION = {"hw.gpu.utilization": 0.01, "cpn.memory.bandwidth_utilization": 0.01, TEMPERATURE: 1.0, "hw.power": 0.1}
HOST_METRICS = (
    "system.cpu.utilization", "system.cpu.load_average.1m", "system.memory.usage", "system.memory.limit", "cpn.storage.free",
    "cpn.storage.io", "system.network.io", "system.boot_time",
)  # fmt: skip
HOST_RESOLUTION = {
    "system.cpu.utilization": 0.01, "system.cpu.load_average.1m": 0.01, "cpn.storage.io": 4096.0, "system.network.io": 1500.0,
    "system.boot_time": 1.0,
}  # fmt: skip
SECTOR_BYTES = 512
TICK_S = 0.02


class QuietEngine:
    """Nodes that run nothing: what `ResourceReports` asks of an engine."""

    def nodes(self) -> Sequence[Any]:
        """None of them has news."""
        return ()

    def asleep(self) -> frozenset[str]:
        """None."""
        return frozenset()

    def know_parts(self, parts: object) -> bool:
        """It limits no program to a part."""
        del parts
        return False


@dataclass(slots=True)
class Tally:
    """Samples of one metric. ``traps``: of those whose truth is unknown, how many stayed so."""

    right: int = 0
    wrong: int = 0
    missing: int = 0
    traps: int = 0
    trapped: int = 0

    @property
    def known(self) -> int:
        """Samples whose truth is known."""
        return self.right + self.wrong - self.trapped + self.missing


@dataclass(slots=True)
class HostTruth:
    """/proc of this machine at many instants."""

    storage_path: Path
    times: list[float] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)

    def watch(self, stop: threading.Event) -> None:
        """Read until told to stop."""
        while not stop.wait(TICK_S):
            sample = self._read()
            self.times.append(time.time())
            self.samples.append(sample)

    def _read(self) -> dict[str, float]:
        cpu = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        memory = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        kib = {name: float(text.split()[0]) * 1024 for name, text in memory.items()}
        up = {path.parent.name for path in Path("/sys/class/net").glob("*/operstate") if _is_up(path)}
        network = 0.0
        for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
            name, _, counts = line.partition(":")
            if name.strip() in up:
                words = counts.split()
                network += float(words[0]) + float(words[8])
        place = os.statvfs(self.storage_path)
        return {
            "busy": float(sum(cpu) - cpu[3] - cpu[4]),
            "total": float(sum(cpu)),
            "system.cpu.load_average.1m": float(Path("/proc/loadavg").read_text().split()[0]),
            "system.memory.usage": kib["MemTotal"] - kib["MemAvailable"],
            "system.memory.limit": kib["MemTotal"],
            "cpn.storage.free": float(place.f_bavail * place.f_frsize),
            "disk": _disk_bytes(),
            "network": network,
            "system.boot_time": float(
                next(
                    line.split()[1] for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime")
                )
            ),
        }

    def near(self, at_s: float) -> list[dict[str, float]]:
        """Samples around an instant: the collectors need a moment to read after it."""
        place = bisect.bisect_left(self.times, at_s)
        return self.samples[max(place - 1, 0) : place + 12]

    def candidates(self, metric: str, before_s: float, at_s: float) -> list[float]:
        """What was true at the instant, or since the instant before for what is a rate."""
        now, then = self.near(at_s), self.near(before_s)
        if metric in {"cpn.storage.io", "system.network.io"}:
            key = "disk" if metric == "cpn.storage.io" else "network"
            span_s = at_s - before_s
            return [(a[key] - b[key]) / span_s for a in now for b in then] if span_s > 0 else []
        if metric == "system.cpu.utilization":
            return [
                (a["busy"] - b["busy"]) / (a["total"] - b["total"])
                for a in now
                for b in then
                if a["total"] > b["total"]
            ]
        return [sample[metric] for sample in now]


def _is_up(operstate: Path) -> bool:
    if operstate.parent.name == "lo":
        return False
    try:
        flags = int((operstate.parent / "flags").read_text(), 16)
    except OSError:
        return False
    return bool(flags & 1)


def _disk_bytes() -> float:
    """Read and written bytes of whole disks, as /proc/diskstats counts them."""
    whole = {path.name for path in Path("/sys/block").iterdir()}
    total = 0.0
    for line in Path("/proc/diskstats").read_text().splitlines():
        words = line.split()
        if words[2] in whole and not words[2].startswith(("loop", "ram")):
            total += (float(words[5]) + float(words[9])) * SECTOR_BYTES
    return total


@asynccontextmanager
async def farm(where: Servers, seed: int) -> AsyncIterator[tuple[int, Path]]:
    """The exporters: their port and the file of what was true."""
    port = choose_ports(["farm"], seed=uuid.uuid4().hex)["farm"]
    truth = where.directory / "truth.jsonl"
    spec = ProcessSpec(
        name="farm",
        argv=(
            sys.executable,
            "-m",
            "bench.exporter_farm",
            "--port",
            str(port),
            "--truth",
            str(truth),
            "--seed",
            str(seed),
        ),
        cwd=ROOT,
        log_path=where.directory / "farm.log",
        ready=tcp_accepts("127.0.0.1", port),
    )
    async with running(spec):
        yield port, truth


def settings_of(domain: int, nodes: int, where: Servers, port: int, interval_s: float) -> AgentSettings:
    """A domain whose nodes have an exporter each, of the vendors in turn."""
    names = list(VENDORS)
    declared = []
    for number in range(nodes):
        vendor = names[(domain * nodes + number) % len(names)]
        node_id = f"d{domain}-n{number}"
        declared.append(
            {
                "node_id": node_id,
                "cpus": 8,
                "memory_bytes": 2**34,
                "accelerators": [{"vendor": vendor, "model": vendor, "count": DEVICES}],
                "exporters": [
                    {"url": f"http://127.0.0.1:{port}/{vendor}/{node_id}/metrics", "table": VENDORS[vendor][1]}
                ],
            }
        )
    return AgentSettings.model_validate(
        {
            "domain": {"domain_id": f"d{domain}", "nodes": declared},
            "kafka_bootstrap_servers": where.bootstrap_servers,
            "data_dir": where.directory,
            "report_interval_s": interval_s / 2,
            "scraping": {"interval_s": interval_s, "deadline_s": 5.0},
        }
    )


async def sense(where: Servers, port: int, domains: int, nodes: int, seconds: float, interval_s: float) -> None:
    """Let the agents of all domains sense and report for a time, then for a moment more report what is known."""
    async with AsyncExitStack() as life:
        tasks: list[asyncio.Task[None]] = []
        for domain in range(domains):
            settings = settings_of(domain, nodes, where, port, interval_s)
            producer = Producer(where.bootstrap_servers, f"agent-d{domain}", f"/agents/d{domain}", request_timeout_s=30)
            await producer.start()
            life.push_async_callback(producer.stop)
            reports = ResourceReports(
                settings, cast("Engine", QuietEngine()), producer, SystemClock(), incarnation=1, agent_url=""
            )
            reports.agent_id = f"agent-d{domain}"
            parts = {**reports.parts(), "reports": reports.run()}
            tasks += [asyncio.create_task(part, name=f"d{domain} {name}") for name, part in parts.items()]
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()


@dataclass(frozen=True, slots=True)
class Stored:
    """A value in the store."""

    node: str
    index: int
    metric: str
    at_s: float
    value: float


async def stored(where: Servers) -> list[Stored]:
    """Everything in the history."""
    url = where.database_url.replace("postgresql+asyncpg://", "postgresql://")
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("SELECT node_id, readings FROM telemetry.history")
    finally:
        await connection.close()
    found = {
        Stored(row["node_id"], int(index), metric, pair[1], pair[0])
        for row in rows
        for metric, by_index in json.loads(row["readings"]).items()
        for index, pair in by_index.items()
    }
    return sorted(found, key=lambda item: (item.node, item.index, item.metric, item.at_s))


def judge_exporters(truths: Sequence[dict[str, Any]], values: Iterable[Stored], until_s: float) -> dict[str, Tally]:
    """Tally by metric. Each stored value belongs to the answer that came first after its time; answers after ``until_s`` may
    not have been reported any more and count for nothing when nothing of them is stored."""
    answers: dict[str, list[dict[str, Any]]] = {}
    for entry in truths:
        answers.setdefault(entry["node"], []).append(entry)
    times = {node: [entry["at"] for entry in entries] for node, entries in answers.items()}
    found: dict[tuple[str, int], dict[tuple[int, str], float]] = {}
    for item in values:
        if item.node not in times or item.index < 0:
            continue
        # A time that the exporter gave is in whole milliseconds, that of a scrape is before its answer.
        place = bisect.bisect_left(times[item.node], item.at_s - 0.0015)
        if place < len(times[item.node]):
            found.setdefault((item.node, place), {})[item.index, item.metric] = item.value
    tallies: dict[str, Tally] = {}
    for node, entries in answers.items():
        for place, entry in enumerate(entries):
            taken = found.get((node, place), {})
            if not taken and (entry["at"] > until_s or _nothing_known(entry)):
                if entry["at"] <= until_s:
                    _count(tallies, entry, taken)
                continue
            _count(tallies, entry, taken)
    return tallies


def _nothing_known(entry: dict[str, Any]) -> bool:
    return all(value is None for truth in entry["truth"].values() for value in truth.values())


def _count(tallies: dict[str, Tally], entry: dict[str, Any], taken: dict[tuple[int, str], float]) -> None:
    for index, truth in entry["truth"].items():
        for metric, true in truth.items():
            tally = tallies.setdefault(metric, Tally())
            value = taken.get((int(index), metric))
            if true is None:
                tally.traps += 1
                # Health 0 of a device that was gone three times is said on purpose.
                if value is not None and not (metric == HEALTH and value == 0):
                    tally.trapped += 1
                    tally.wrong += 1
            elif value is None:
                tally.missing += 1
            elif _is_right(metric, value, true, RESOLUTION):
                tally.right += 1
            else:
                tally.wrong += 1


def _is_right(metric: str, value: float, true: float, resolution: dict[str, float]) -> bool:
    return abs(value - true) <= max(WITHIN * abs(true), resolution.get(metric, 0.0) * 1.0001)


def judge_host(truth: HostTruth, values: Iterable[Stored], node: str) -> dict[str, Tally]:
    """Tally of this machine's own metrics, by one node of the emulated ones that share it."""
    series: dict[str, list[Stored]] = {}
    for item in values:
        if item.node == node and item.index < 0:
            series.setdefault(item.metric, []).append(item)
    instants = sorted({item.at_s for items in series.values() for item in items})
    tallies = {metric: Tally() for metric in HOST_METRICS}
    for before_s, at_s in itertools.pairwise(instants):
        for metric in HOST_METRICS:
            value = next((item.value for item in series.get(metric, ()) if item.at_s == at_s), None)
            candidates = truth.candidates(metric, before_s, at_s)
            if not candidates:
                continue
            if value is None:
                tallies[metric].missing += 1
                continue
            # The collector read at one of these instants; which one is not told.
            low, high = min(candidates), max(candidates)
            right = low <= value <= high or any(_is_right(metric, value, item, HOST_RESOLUTION) for item in (low, high))
            tallies[metric].right += right
            tallies[metric].wrong += not right
    return tallies


def rows_of(tallies: dict[str, Tally], slice_: str) -> list[Row]:
    """Shares of right, wrong and missing of what was known, and of traps that became numbers."""
    rows = []
    total = Tally()
    for tally in tallies.values():
        for name in ("right", "wrong", "missing", "traps", "trapped"):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
    for metric, tally in [*sorted(tallies.items()), ("all", total)]:
        known = max(tally.known, 1)
        for name, value in (
            ("right_share", tally.right / known),
            ("wrong_share", (tally.wrong - tally.trapped) / known),
            ("missing_share", tally.missing / known),
        ):
            rows.append(Row(metric, name, value, slice_, n=tally.known))
        if tally.traps:
            rows.append(Row(metric, "traps_as_numbers", float(tally.trapped), slice_, n=tally.traps))
    return rows


async def measure(options: argparse.Namespace) -> list[Row]:
    """All rows."""
    async with AsyncExitStack() as life:
        where = await life.enter_async_context(servers("telemetry"))
        await life.enter_async_context(service(where, "telemetry", MERIDIAN_TELEMETRY_HISTORY_INTERVAL_S="0"))
        port, truth_path = await life.enter_async_context(farm(where, options.seed))
        host, stop = HostTruth(where.directory), threading.Event()
        watcher = threading.Thread(target=host.watch, args=(stop,), daemon=True)
        watcher.start()
        ends_s = time.time() + options.seconds
        await sense(where, port, options.domains, options.nodes, options.seconds, options.interval)
        stop.set()
        watcher.join()
        values = await _settled(where)
        truths = [json.loads(line) for line in truth_path.read_text().splitlines()]
    # What was answered within a report's time of the end may not have been reported.
    tallies = judge_exporters(truths, values, ends_s - options.interval)
    rows = rows_of(tallies, f"exporters, {options.domains} domains x {options.nodes} nodes")
    for vendor in VENDORS:
        mine = [entry for entry in truths if entry["vendor"] == vendor]
        whole = rows_of(judge_exporters(mine, values, ends_s - options.interval), f"exporters of {vendor}")
        rows += [row for row in whole if row.subject == "all"]
    rows += rows_of(judge_host(host, values, "d0-n0"), "this machine against /proc")
    ages = [value.at_s for value in values]
    rows.append(Row("stored values", "count", float(len(ages)), "all"))
    return rows


async def _settled(where: Servers) -> list[Stored]:
    """The store when it no longer grows."""
    before: list[Stored] = []
    while True:
        await asyncio.sleep(2.0)
        now = await stored(where)
        if len(now) == len(before):
            return now
        before = now


def main() -> int:
    """Command line; status 1 when a trap became a number or less than 98 % is right."""
    parser = argparse.ArgumentParser(prog="python -m bench.perception_accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between two scrapes of an exporter")
    parser.add_argument("--domains", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args()
    rows = asyncio.run(measure(options))
    print_table(rows)
    if options.json:
        write(options.json, command_line("bench.perception_accuracy"), [], options.seed, Setting.EMULATED, rows)
    shares = [row.value for row in rows if row.measure == "right_share" and row.subject == "all"]
    traps = [row.value for row in rows if row.measure == "traps_as_numbers"]
    return int(min(value or 0.0 for value in shares) < 0.98 or any(traps))


if __name__ == "__main__":
    raise SystemExit(main())
