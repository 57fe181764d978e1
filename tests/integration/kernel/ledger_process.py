"""A service in a process of its own that a test can kill: each submitted job is written down once, and told on.

Arguments: address of the broker, URL of the database.
"""

from __future__ import annotations

import asyncio
import sys

import sqlalchemy as sa

from meridian.contracts.job.v1 import job_pb2
from meridian.outbox import Transaction
from meridian.service import create_kernel, run_service
from meridian.settings import KernelSettings


async def _handle(transaction: Transaction, message: job_pb2.JobSubmitted) -> None:
    job = f"{message.job_id}-{message.tenant_id}"
    await transaction.connection.execute(sa.text("INSERT INTO seen (job_id) VALUES (:job)"), {"job": job})
    transaction.publish(job_pb2.JobQueued(job_id=message.job_id, units=int(message.tenant_id)))


def main() -> None:
    """Run until killed; small batches, so that there are many moments to be killed in."""
    settings = KernelSettings(
        kafka_bootstrap_servers=sys.argv[1], database_url=sys.argv[2], batch_records=5, instance="0"
    )
    kernel = create_kernel("ledger", settings)
    kernel.bus.subscribe("jobs", {job_pb2.JobSubmitted: _handle})
    asyncio.run(run_service(kernel, asyncio.Event()))


if __name__ == "__main__":
    main()
