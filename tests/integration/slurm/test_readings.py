"""The readings of a real Slurm: its JSON against its own text."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime

import pytest

from agent.collectors.document import DocumentCollector
from agent.collectors.metrics import HEALTH_DEGRADED, HEALTH_OK, Metric
from tests.integration.slurm.cluster import GPUS, NODES, SlurmCluster

MIB = 2**20


def readings(slurm: SlurmCluster, *words: str) -> dict[tuple[str, Metric], float | None]:
    """What the agent reads of a command of its file (which gets no environment of the agent's)."""
    command = ("env", f"SLURM_CONF={slurm.configuration}", *words)
    collector = DocumentCollector("slurm", NODES, command=command, deadline_s=60, working_dir=slurm.folder)
    return {(item.node_id, item.metric): item.value for item in collector.collect(datetime.now(UTC))}


@pytest.fixture
def job(slurm: SlurmCluster) -> int:
    """One that holds three of a node's accelerators, and one behind it that cannot begin."""
    options = "--parsable -w n2 -N1 -n1 -c2 --mem=1000M --time=5 --output=/dev/null"
    sleep = "sleep 600"
    number = int(slurm.call(*shlex.split(f"sbatch {options} --gres=gpu:h100:3"), "--wrap", sleep))
    slurm.until("RUNNING", "squeue", "-h", "-j", str(number), "-o", "%T")
    slurm.call(*shlex.split(f"sbatch {options} --gres=gpu:h100:2"), "--wrap", sleep)
    return number


def test_nodes_and_queue_agree_with_the_text(slurm: SlurmCluster, job: int) -> None:
    slurm.call("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=test")
    slurm.until("drain", "sinfo", "-h", "-n", "n3", "-o", "%T")
    found = readings(slurm, "sinfo", "--json")
    rows = slurm.call("sinfo", "-h", "-p", "main", "-N", "-O", "NodeList:|,StateLong:|,Memory:|,Gres:|,GresUsed:|")
    used_of = {}
    for row in rows.splitlines():
        name, state, memory_mib, gres, used = row.rstrip("|").split("|")
        assert gres.startswith(f"gpu:h100:{GPUS}")
        used_of[name] = int(used.split(":")[2].partition("(")[0])
        assert found[name, Metric.CAPACITY_FREE] == 1 - used_of[name] / GPUS
        assert found[name, Metric.MEMORY_LIMIT] == int(memory_mib) * MIB
        assert found[name, Metric.HEALTH] == (HEALTH_DEGRADED if state.startswith("drain") else HEALTH_OK)
    assert used_of == {"n1": 0, "n2": 3, "n3": 0}
    pending = slurm.call("squeue", "-h", "-t", "PENDING", "-o", "%A").split()
    assert len(pending) == 1
    assert readings(slurm, "squeue", "--json") == {("", Metric.QUEUE_DEPTH): 1.0}


def test_what_this_version_cannot_say_in_json_is_no_reading(slurm: SlurmCluster) -> None:
    version = json.loads(slurm.call("sinfo", "--json"))["meta"]["Slurm"]["version"]
    before_23 = (int(version["major"]), int(version["minor"])) < (23, 2)
    # sdiag and scontrol print JSON since 23.02 only; an older one's refusal is neither zero nor an error of the agent.
    assert (readings(slurm, "sdiag", "--json") == {}) == before_23
    assert (readings(slurm, "scontrol", "show", "nodes", "--json") == {}) == before_23
