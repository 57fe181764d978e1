"""What a text of an exporter, of Slurm or of Kubernetes says of the twelve core metrics. Pure: the text and the time come in.

Steps: (1) JSON or exposition, (2) the exporters are recognised by their families, (3) each one's table translates, with an
earlier text as the scrape before, (4) a core metric that none of them says is listed as unknown, so that nothing is left out
in silence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from agent.collectors import kubernetes, slurm
from agent.collectors.base import Reading, Source
from agent.collectors.device import PeakOf
from agent.collectors.exporter_table import ExporterTable, shipped_tables
from agent.collectors.exposition import DEFAULT_LIMITS, Exposition, ExpositionLimits, Sample, parse_exposition
from agent.collectors.json_samples import samples_of
from agent.collectors.metrics import OF_ACCELERATORS, OF_NODES, Metric
from agent.collectors.recognition import INSTANCE, instances, recognised, unread, used_prefix
from agent.collectors.table_file import load_table
from agent.collectors.translation import Translator
from agent.collectors.unknown import UnknownError, UnknownKind
from agent.collectors.values import NOT_EXPORTED, sentinel_of
from meridian.errors import InvalidArgumentError

AUTO = "auto"
NODE = "node"
CLUSTER = "cluster"
LEDGER_TELLS = "only the ledger of allocations knows it (scheduler, Slurm, Kubernetes)"

# Names that people use for the vendors' exporters.
ALIASES = {
    "nvidia": "dcgm-exporter", "dcgm": "dcgm-exporter", "nvidia-smi": "nvidia-gpu-exporter", "ascend": "npu-exporter",
    "huawei": "npu-exporter", "cambricon": "mlu-exporter", "mlu": "mlu-exporter", "amd": "amd-metrics-exporter",
    "amd-smi": "amd-smi-exporter", "hygon": "dcu-exporter", "dcu": "dcu-exporter", "intel": "xpumd", "xpum": "xpumd", "node": "node-exporter",
    "iluvatar": "ix-exporter", "moore-threads": "mtgpu-exporter", "metax": "mx-exporter", "enflame": "gcu-exporter",
    "kunlunxin": "xpu-exporter", "tsingmicro": "tx-exporter", "blackbox": "blackbox-exporter",
    "gaudi": "gaudi-exporter", "habana": "gaudi-exporter", "nvml": "nvml-exporter",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sensed:
    """What a text says. ``sources``: exporters or forms that spoke, with their vendor; ``unread``: families nobody reads.

    ``set_aside``: samples (family, labels, kind, reason) that have no value whatever they are read for.
    """

    at: datetime
    sources: tuple[tuple[str, str], ...]
    readings: tuple[Reading, ...]
    bad_lines: tuple[tuple[int, str], ...] = ()
    unread: tuple[str, ...] = ()
    set_aside: tuple[tuple[str, str, UnknownKind, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Read:
    samples: Sequence[Sample]
    bad_lines: tuple[tuple[int, str], ...]
    document: Any = None


def sense(
    text: str,
    at: datetime,
    *,
    vendor: str = AUTO,
    previous: str | None = None,
    interval_s: float = 15.0,
    peak_of: PeakOf | None = None,
    limits: ExpositionLimits = DEFAULT_LIMITS,
) -> Sensed:
    """Readings of a text as of ``at``.

    :param vendor: ``auto``, the name of a shipped table or a vendor, or the path of a table.
    :param previous: the scrape before, ``interval_s`` earlier; rates and frozen counters need it.
    :raises InvalidArgumentError: nothing in it is known, or it is too large.
    :raises ConfigurationError: the table cannot be read.
    """
    read = _read(text, limits)
    if read.document is not None:
        return _of_document(read.document, at)
    tables = _tables(vendor, read.samples)
    kube = vendor == AUTO and kubernetes.is_kube_state({sample.family for sample in read.samples})
    if not tables and not kube:
        found = ", ".join(sorted({sample.family for sample in read.samples})[:5]) or "no sample"
        raise InvalidArgumentError(
            f"no known exporter speaks here ({found}); name a table with --vendor, see docs/telemetry.md"
        )
    if not kube and not recognised(read.samples, tables) and not _has_some(read.samples, tables):
        raise InvalidArgumentError(
            f"no family of {' or '.join(table.exporter for table in tables)} is in this text; see docs/telemetry.md"
        )
    before = None if previous is None else _read(previous, limits)
    readings: list[Reading] = []
    for table in tables:
        # Two texts stand for two scrapes with a collection of the exporter between them.
        guard = table.frozen
        if guard is not None and guard.counters:
            guard = replace(guard, scrapes=2, after_s=0.0)
        node_label = table.node_label or (INSTANCE if len(instances(read.samples, table)) > 1 else "")
        translator = Translator(replace(table, frozen=guard, node_label=node_label), NODE, peak_of=peak_of)
        if before is not None:
            translator.translate(before.samples, at - timedelta(seconds=interval_s))
        readings += translator.translate(read.samples, at)
    sources = [(table.exporter, table.vendor) for table in tables]
    if kube:
        readings += kubernetes.kube_state_readings(read.samples, CLUSTER, at)
        sources.append(("kube-state-metrics", "Kubernetes"))
    strange = [name for name in unread(read.samples, tables) if not (kube and name.startswith("kube_"))]
    return Sensed(
        at,
        tuple(sources),
        tuple(_completed(readings, at)),
        read.bad_lines,
        tuple(strange),
        tuple(_without_value(read.samples, tables)),
    )


def _without_value(
    samples: Iterable[Sample], tables: Sequence[ExporterTable]
) -> Iterator[tuple[str, str, UnknownKind, str]]:
    for sample in samples:
        labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
        reasons = [reason for table in tables for reason in _sentinels(sample, table)]
        if not math.isfinite(sample.value):
            yield sample.family, labels, UnknownKind.NOT_A_NUMBER, "not a number"
        elif reasons:
            yield sample.family, labels, UnknownKind.SENTINEL, reasons[0]


def _sentinels(sample: Sample, table: ExporterTable) -> Iterator[str]:
    family = table.canonical(sample.family)
    if family not in table.families and not table.recognises(sample.family):
        return
    reason = sentinel_of(table, family, sample.value)
    if reason:
        yield reason


def _tables(vendor: str, samples: Sequence[Sample]) -> list[ExporterTable]:
    if vendor == AUTO:
        return recognised(samples, [load_table(name) for name in shipped_tables()])
    table = load_table(ALIASES.get(vendor.lower(), vendor))
    prefix = used_prefix(samples, table)
    return [table if prefix is None else table.with_prefix(prefix)]


def _has_some(samples: Iterable[Sample], tables: Sequence[ExporterTable]) -> bool:
    return any(table.canonical(sample.family) in table.families for sample in samples for table in tables)


def _read(text: str, limits: ExpositionLimits) -> _Read:
    text = text.removeprefix("\ufeff")
    if text.lstrip()[:1] in {"{", "["}:
        document = _json(text)
        if document is not None:
            samples = samples_of(document)
            return _Read((), (), document) if samples is None else _Read(samples[: limits.max_series], ())
    try:
        exposition: Exposition = parse_exposition(text, limits=limits, last_line_may_be_cut=True)
    except UnknownError as unknown:
        raise InvalidArgumentError(unknown.reason) from None
    return _Read(exposition.samples, exposition.bad_lines)


def _json(text: str) -> Any:
    """The document of a JSON text; None: it is none. A key that stands twice makes it none."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key stands twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        return None


def _of_document(document: Any, at: datetime) -> Sensed:
    if slurm.is_slurm(document):
        readings, source = slurm.readings_of(document, CLUSTER, at), ("slurm", "SchedMD")
    elif kubernetes.is_kubernetes(document):
        readings, source = kubernetes.readings_of(document, at), ("resource.k8s.io", "Kubernetes")
    else:
        raise InvalidArgumentError(
            "this JSON is of none of the known forms: Slurm (sinfo, squeue, sdiag --json), Kubernetes ResourceSlice or "
            "ResourceClaim, a dump of Prometheus metrics"
        )
    return Sensed(at, (source,), tuple(_completed(readings, at)))


def _completed(readings: Iterable[Reading], at: datetime) -> list[Reading]:
    """The readings, and an unknown one for each core metric that nobody said, in one order: nodes, devices, metrics."""
    known: dict[tuple[str, int | None, str, str], dict[Metric, Reading]] = {}
    for reading in readings:
        place = reading.node_id, reading.accelerator_index, reading.device, reading.partition
        held = known.setdefault(place, {})
        earlier = held.get(reading.metric)
        # Two exporters may speak of one device: what is known stands before what is not.
        if earlier is None or (earlier.value is None and reading.value is not None):
            held[reading.metric] = reading
    profiles = {place: reading.profile for place, held in known.items() for reading in held.values() if reading.profile}
    for place in list(known):
        known.setdefault((place[0], None, "", ""), {})
    completed = []
    for place in sorted(known, key=_order):
        node_id, index, device, partition = place
        held = known[place]
        wanted = OF_NODES if index is None and not device else OF_ACCELERATORS
        for metric in wanted:
            if metric not in held:
                reason = LEDGER_TELLS if metric is Metric.CAPACITY_FREE else NOT_EXPORTED
                held[metric] = Reading(
                    node_id, metric, None, Source.DIRECTLY_MEASURED, at, accelerator_index=index, device=device,
                    partition=partition, profile=profiles.get(place, ""), reason=reason, kind=UnknownKind.NOT_EXPORTED,
                )  # fmt: skip
        completed += [held[metric] for metric in Metric if metric in held]
    return completed


def _order(place: tuple[str, int | None, str, str]) -> tuple[str, bool, int, str, str]:
    node_id, index, device, partition = place
    return node_id, index is not None or bool(device), -1 if index is None else index, device, partition
