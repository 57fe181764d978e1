"""The probe program, version 1: what is run, at which sizes, and the result as it is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from agent.benchmark.backends import Backend
from agent.benchmark.timing import timed

PROGRAM = "meridian-probe/1"
"""Results under different ids are not compared."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the work is; results of different sizes are different tasks."""

    matrix: int
    copy_bytes: int
    transfer_bytes: int
    batch: int
    length: int
    width: int
    budget_s: float


CPU_QUICK = Sizes(512, 1 << 26, 1 << 25, 2, 128, 256, 0.3)
CPU = Sizes(2048, 1 << 28, 1 << 28, 4, 256, 512, 3.0)
CUDA_QUICK = Sizes(4096, 1 << 28, 1 << 27, 8, 512, 1024, 0.5)
CUDA = Sizes(8192, 1 << 30, 1 << 29, 16, 1024, 2048, 3.0)


TINY = Sizes(64, 1 << 16, 1 << 20, 2, 8, 16, 0.0)


def sizes_of(name: str, *, cuda: bool) -> Sizes:
    """The sizes of a name: ``full``, ``quick`` (seconds) or ``tiny`` (to try the way)."""
    if name == "tiny":
        return TINY
    if cuda:
        return CUDA if name == "full" else CUDA_QUICK
    return CPU if name == "full" else CPU_QUICK


@dataclass(frozen=True, slots=True)
class Value:
    """One measured throughput."""

    task: str
    precision: str
    throughput: float
    unit: str
    seconds: float
    spread: float
    runs: int


def run(backend: Backend, sizes: Sizes, clock: Callable[[], float]) -> list[Value]:
    """All values of one probe run on ``backend``."""
    found = []
    for precision in backend.precisions:
        work = backend.matrix_product(sizes.matrix, precision)
        found.append(_value("gemm", precision, 2.0 * sizes.matrix**3, "FLOP/s", work, clock, sizes))
    copy = backend.copy(sizes.copy_bytes)
    found.append(_value("memory_bandwidth", "unstated", 2.0 * sizes.copy_bytes, "By/s", copy, clock, sizes))
    transfer = backend.transfer(sizes.transfer_bytes)
    if transfer is not None:
        name, work = transfer
        found.append(_value(name, "unstated", float(sizes.transfer_bytes), "By/s", work, clock, sizes))
    for precision in backend.precisions:
        work = backend.training_step(sizes.batch, sizes.length, sizes.width, precision)
        tokens = float(sizes.batch * sizes.length)
        found.append(_value("transformer_step", precision, tokens, "{token}/s", work, clock, sizes))
    return found


def _value(
    task: str,
    precision: str,
    amount: float,
    unit: str,
    work: Callable[[], None],
    clock: Callable[[], float],
    sizes: Sizes,
) -> Value:
    took = timed(work, clock, budget_s=sizes.budget_s)
    return Value(task, precision, amount / took.seconds, unit, took.seconds, took.spread, took.runs)


def program_id(sizes: Sizes) -> str:
    """The program with its sizes, since throughput depends on them."""
    return f"{PROGRAM} {sizes.matrix}/{sizes.batch}x{sizes.length}x{sizes.width}"


def body(run_id: str, chip: str, software: str, measured_at: str, sizes: Sizes, values: list[Value]) -> dict[str, Any]:
    """The result as the network takes it."""
    kept = ("task", "precision", "throughput", "unit")
    return {
        "run_id": run_id,
        "chip": chip,
        "origin": "probe",
        "program": program_id(sizes),
        "software": software,
        "measured_at": measured_at,
        "results": [{name: value for name, value in asdict(each).items() if name in kept} for each in values],
    }
