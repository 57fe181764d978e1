"""What one call of `meridian simulate` does: read trace, network and policies, check them, run every policy over every seed.

Steps:
1. Everything that can be wrong is found before the first run: files, names, numbers, jobs that can never be placed.
2. A seed makes the failures of nodes and, if wanted, another trace of the same kind (`resampled`); every policy meets the same.
3. Runs are independent of each other: in one process or in several, their outcome is the same.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from meridian.errors import InvalidArgumentError
from meridian.result import DataSource
from services.scheduler.core.contracts.plan import plan_of
from services.scheduler.core.decide import Snapshot, decide
from services.scheduler.core.ledger import Ledger
from services.scheduler.core.policy import Policy
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.table import table_of
from services.scheduler.plugins import load_plugins
from services.scheduler.policy.file import parse, shipped, shipped_names
from simulation.contracts import ContractSimulation, shares
from simulation.domains import GIB, read_network
from simulation.engine import Simulation
from simulation.estimates import KNOWLEDGE
from simulation.fleet import fleet_of
from simulation.made_networks import least_nodes, philly_network, uniform
from simulation.measures import Measures
from simulation.model import UNKNOWN, Network, Trace, TraceJob
from simulation.plugin_errors import plugin_errors
from simulation.policies import SETTINGS
from simulation.setting import Setting
from simulation.simulated_job import SimulatedJob
from simulation.traces import days, limited, load, scaled

NETWORKS = Path(__file__).parent / "networks"
AUTO = "auto"
AUTO_LOAD = 0.8
MOST_AUTO_NODES = 100_000
_NODE_CPUS = 64.0
_NODE_MEMORY_BYTES = 512 * GIB
DAY_S = 86_400.0
RESAMPLINGS = ("none", "days")

Watch = Callable[[int, int, float], None]
"""Called with the number of the run, jobs ended and virtual seconds."""


# -- what to run -----------------------------------------------------------------------------------------------------


def network_names() -> tuple[str, ...]:
    """Networks that come with the simulator."""
    return tuple(sorted(path.stem for path in NETWORKS.glob("*.yaml")))


def network_of(text: str, trace: Trace, *, accelerators: int | None = None, node_size: int = 8) -> Network:
    """The network of a file, a shipped one by name, or "auto" (`automatic`). Raises `NetworkError`, `InvalidArgumentError`."""
    if text == AUTO:
        return automatic(trace, accelerators, node_size)
    if accelerators is not None:
        raise InvalidArgumentError("--accelerators is for --domains auto; a network file says what it has")
    if text in network_names():
        return read_network(NETWORKS / f"{text}.yaml")
    if not Path(text).exists():
        known = ", ".join(network_names())
        raise InvalidArgumentError(f"--domains: {text} is neither a file nor a shipped network ({known}, {AUTO})")
    return read_network(text)


def automatic(trace: Trace, accelerators: int | None, node_size: int) -> Network:
    """A network made for the trace: equal nodes, a domain per home domain in proportion to demand (`philly_network`).

    Without a number of accelerators it is the smallest one that makes the offered load at most 0.8, of accelerators as of
    CPUs and memory, and holds each domain's greatest job. Nodes have 64 CPUs and 512 GiB, or what the greatest rank asks for.
    A trace without accelerators gets one domain. Raises `InvalidArgumentError`: more than `MOST_AUTO_NODES` nodes would be
    needed.
    """
    jobs = trace.jobs
    span = jobs[-1].submit_s - jobs[0].submit_s if jobs else 0.0
    cpus = max(_NODE_CPUS, *(math.ceil(job.cpus) for job in jobs))
    memory_bytes = max(_NODE_MEMORY_BYTES, *(job.memory_bytes for job in jobs))
    # Nodes that are in use all the time, by the resource that takes most of them.
    in_use = max(
        sum(job.devices * job.duration_s for job in jobs) / node_size,
        sum(job.ranks * job.cpus * job.duration_s for job in jobs) / cpus,
        sum(job.ranks * job.memory_bytes * job.duration_s for job in jobs) / memory_bytes,
    ) / (span or math.inf)
    if not any(job.accelerators for job in jobs):
        if accelerators is not None:
            raise InvalidArgumentError("--accelerators: no job of the trace asks for an accelerator")
        greatest = max(least_nodes(job, 0, cpus, memory_bytes) for job in jobs)
        return uniform(1, _enough_nodes(greatest, in_use), 0, cpus=cpus, memory_bytes=memory_bytes)
    if accelerators is None:
        least: dict[str, int] = {}
        for job in jobs:
            home = job.home_domain or "default"
            least[home] = max(least.get(home, 1), least_nodes(job, node_size, cpus, memory_bytes))
        accelerators = _enough_nodes(sum(least.values()), in_use) * node_size
    return philly_network(trace, accelerators, node_size, cpus=cpus, memory_bytes=memory_bytes, model=_model_for(trace))


def _enough_nodes(least: int, in_use: float) -> int:
    """At least ``least`` nodes, and so many that ``in_use`` of them are a load of 0.8."""
    nodes = max(in_use / AUTO_LOAD, float(least), 1.0)
    if not nodes <= MOST_AUTO_NODES:
        raise InvalidArgumentError(
            f"--domains auto: the greatest job needs {least:,} nodes and all of them {nodes:g}, more than {MOST_AUTO_NODES:,};"
            " look for a job with too long a duration or too many ranks, or give a network"
        )
    return math.ceil(nodes)


def _model_for(trace: Trace) -> str:
    """The chip that most jobs of the trace accept, among those with known rates; "v100" where all do."""
    counts: dict[str, int] = {"v100": 0}
    rates = trace.throughputs
    models = {model for known in rates.rates.values() for model in known} if rates is not None else set()
    models |= {model for job in trace.jobs for model in job.accelerator_types} | {"v100"}
    for model in sorted(models):
        counts[model] = sum(
            (not job.accelerator_types or model in job.accelerator_types) and _rate(trace, job, model) > 0
            for job in trace.jobs
        )
    return max(counts, key=lambda model: counts[model])


def _rate(trace: Trace, job: TraceJob, model: str) -> float:
    if not job.profile or trace.throughputs is None or job.work <= 0:
        return 1.0
    return trace.throughputs.rate(job.profile, job.ranks, model)


def setting_of(text: str, *, knowledge: str | None = None, isolated: bool = False) -> tuple[Setting, DataSource | None]:
    """A baseline by name, a policy that the scheduler ships by name, or the policy in a file, with the file as a source.

    ``knowledge`` and ``isolated`` are for the last two; by default they know what is predicted, or what users declared
    when the policy's reservations rest on limits. Raises `InvalidArgumentError`, `PolicyError` (with the line).
    """
    if text in SETTINGS:
        return SETTINGS[text], None
    source = None
    if Path(text).suffix in {".yaml", ".yml", ".json"} or Path(text).is_file():
        try:
            data = Path(text).read_bytes()
            policy = parse(data.decode("utf-8"), text)
        except OSError as error:
            raise InvalidArgumentError(f"--policy: {text} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"--policy: {text} is not UTF-8 text") from error
        source = DataSource(Path(text).name, hashlib.sha256(data).hexdigest())
    elif text in shipped_names():
        policy = shipped(text)
    else:
        known = ", ".join([*sorted(SETTINGS), *(name for name in shipped_names() if name not in SETTINGS)])
        raise InvalidArgumentError(f"--policy: there is no policy {text!r}, nor a file; known are {known}")
    if knowledge is None:
        knowledge = "declared" if policy.estimate == "limit" else "predicted"
    if knowledge not in KNOWLEDGE:
        raise InvalidArgumentError(f"--knowledge: {knowledge!r} is none of {', '.join(KNOWLEDGE)}")
    name = f"isolated-{policy.name}" if isolated else policy.name
    return Setting(name, policy, knowledge, isolated, baseline=False, about=f"policy {policy.version}"), source


# -- seeds -----------------------------------------------------------------------------------------------------------


def resampled(trace: Trace, seed: int, block_s: float = DAY_S) -> Trace:
    """Another trace of the same kind: a block bootstrap of the trace's days (Kuensch 1989, non-overlapping blocks).

    1. Submissions are cut into blocks of ``block_s`` from the first one on; the last, unfinished block counts as one.
    2. As many blocks are drawn with replacement; each one's jobs keep their time within it (hour of the day, bursts).
    3. A job drawn a second time gets a new id ``job~2``, or the next that no job of the trace has. Deadlines keep their distance.

    Raises `InvalidArgumentError`: a trace of fewer than two blocks.
    """
    first = trace.jobs[0].submit_s
    blocks: dict[int, list[TraceJob]] = {}
    for job in trace.jobs:
        blocks.setdefault(int((job.submit_s - first) // block_s), []).append(job)
    count = max(blocks) + 1
    if count < 2:
        raise InvalidArgumentError("--resample days: the trace is shorter than two days")
    drawn = np.random.default_rng([seed, 0x7E5A]).integers(0, count, count)
    seen: dict[str, int] = {}
    own = {job.job_id for job in trace.jobs}
    jobs: list[TraceJob] = []
    for place, block in enumerate(drawn.tolist()):
        shift_s = (place - block) * block_s
        for job in blocks.get(block, ()):
            number = seen.get(job.job_id, 0) + 1
            while number > 1 and f"{job.job_id}~{number}" in own:
                number += 1
            seen[job.job_id] = number
            job_id = job.job_id if number == 1 else f"{job.job_id}~{number}"
            jobs.append(
                replace(job, job_id=job_id, submit_s=job.submit_s + shift_s, deadline_s=job.deadline_s + shift_s)
            )
    if not jobs:
        raise InvalidArgumentError("--resample days: only days without a job were drawn")
    return replace(trace, jobs=jobs)


# -- jobs without a place --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unfit:
    """Jobs that no amount of waiting would place under a setting, and why the first of them has no place; ``place`` is its file and
    line (`Trace.place`)."""

    setting: str
    job_ids: tuple[str, ...]
    reason: str
    place: str = ""

    def text(self, jobs: int) -> str:
        """For people."""
        return (
            f"{self.place}{len(self.job_ids)} of {jobs} jobs can never be placed by {self.setting}; "
            f"for example {self.job_ids[0]}: {self.reason}"
        )


def _shape(job: TraceJob, *, isolated: bool) -> tuple[object, ...]:
    home = job.home_domain if isolated else ""
    resources = tuple(sorted(job.resources.items()))
    models = job.accelerator_types
    size = (job.ranks, job.min_ranks, job.accelerators, job.cpus, job.memory_bytes, job.device_share)
    return (*size, home, models, resources, job.profile, job.cross_domain)


def unfit(network: Network, trace: Trace, settings: Sequence[Setting]) -> list[Unfit]:
    """Which jobs the empty, complete network would not take, by setting. Each shape of jobs is tried once.

    The engine itself decides: jobs of 1 s that never meet each other, on nodes that do not fail, in greedy order without
    limits; a policy with a planner may give an elastic job as few ranks as it accepts. A job whose throughput is 0 on
    every chip of the network that it accepts would never end, and counts too.
    """
    whole = replace(network, domains=[replace(domain, spot=(), mtbf_node_s=UNKNOWN) for domain in network.domains])
    models = {node.model for node in network.nodes if node.accelerators}
    tried: dict[tuple[Policy, bool, bool], tuple[tuple[str, ...], str]] = {}
    found = []
    for setting in settings:
        policy = replace(
            setting.policy,
            name="probe",
            order=("age",),
            limits=(),
            discipline="greedy",
            preemptions=(),
            planner="",
            interval_s=0.0,
        )
        planned = bool(setting.policy.planner)
        answer = tried.get((policy, setting.isolated, planned))
        if answer is None:
            answer = _probe(whole, trace, replace(setting, policy=policy, knowledge="none"), models, planned=planned)
            tried[policy, setting.isolated, planned] = answer
        if answer[0]:
            found.append(Unfit(setting.name, *answer, trace.place(answer[0][0])))
    return found


def _probe(
    network: Network, trace: Trace, setting: Setting, models: set[str], *, planned: bool
) -> tuple[tuple[str, ...], str]:
    shapes: dict[tuple[object, ...], list[TraceJob]] = {}
    for job in trace.jobs:
        shapes.setdefault(_shape(job, isolated=setting.isolated), []).append(job)
    reasons: dict[str, str] = {}
    probes = []
    for place, (job, *_) in enumerate(shapes.values()):
        if job.accelerators and job.profile and models:
            accepted = models & set(job.accelerator_types) if job.accelerator_types else models
            if accepted and not any(_rate(trace, job, model) > 0 for model in accepted):
                reasons[job.job_id] = (
                    f"{job.profile} with {job.ranks} ranks was measured on none of {', '.join(sorted(accepted))}"
                )
                continue
        probe = replace(job, submit_s=2.0 * place, duration_s=1.0, work=0.0, data_bytes=0.0, deadline_s=UNKNOWN)
        if planned and job.min_ranks:
            probe.ranks = job.min_ranks
        probes.append(probe)
    if probes:
        with plugin_errors(setting) as watched:
            watched.world = simulation = Simulation(network, replace(trace, jobs=probes), setting)
            simulation.run()
            table = table_of(fleet_of(network))
            for unit in simulation.cluster.pending:
                blocked = decide(Snapshot(table, Ledger(), [unit]), setting.policy).blocked
                reasons[unit.key.job_id] = blocked[0].explanation.reason if blocked else "no node takes it"
    ids = tuple(job.job_id for jobs in shapes.values() if jobs[0].job_id in reasons for job in jobs)
    return ids, next(iter(reasons.values()), "")


def without(trace: Trace, job_ids: set[str]) -> Trace:
    """The trace without these jobs. Raises `InvalidArgumentError` when none remains."""
    jobs = [job for job in trace.jobs if job.job_id not in job_ids]
    if not jobs:
        raise InvalidArgumentError("no job of the trace can ever be placed on this network")
    return replace(trace, jobs=jobs)


# -- running ---------------------------------------------------------------------------------------------------------


class PlacedMeasures(Measures):
    """Measures that also remember where each job ran last, and who still waits or runs at the end."""

    def __init__(self, network: Network, *, processors: bool = False) -> None:
        super().__init__(network, processors=processors)
        self.placed: dict[str, tuple[tuple[str, ...], tuple[str, ...], float]] = {}
        """Domains and nodes of a job's last run, and when it first started."""

    def started(self, item: SimulatedJob, running: RunningUnit, now_s: float) -> None:
        """A job got nodes."""
        super().started(item, running, now_s)
        domains = tuple(dict.fromkeys(rank.domain_id for rank in running.ranks))
        nodes = tuple(dict.fromkeys(rank.node_id for rank in running.ranks))
        self.placed[item.job.job_id] = (domains, nodes, item.first_start_s)


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that determines the outcome, but the seed. ``load`` None leaves submissions where they are; ``until_s`` counts
    from the first one."""

    network: Network
    trace: Trace
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...] = (0,)
    load: float | None = None
    resample: str = "none"
    until_s: float = math.inf

    def trace_of(self, seed: int) -> Trace:
        """The jobs that every policy meets with this seed. Resampled first, then brought to the load."""
        trace = resampled(self.trace, seed) if self.resample == "days" else self.trace
        return trace if self.load is None else scaled(trace, self.network, self.load)

    def has_chance(self) -> bool:
        """Whether seeds make a difference."""
        return self.resample != "none" or any(not math.isnan(domain.mtbf_node_s) for domain in self.network.domains)


@dataclass(slots=True)
class Run:
    """A policy with a seed, and what came of it."""

    setting: Setting
    seed: int
    measures: PlacedMeasures
    wall_s: float


@dataclass(slots=True)
class _Worker:
    """What a process keeps between runs."""

    experiment: Experiment
    traces: dict[int, Trace] = field(default_factory=dict)

    def run(self, setting: Setting, seed: int, watch: Callable[[int, float], None] | None = None) -> Run:
        if seed not in self.traces:
            self.traces = {seed: self.experiment.trace_of(seed)}
        started = time.perf_counter()
        trace = self.traces[seed]
        kind = Simulation if plan_of(setting.policy) is None else ContractSimulation
        with plugin_errors(setting, seed) as watched:
            watched.world = simulation = kind(
                self.experiment.network,
                trace,
                setting,
                seed=seed,
                until_s=trace.jobs[0].submit_s + self.experiment.until_s,
                watch=watch,
            )
            processors = simulation.measures.processors
            measures = simulation.measures = PlacedMeasures(self.experiment.network, processors=processors)
            simulation.run()
        if isinstance(simulation, ContractSimulation):
            report = shares(simulation.account, trace.jobs[0].submit_s, trace.jobs[-1].submit_s)
            measures.extra["contract_windows_kept_share"] = report.kept
            measures.extra["contract_windows_count"] = float(len(report.deviations))
            measures.extra["contract_deviation_p50_ratio"] = report.quantile(0.5)
            measures.extra["contract_deviation_p99_ratio"] = report.quantile(0.99)
        return Run(setting, seed, measures, time.perf_counter() - started)


_process: list[_Worker] = []


def _begin(experiment: Experiment) -> None:
    load_plugins()
    _process[:] = [_Worker(experiment)]


def _run_in_process(setting: Setting, seed: int) -> Run:
    return _process[0].run(setting, seed)


def run_all(experiment: Experiment, *, processes: int = 1, watch: Watch | None = None) -> list[Run]:
    """Every policy with every seed; runs in the order seed by seed, policies as named."""
    tasks = [(setting, seed) for seed in experiment.seeds for setting in experiment.settings]
    if processes == 1 or len(tasks) == 1:
        return list(_one_by_one(experiment, tasks, watch))
    runs: dict[int, Run] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(tasks)), context, _begin, (experiment,)) as pool:
        waiting = {pool.submit(_run_in_process, *task): number for number, task in enumerate(tasks)}
        try:
            for future in as_completed(waiting):
                number = waiting[future]
                runs[number] = future.result()
                if watch is not None:
                    watch(number, len(runs[number].measures.jobs), runs[number].measures.now_s)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [runs[number] for number in range(len(tasks))]


def _one_by_one(experiment: Experiment, tasks: Sequence[tuple[Setting, int]], watch: Watch | None) -> Iterator[Run]:
    worker = _Worker(experiment)
    for number, (setting, seed) in enumerate(tasks):

        def tell(ended: int, now_s: float, number: int = number) -> None:
            if watch is not None:
                watch(number, ended, now_s)

        yield worker.run(setting, seed, tell)


def read_trace(
    path: str, form: str, options: Mapping[str, str], jobs: int | None, span: tuple[int, int] | None = None
) -> Trace:
    """The trace, or its days ``span`` (first and last), or the first ``jobs`` jobs of them. Raises `TraceError`."""
    trace = load(path, form, **options)
    if span is not None:
        trace = days(trace, *span)
    return trace if jobs is None else limited(trace, jobs)
