"""The index as it is served: fitted to everything measured, dated, versioned, each entry with its band and evidence."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from meridian.hardware import Catalogue, Tier
from services.telemetry.index import features
from services.telemetry.index.cats import Scores, scores
from services.telemetry.index.cells import Cell
from services.telemetry.index.evaluation import BAND, BAND_DEVIATIONS
from services.telemetry.index.matrix import Column
from services.telemetry.index.model import FUNCTION_ID, IndexModel
from services.telemetry.index.selection import MOST_CELLS

REFERENCE = "a100-sxm4-80gb"
"""The chip whose index is 1 for every task."""
GEMM = "gemm"


class Origin(StrEnum):
    """Where a measurement comes from."""

    PROBE = "probe"
    PUBLISHED = "published"
    CATALOGUE = "catalogue"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured throughput, with what is needed to judge it."""

    chip_id: str
    column: Column
    throughput: float
    origin: Origin
    source: str
    measured_at: datetime | None
    software: str = ""


class Basis(StrEnum):
    """What an entry mostly rests on, best first."""

    MEASURED = "this chip measured on this task and precision"
    PROBED = "this chip measured on other tasks"
    OTHERS = "other chips measured on this task"
    FACTS = "facts of the catalogue only"


@dataclass(frozen=True, slots=True)
class Entry:
    """How fast a chip is relative to the reference: ``index`` within ``low`` to ``high`` with probability ``band``."""

    chip_id: str
    task: str
    precision: str
    n_accel: int
    index: float
    low: float
    high: float
    band: float
    basis: Basis
    evidence: tuple[Measurement, ...]
    """Measurements of this chip, those of this task first."""
    other_measurements: int
    """Measurements of other chips that the fit rests on."""
    scores: Scores


class ServedIndex:
    """Fitted once; answers for any chip of the catalogue."""

    def __init__(self, measurements: Sequence[Measurement], catalogue: Catalogue, fitted_at: datetime) -> None:
        """``measurements``, oldest first; those of chips whose facts do not suffice are left aside."""
        self.fitted_at = fitted_at
        self._catalogue = catalogue
        self._measurements = tuple(
            each for each in measurements if features.usable(catalogue.chip(each.chip_id), each.column.precision)
        )
        # Cost grows with the cube of the cells, so the newest are kept (measurements come in the order of time).
        newest: dict[Cell, None] = {}
        for each in reversed(self._measurements):
            newest.setdefault((each.chip_id, each.column))
            if len(newest) == MOST_CELLS:
                break
        self._measurements = tuple(each for each in self._measurements if (each.chip_id, each.column) in newest)
        runs: dict[Cell, list[float]] = {}
        for each in self._measurements:
            runs.setdefault((each.chip_id, each.column), []).append(each.throughput)
        cells = {cell: statistics.median(values) for cell, values in runs.items()}
        if not cells:
            # An anchor without weight: one cell says nothing about ratios.
            cells = {(REFERENCE, Column("", "", "", 1)): 1.0}
        chips = {chip.id: chip for chip in catalogue}
        chips |= {chip_id: catalogue.chip(chip_id) for chip_id, _ in cells}
        self._chips = chips
        self._model = IndexModel.fit(cells, chips)
        text = "\n".join(sorted(f"{chip}|{column}|{value!r}" for (chip, column), value in cells.items()))
        self.version = f"{FUNCTION_ID}+{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def tasks(self) -> tuple[tuple[str, str], ...]:
        """Task families and precisions with measurements."""
        return tuple(sorted({(each.column.task, each.column.precision) for each in self._measurements}))

    @property
    def measurements(self) -> int:
        """How many the fit rests on."""
        return len(self._measurements)

    def entry(self, chip_id: str, task: str, precision: str, n_accel: int = 1) -> Entry | None:
        """The entry of a chip; None when its facts do not suffice. KeyError for an unknown id."""
        chip = self._chips[chip_id] if chip_id in self._chips else self._catalogue.chip(chip_id)
        self._chips[chip_id] = chip
        if not features.usable(chip, precision):
            return None
        column = self._column(task, precision, n_accel)
        log_ratio, deviation = self._model.log_ratio(chip_id, REFERENCE, column)
        half = BAND_DEVIATIONS * deviation
        own = [each for each in self._measurements if each.chip_id == chip_id]
        same = [each for each in own if (each.column.task, each.column.precision) == (task, precision)]
        elsewhere = [each for each in self._measurements if each.column.task == task and each.chip_id != chip_id]
        basis = Basis.MEASURED if same else Basis.PROBED if own else Basis.OTHERS if elsewhere else Basis.FACTS
        index = math.exp(log_ratio)
        return Entry(
            chip_id,
            task,
            precision,
            n_accel,
            index,
            math.exp(log_ratio - half),
            math.exp(log_ratio + half),
            BAND,
            basis,
            (*same, *(each for each in own if each not in same)),
            sum(1 for each in self._measurements if each.chip_id != chip_id),
            scores(index, chip.link_bytes_per_s),
        )

    def _column(self, task: str, precision: str, n_accel: int) -> Column:
        """The column of the newest group in which the task was measured."""
        groups = sorted(
            {each.column.group for each in self._measurements if each.column.task == task}
            or {each.column.group for each in self._measurements}
        )
        return Column(groups[-1] if groups else "", task, precision, n_accel)


def catalogue_measurements(catalogue: Catalogue) -> list[Measurement]:
    """What the catalogue has as measured: the rate that matrix products reach, by precision."""
    found = []
    for chip in catalogue:
        for precision in ("bf16", "fp16", "fp8"):
            fact = chip.facts.get(f"peak_{precision}")
            for statement in fact.statements if fact else ():
                if statement.tier is Tier.MEASURED:
                    column = Column("catalogue", GEMM, precision, 1)
                    found.append(
                        Measurement(chip.id, column, statement.value, Origin.CATALOGUE, statement.source, None)
                    )
    return found
