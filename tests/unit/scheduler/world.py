"""A small network for tests of the scheduler's core, driven without I/O: what the simulator does, in a few lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from services.scheduler.core import lifecycle
from services.scheduler.core.book import Book, Draft
from services.scheduler.core.cycle import Cycle, run_cycle
from services.scheduler.core.deciding.decisions import Decisions
from services.scheduler.core.effects import Effect
from services.scheduler.core.fleet import Device, Domain, Fleet, Link, Node, with_domain
from services.scheduler.core.lifecycle import Failure, RunReport
from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Checkpoint, Demand, FailureKind, JobKind, JobSpec, Run, UnitKey

GIB = 2**30
E = TypeVar("E", bound=Effect)


def a_node(
    node_id: str, domain_id: str, *, cpus: float = 8.0, devices: int = 4, model: str = "A100", **more: object
) -> Node:
    return Node(
        node_id,
        domain_id,
        cpus,
        64 * GIB,
        tuple(Device(index, "NVIDIA", model, compute_id=f"{node_id}/{index}") for index in range(devices)),
        compute_id=f"id/{node_id}",
        **more,  # type: ignore[arg-type]
    )


def a_fleet(sizes: dict[str, int], **node: object) -> Fleet:
    """Domains with so many nodes, 10 ms apart from each other."""
    fleet = Fleet()
    for name, size in sizes.items():
        links = tuple(Link(other, 0.01, 1e9) for other in sizes if other != name)
        nodes = [a_node(f"{name}-{number}", name, **node) for number in range(size)]  # type: ignore[arg-type]
        fleet = with_domain(fleet, Domain(name, links=links), nodes, full_of=name)
    return fleet


def task(**demand: object) -> JobSpec:
    return JobSpec(JobKind.TASK, Demand(1, **{"cpus": 1.0, **demand}), command=("run",))  # type: ignore[arg-type]


def gang(ranks: int, **demand: object) -> JobSpec:
    return JobSpec(JobKind.GANG, Demand(1, **{"cpus": 1.0, **demand}), ranks=ranks, command=("run",))  # type: ignore[arg-type]


@dataclass
class World:
    """A book with a clock; every act is merged at once and its effects are kept."""

    fleet: Fleet
    policy: Policy = field(default_factory=Policy)
    now_s: float = 1000.0
    book: Book = field(default_factory=Book)
    effects: list[Effect] = field(default_factory=list)
    decisions: Decisions = field(default_factory=lambda: Decisions(""))
    last: Cycle = field(default_factory=lambda: Cycle(Decisions("")))
    ids: int = 0

    def __post_init__(self) -> None:
        self.book = Book(self.policy)
        draft = self.book.draft()
        draft.fleet = self.fleet
        self.merge(draft)

    @property
    def rules(self):  # type: ignore[no-untyped-def]
        return self.policy.restarts

    def merge(self, draft: Draft) -> None:
        self.book.merge(draft)
        self.effects += draft.effects

    def submit(self, job_id: str, spec: JobSpec, tenant: str = "lab") -> None:
        draft = self.book.draft()
        lifecycle.submit(draft, job_id, tenant, spec, self.now_s)
        self.merge(draft)

    def cancel(self, job_id: str) -> None:
        draft = self.book.draft()
        lifecycle.cancel(draft, job_id, "", self.now_s, self.rules)
        self.merge(draft)

    def cycle(self, *, whole: bool = True) -> Decisions:
        """Decide; with ``whole`` about every unit, else the core may leave out those of which nothing is new."""
        if whole:
            self.book.cluster.forget()
        draft = self.book.draft()
        self.last = run_cycle(draft, self.policy, self.now_s, self._new_id)
        self.decisions = self.last.decisions
        self.merge(draft)
        self.book.remember(self.decisions)
        return self.decisions

    def _new_id(self) -> str:
        self.ids += 1
        return f"decision-{self.ids}"

    def restart(self) -> None:
        """The process dies: the book is built from what was written."""
        old = self.book
        self.book = Book.restored(old.fleet, old.jobs.values(), old.units.values(), old.runs.values(), self.policy)

    def checkpoint(self, run: Run, step: int) -> None:
        draft = self.book.draft()
        where = Checkpoint(f"/ckpt/{step}", step, run.domains[0], 100)
        lifecycle.checkpointed(draft, RunReport(run.run_id, run.domains[0]), where, self.now_s)
        self.merge(draft)

    def start(self, run: Run) -> None:
        draft = self.book.draft()
        lifecycle.started(draft, RunReport(run.run_id, run.domains[0]), self.now_s)
        self.merge(draft)

    def run(self, job_id: str, unit_index: int = 0) -> Run:
        """The open run of a unit."""
        names = self.book.runs_of[UnitKey(job_id, unit_index)]
        assert len(names) == 1
        return self.book.runs[next(iter(names))]

    def finish(self, run: Run, domains: Iterable[str] | None = None) -> None:
        for domain_id in run.domains if domains is None else domains:
            draft = self.book.draft()
            lifecycle.finished(draft, RunReport(run.run_id, domain_id), self.now_s, self.rules)
            self.merge(draft)

    def fail(self, run: Run, kind: FailureKind, domain_id: str | None = None) -> None:
        draft = self.book.draft()
        report = RunReport(run.run_id, domain_id or run.domains[0])
        lifecycle.failed(draft, report, Failure(kind), self.now_s, self.rules)
        self.merge(draft)

    def advance(self, seconds: float) -> None:
        """Let time pass and carry out what is due."""
        self.now_s += seconds
        draft = self.book.draft()
        lifecycle.tick(draft, self.book.due(self.now_s), self.now_s, self.rules)
        self.merge(draft)

    def of(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects if isinstance(effect, kind)]
