"""What other services say to the scheduler in its tests: a graph, a submission, a report of a run."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from meridian.contracts.graph.v1.graph_pb2 import NODE_STATE_HEALTHY, GraphNode, GraphUpdated
from meridian.contracts.job.v1 import job_pb2
from meridian.contracts.job.v1.job_pb2 import JobSpec, JobSubmitted
from meridian.contracts.resource.v1.resource_pb2 import Accelerator, DomainInventory, NodeInventory
from meridian.contracts.run.v1 import run_pb2
from meridian.contracts.run.v1.run_pb2 import Assignment

START, STOP = run_pb2.ASSIGNMENT_ACTION_START, run_pb2.ASSIGNMENT_ACTION_STOP


def graph(domain_id: str, nodes: int, *, accelerators: int = 8, cpus: float = 64.0) -> GraphUpdated:
    """A domain with equal nodes, all healthy."""
    return GraphUpdated(
        domain_id=domain_id,
        version=1,
        full=True,
        domain=DomainInventory(domain_id=domain_id, security_level=2),
        nodes=[
            GraphNode(
                inventory=NodeInventory(
                    node_id=f"{domain_id}-{number}",
                    compute_id=f"cid-{domain_id}-{number}",
                    cpus=cpus,
                    memory_bytes=2**38,
                    address="127.0.0.1",
                    accelerators=[
                        Accelerator(index=index, vendor="NVIDIA", model="A100", emulated=True)
                        for index in range(accelerators)
                    ],
                ),
                state=NODE_STATE_HEALTHY,
            )
            for number in range(1, nodes + 1)
        ],
    )


def submission(job_id: str, tenant: str = "lab", **spec: object) -> JobSubmitted:
    """A task, submitted now."""
    now = Timestamp()
    now.GetCurrentTime()
    fields: dict[str, object] = {"kind": job_pb2.JOB_KIND_TASK, "command": ["python", "train.py"], **spec}
    return JobSubmitted(job_id=job_id, tenant_id=tenant, spec=JobSpec(**fields), submitted_at=now)  # type: ignore[arg-type]


def report(message: type, assignment: Assignment, /, **more: object):  # type: ignore[no-untyped-def]
    """What an agent says about an assignment."""
    return message(
        run_id=assignment.run_id,
        job_id=assignment.job_id,
        unit_index=assignment.unit_index,
        epoch=assignment.epoch,
        domain_id=assignment.domain_id,
        **more,
    )
