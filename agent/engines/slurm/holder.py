"""The batch step of an allocation: it holds the nodes until a run is ordered, starts it, and ends with it.

    python -S -E -m agent.engines.slurm.holder '{"shared": "/home/meridian/slurm", "name": "job-1.0.1", "abandon_s": 120}'

Steps: (1) say that the allocation is held, (2) wait for the order; nobody who renews the lease for ``abandon_s``: let go of the
nodes, (3) one step per node through srun (`step`), which starts the ranks there. A job that Slurm begins anew
(``SLURM_RESTART_COUNT``) starts nothing: its run has been given up. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from agent.engines.slurm import folder

LOOK_EVERY_S = 0.1
# What the allocation was asked for; srun would ask for it again for the step, which has another form.
_OF_THE_REQUEST = (
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_EXCLUSIVE",
)  # fmt: skip


def step_command(nodes: int, arguments: dict[str, object]) -> list[str]:
    """The srun that starts one step program on each node. It has all of the allocation there, as Slurm's own default is."""
    return [
        "srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--overlap", "--mpi=none", "--input=none",
        "--cpu-bind=none", "--kill-on-bad-exit=0", "--wait=0", "--quit-on-interrupt",
        sys.executable, "-S", "-E", "-m", "agent.engines.slurm.step", json.dumps(arguments),
    ]  # fmt: skip


def main() -> int:
    """Exit status 0: the run has ended (how, its events say), or nobody wanted the allocation."""
    arguments = json.loads(sys.argv[1])
    if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
        return 0
    # Slurm ends a job by SIGTERM to all of it, SIGKILL after KillWait: between them the ranks may save their state.
    signal.signal(signal.SIGTERM, lambda *_: None)
    shared = Path(arguments["shared"])
    place = shared / arguments["name"] / os.environ["SLURM_JOB_ID"]
    place.mkdir(parents=True, exist_ok=True)
    folder.write_json(
        place / folder.HELD,
        {"nodes": os.environ["SLURM_JOB_NODELIST"], "tasks": os.environ["SLURM_TASKS_PER_NODE"]},
    )
    if not _ordered(place, shared / folder.LEASE, float(arguments["abandon_s"])):
        return 0
    env = {name: value for name, value in os.environ.items() if name not in _OF_THE_REQUEST}
    words = step_command(int(os.environ["SLURM_JOB_NUM_NODES"]), {"place": str(place), "shared": str(shared)})
    with subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL) as steps:
        return steps.wait()


def _ordered(place: Path, lease: Path, abandon_s: float) -> bool:
    """Wait for the order; False: nobody is there to give one."""
    known, heard_at = folder.text_of(lease), time.monotonic()
    while not (place / folder.LAUNCH).exists():
        if (place / folder.STOP).exists():
            return False
        time.sleep(LOOK_EVERY_S)
        said = folder.text_of(lease)
        if said != known:
            known, heard_at = said, time.monotonic()
        elif time.monotonic() - heard_at > abandon_s:
            return False
    return not (place / folder.STOP).exists()


if __name__ == "__main__":
    sys.exit(main())
