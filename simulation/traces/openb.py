"""Alibaba's GPU cluster of 2023 (openb; Weng et al., ATC 2023): pods that take shares of accelerators, and the nodes."""

from __future__ import annotations

from pathlib import Path

from simulation.model import MOST_ACCELERATORS, Network, SimDomain, SimNode, Trace, TraceJob
from simulation.traces.reading import MOST_WHOLE, Collected, Row, read_text, table

COLUMNS = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
# Kubernetes' classes and the cluster's own: latency-sensitive, best effort.
PRIORITIES = {"BE": 0, "Burstable": 1, "LS": 2, "Guaranteed": 3}
MIB = 1 << 20


def load(path: Path | str, *, pending: bool = False) -> Trace:
    """A pod is one rank with ``num_gpu`` accelerators; below 1000 ``gpu_milli`` is a share of the only one.

    Submitted at its creation, run from scheduling to deletion. Pods without a deletion are left out, and those never scheduled; with ``pending`` they stay
    and run from creation to deletion. ``gpu_spec`` lists accepted models (``A|B``). The class of service sets the priority
    (see `PRIORITIES`) and whether it may be preempted (BE, Burstable). Time 0 is the first submission.
    """
    text, sha256 = read_text(path)
    collected = Collected()
    for row in table(path, text, COLUMNS):
        name = collected.claim(row, "name", row.text("name"))
        created = row.number("creation_time")
        scheduled = row.number("scheduled_time", least=created) if row.text("scheduled_time", required=False) else None
        if scheduled is None and not pending:
            collected.skipped["never scheduled"] += 1
            continue
        begun = created if scheduled is None else scheduled
        if not row.text("deletion_time", required=False):
            collected.skipped["not ended"] += 1
            continue
        duration = row.number("deletion_time", least=begun) - begun
        accelerators, share = _accelerators(row)
        cpus = row.number("cpu_milli") / 1000
        if duration == 0 or (accelerators == 0 and cpus == 0):
            collected.skipped["zero duration" if duration == 0 else "no processors"] += 1
            continue
        service = row.text("qos")
        if service not in PRIORITIES:
            raise row.error("qos", f"is none of {', '.join(PRIORITIES)}: {service!r}")
        collected.add(
            row,
            TraceJob(
                job_id=name,
                submit_s=created,
                duration_s=duration,
                accelerators=accelerators,
                cpus=cpus,
                memory_bytes=row.whole("memory_mib", most=MOST_WHOLE // MIB) * MIB,
                device_share=share,
                name=service,
                priority=PRIORITIES[service],
                accelerator_types=tuple(filter(None, row.text("gpu_spec", required=False).split("|"))),
                preemptible=service in {"BE", "Burstable"},
            ),
        )
    first = min((job.submit_s for job in collected.jobs), default=0.0)
    for job in collected.jobs:
        job.submit_s -= first
    return collected.trace(path, Path(path).stem, sha256)


def _accelerators(row: Row) -> tuple[int, float]:
    count = row.whole("num_gpu")
    if count == 0 and not row.text("gpu_milli", required=False):
        return 0, 1.0
    milli = row.whole("gpu_milli")
    if count == 0:
        return 0, 1.0
    if not 0 < milli <= 1000:
        raise row.error("gpu_milli", f"is not within 1 to 1000: {milli}")
    if count > 1 and milli < 1000:
        raise row.error("gpu_milli", f"is a share, but num_gpu is {count}")
    return count, milli / 1000


def nodes(path: Path | str, *, domain: str = "openb") -> Network:
    """The node list (``sn, cpu_milli, memory_mib, gpu, model``) as one domain; nodes without accelerators have no model."""
    text, sha256 = read_text(path)
    found: dict[str, SimNode] = {}
    for row in table(path, text, NODE_COLUMNS):
        name = row.text("sn")
        if name in found:
            raise row.error("sn", f"node {name!r} is there twice")
        accelerators = row.whole("gpu", most=MOST_ACCELERATORS)
        found[name] = SimNode(
            node_id=name,
            domain_id=domain,
            cpus=row.number("cpu_milli") / 1000,
            memory_bytes=row.whole("memory_mib", most=MOST_WHOLE // MIB) * MIB,
            accelerators=accelerators,
            model=row.text("model", required=accelerators > 0),
        )
    return Network([SimDomain(domain, list(found.values()))], name=Path(path).stem, sha256=sha256)
