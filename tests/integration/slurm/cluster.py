"""A real Slurm on this machine: munged, slurmctld and one slurmd per node, on loopback, in one folder.

No systemd, no cgroups, no root needed. Several slurmd on one host need a build with ``--enable-multiple-slurmd``; Debian's has it.
Accelerators are plain files that gres.conf names, so allocations have indices; nothing drives them.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from agent.node import proc
from meridian.embedded.probes import tcp_accepts
from meridian.embedded.process import ProcessSpec
from tests.fixtures_embedded import free_port, running

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo", "sdiag")
NODES = ("n1", "n2", "n3")
CPUS, MEMORY_MIB, GPUS = 8, 16_000, 4
PATIENCE_S = 120.0
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

_CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=3
SlurmdTimeout=10
MinJobAge=300
GresTypes=gpu
DefMemPerCPU=100
Licenses=matlab:2
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=60 DefaultTime=30 State=UP
PartitionName=short Nodes=n1 MaxTime=2 State=UP
"""


def absent() -> str:
    """Programs of Slurm that this machine does not have."""
    return " ".join(name for name in PROGRAMS if shutil.which(name, path=_PATH) is None)


@dataclass(slots=True)
class SlurmCluster:
    """A running cluster; ``configuration`` is what SLURM_CONF names."""

    folder: Path
    life: contextlib.ExitStack
    """Of munged and the controllers."""
    ports: dict[str, int]
    slurmds: dict[str, Popen[bytes]] = field(default_factory=dict)
    controller: Popen[bytes] | None = None

    @property
    def configuration(self) -> Path:
        """The path of slurm.conf."""
        return self.folder / "slurm.conf"

    def call(self, *words: str, check: bool = True) -> str:
        """What a program of Slurm prints."""
        done = subprocess.run(
            words,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            cwd=self.folder,
        )
        assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    def environment(self) -> dict[str, str]:
        """Variables under which its programs speak to it."""
        return {**os.environ, "PATH": _PATH, "SLURM_CONF": str(self.configuration), "TZ": "UTC"}

    def jobs(self) -> dict[int, tuple[str, str]]:
        """Name and state of every job that it remembers."""
        lines = self.call("squeue", "-h", "-a", "-t", "all", "-o", "%A|%j|%T").splitlines()
        return {int(number): (name, state) for number, name, state in (line.split("|") for line in lines)}

    def node_dies(self, name: str) -> None:
        """``SIGKILL`` to the node's daemon and everything that it started."""
        mark = f"MERIDIAN_TEST_SLURM={self.folder}:{name}".encode()
        proc.kill_until_gone(lambda: proc.marked_processes(mark))
        self.slurmds[name].wait()

    def start_controller(self, *options: str) -> None:
        """Start slurmctld; the one before it, if there is one, ends (and saves what it knows: after SIGKILL its successor would
        not know the jobs of the last seconds, and end them)."""
        if self.controller is not None:
            self.controller.terminate()
            self.controller.wait()
        words = ("slurmctld", "-D", *options, "-f", str(self.configuration))
        self.controller = self.life.enter_context(running(_spec(self, "slurmctld", words, self.ports["controller"])))

    def until(self, wanted: str, *words: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until a program's output holds a text."""
        end = time.monotonic() + patience_s
        while wanted not in (found := self.call(*words, check=False)):
            assert time.monotonic() < end, f"{' '.join(words)} says {found!r}, not {wanted!r}"
            time.sleep(0.1)


@contextlib.contextmanager
def slurm_running(folder: Path) -> Iterator[SlurmCluster]:
    """The cluster until the block ends; nothing of it is left then."""
    ports = {name: free_port(name) for name in ("controller", *NODES)}
    _write(folder, ports)
    with contextlib.ExitStack() as life:
        life.callback(_end_marked, folder)
        munge = folder / "munge"
        arguments = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        daemon = ("munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *arguments)
        # Controllers end after nodes and jobs, whichever of them started last.
        cluster = SlurmCluster(folder, life.enter_context(contextlib.ExitStack()), ports)
        cluster.life.enter_context(running(_spec(cluster, "munged", daemon)))
        _until_there(munge / "socket")
        # -D stays in the foreground, so that the process is ours to end; -c forgets what was.
        cluster.start_controller("-c")
        for name in NODES:
            words = ("slurmd", "-D", "-N", name, "-f", str(cluster.configuration))
            cluster.slurmds[name] = life.enter_context(running(_spec(cluster, name, words, ports[name])))
        life.callback(_end_jobs, cluster)
        cluster.until(f"{len(NODES)}|idle", "sinfo", "-h", "-p", "main", "-o", "%D|%T")
        yield cluster


def _write(folder: Path, ports: dict[str, int]) -> None:
    folder.chmod(0o755)
    for name in ("munge", "state", "gpu", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(parents=True)
    (folder / "munge").chmod(0o700)
    key = folder / "munge/key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    for number in range(GPUS):
        (folder / f"gpu/{number}").touch()
    shape = f"CPUs={CPUS} CoresPerSocket={CPUS} RealMemory={MEMORY_MIB} Gres=gpu:h100:{GPUS}"
    nodes = [f"NodeName={n} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[n]} {shape}" for n in NODES]
    (folder / "slurm.conf").write_text(
        _CONFIGURATION.format(
            folder=folder,
            user=getpass.getuser(),
            controller_port=ports["controller"],
            nodes="\n".join(nodes),
            names=",".join(NODES),
        )
    )
    (folder / "gres.conf").write_text(
        f"NodeName={','.join(NODES)} Name=gpu Type=h100 File={folder}/gpu/[0-{GPUS - 1}]\n"
    )


def _spec(cluster: SlurmCluster, name: str, words: tuple[str, ...], port: int = 0) -> ProcessSpec:
    program = shutil.which(words[0], path=_PATH)
    assert program is not None, words[0]
    return ProcessSpec(
        name=name,
        argv=(program, *words[1:]),
        env={**cluster.environment(), "MERIDIAN_TEST_SLURM": f"{cluster.folder}:{name}"},
        cwd=cluster.folder,
        log_path=cluster.folder / f"{name}.log",
        ready=tcp_accepts("127.0.0.1", port) if port else None,
        stop_timeout_s=3,
    )


def _until_there(path: Path, patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not path.exists():
        assert time.monotonic() < end, f"{path} is not there"
        time.sleep(0.02)


def _end_jobs(cluster: SlurmCluster) -> None:
    """Let Slurm end its jobs while its daemons live."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        cluster.call("scancel", "--full", "-u", getpass.getuser(), check=False)
        end = time.monotonic() + 8
        while cluster.call("squeue", "-h", "-o", "%A", check=False) and time.monotonic() < end:
            time.sleep(0.1)


def _end_marked(folder: Path) -> None:
    """What daemons left: step daemons and their programs, by the mark that they inherit."""
    for name in NODES:
        mark = f"MERIDIAN_TEST_SLURM={folder}:{name}".encode()
        proc.kill_until_gone(lambda mark=mark: proc.marked_processes(mark))


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory(prefix="slurm-") as name, slurm_running(Path(name)) as found:
        sys.stdout.write(f"export SLURM_CONF={found.configuration}\n")
        sys.stdout.flush()
        signal.pause()
