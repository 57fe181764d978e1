"""Elastic training jobs that choose their batch size: workloads of Sia on measured step times and gradient noise.

Where traces/sia.py keeps a job's batch size, here a job takes the best one for the devices that it has (`Application.best`), and its
rate changes at the end of each epoch, as the noise of its gradients does. Progress is counted in steps of the application's
initial batch size. What was read from the authors' simulator, and where this one differs: planners/README.md.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.scheduler.planners.goodput import Application, read_gradient_noise, read_step_times
from simulation.model import Network, SimDomain, SimNode, Throughputs, Trace, TraceJob
from simulation.traces.errors import TraceError
from simulation.traces.reading import read_text

Floats = npt.NDArray[np.float64]

KINDS = {"t4": "aws", "a100": "dgx-ext", "rtx2080ti": "rtx"}
"""Accelerator models of the authors' cluster, and the names of their measurements."""
NODES = {"t4": (6, 4), "a100": (2, 8), "rtx2080ti": (3, 8)}
"""Nodes, and accelerators in each."""
RESTART_S = {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0, "ncf": 15.0}
SLOW_DOWN = {"cifar10": 1.8, "ncf": 1.5, "imagenet": 1.2, "yolov3": 1.2, "bert": 1.2, "deepspeech2": 1.2}
_MAX_LOCAL = {"deepspeech2": {"rtx": 57}}


class AdaptiveThroughputs(Throughputs):
    """Rates of profiles ``application/greatest batch that the user allows`` by model, ranks, nodes and phase (epoch)."""

    def __init__(self, applications: dict[str, Application]) -> None:
        super().__init__()
        self._applications = applications
        self._ends = {name: item.noise.epoch_ends() for name, item in applications.items()}
        self._curves: dict[tuple[str, int, str, int], tuple[Floats, Floats] | None] = {}
        self._known: dict[tuple[str, int, str, int, int], float] = {}

    def work(self, application: str) -> float:
        """Steps of the initial batch size to the end of training."""
        return float(self._ends[application][-1])

    def phase(self, profile: str, left: float) -> int:
        """The epoch in which a job is that has so much work left."""
        ends = self._ends[profile.partition("/")[0]]
        return min(int(np.searchsorted(ends, float(ends[-1]) - left + 1e-6, side="right")), ends.size - 1)

    def rate_in(self, profile: str, ranks: int, model: str, nodes: int, phase: int) -> float:
        """Work per second in a phase, at the best batch size that the user allows: what a planner reckons with."""
        key = profile, ranks, model, nodes, phase
        found = self._known.get(key)
        if found is None:
            name, _, batch = profile.partition("/")
            best = (
                self._applications[name].best(KINDS[model], nodes, ranks, phase, float(batch))
                if model in KINDS
                else None
            )
            rate = best.goodput if best is not None else 0.0
            found = self._known[key] = rate / self._applications[name].noise.initial_batch / SLOW_DOWN[name]
        return found

    def rate(self, profile: str, ranks: int, model: str) -> float:
        """The rate in the first phase on as few nodes as possible."""
        if model not in NODES:
            return 0.0
        return self.rate_in(profile, ranks, model, -(-ranks // NODES[model][1]), 0)

    def curve(self, profile: str, ranks: int, model: str, nodes: int) -> tuple[Floats, Floats] | None:
        """Work done (E + 1) and the seconds that it takes, at the best batch size that was measured; None where it does
        not run. A spread over more nodes than were measured counts as the nearest that was."""
        key = profile, ranks, model, nodes
        if key not in self._curves:
            found = None
            for count in range(nodes, 0, -1):
                found = self._curve(profile.partition("/")[0], ranks, model, count)
                if found is not None:
                    break
            self._curves[key] = found
        return self._curves[key]

    def _curve(self, name: str, ranks: int, model: str, nodes: int) -> tuple[Floats, Floats] | None:
        application, ends = self._applications[name], self._ends[name]
        rates = np.array([application.progress_rate(KINDS[model], nodes, ranks, epoch) for epoch in range(ends.size)])
        if (rates <= 0).any():
            return None
        work = np.concatenate([[0.0], ends])
        seconds = np.concatenate([[0.0], np.cumsum(np.diff(work) / rates * SLOW_DOWN[name])])
        return work, seconds


def read_applications(folder: Path | str) -> tuple[dict[str, Application], str]:
    """The measured applications of a folder, and a digest of what was read. Raises `TraceError` where there are none."""
    digest = hashlib.sha256()
    found: dict[str, Application] = {}
    for name in sorted(RESTART_S):
        place = Path(folder) / name

        def lines(path: Path) -> list[str]:
            text, sha256 = read_text(path)
            digest.update(sha256.encode())
            return text.splitlines()

        times = {
            kind: read_step_times(lines(place / f"placements-{kind}.csv"), lines(place / f"scalability-{kind}.csv"))
            for kind in KINDS.values()
        }
        noise = {int(path.stem.split("-")[1]): lines(path) for path in sorted(place.glob("validation-*.csv"))}
        if not noise:
            raise TraceError("holds no validation-*.csv", path=place)
        found[name] = Application(
            name, times, read_gradient_noise(noise), restart_s=RESTART_S[name], max_local=_MAX_LOCAL.get(name, {})
        )
    return found, digest.hexdigest()


def load(path: Path | str, applications: tuple[dict[str, Application], str], *, elastic: bool = True) -> Trace:
    """A workload (name, time, application, num_replicas, batch_size) with its restart costs; see the module."""
    text, sha256 = read_text(path)
    measured, tables = applications
    throughputs = AdaptiveThroughputs(measured)
    jobs = []
    reader = csv.DictReader(text.splitlines())
    for row in reader:
        line = reader.line_num
        try:
            name, ranks, batch = row["application"], int(row["num_replicas"]), int(row["batch_size"])
            submit_s = float(row["time"])
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"not a row of a workload: {error}", path=path, line=line) from error
        if name not in measured or ranks < 1 or batch < 1 or not submit_s >= 0:
            raise TraceError(
                f"application {name!r}, {ranks} replicas, batch {batch}, time {submit_s}", path=path, line=line
            )
        profile = f"{name}/{batch}"
        curve = throughputs.curve(profile, 1, "t4", 1)
        assert curve is not None
        jobs.append(
            TraceJob(
                job_id=row["name"],
                submit_s=submit_s,
                duration_s=float(curve[1][-1]),
                ranks=ranks,
                accelerators=1,
                name=name,
                profile=profile,
                work=throughputs.work(name),
                min_ranks=1 if elastic else 0,
                max_ranks=64 if elastic else 0,
                restart_cost_s=RESTART_S[name],
            )
        )
    jobs.sort(key=lambda job: (job.submit_s, job.job_id))
    digest = hashlib.sha256((sha256 + tables).encode()).hexdigest()
    return Trace(Path(path).stem, jobs, throughputs, sha256=digest)


def network() -> Network:
    """The authors' cluster of 64 accelerators, a domain per type."""
    domains = [
        SimDomain(
            model,
            [SimNode(f"{model}-{index}", model, 96.0, 1 << 40, each, model, "NVIDIA") for index in range(count)],
        )
        for model, (count, each) in NODES.items()
    ]
    return Network(domains, name="sia-64")
