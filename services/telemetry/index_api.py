"""HTTP: the compute index, results of probe runs and published measurements, recommendations."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from datetime import UTC
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from meridian.clock import Clock
from meridian.codec import Envelope
from meridian.contracts.telemetry.v1.telemetry_pb2 import ProbeReported
from meridian.database import Database
from meridian.errors import FieldError, InvalidArgumentError, NotFoundError
from meridian.hardware import Catalogue, standard
from meridian.hardware.names import Resolution
from meridian.outbox import Transaction
from services.telemetry import index_store
from services.telemetry.index.matrix import Column, precision_of
from services.telemetry.index.served import (
    REFERENCE,
    Entry,
    Measurement,
    Origin,
    ServedIndex,
    catalogue_measurements,
)
from services.telemetry.recommendation.offers import Offer, ranked
from services.telemetry.recommendation.profiles import Workload, graded

log = logging.getLogger(__name__)
_PROGRAM = "meridian-probe/1"
_Text = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f]+$")]


class ProbeValue(BaseModel):
    """One measured throughput."""

    model_config = ConfigDict(extra="forbid")

    task: _Text
    precision: _Text = "unstated"
    n_accel: int = Field(default=1, ge=1, le=1_000_000)
    throughput: float = Field(gt=0, allow_inf_nan=False)
    unit: Annotated[str, Field(max_length=64, pattern=r"^[^\x00]*$")] = ""


class ProbeResult(BaseModel):
    """What a probe run measured, or what somebody published, on one chip."""

    model_config = ConfigDict(extra="forbid")

    run_id: _Text
    chip: _Text
    origin: Origin = Origin.PROBE
    program: _Text = _PROGRAM
    """Results of different programs, or rounds, are not compared."""
    source: _Text = "meridian probe"
    software: Annotated[str, Field(max_length=256, pattern=r"^[^\x00]*$")] = ""
    measured_at: AwareDatetime
    results: Annotated[list[ProbeValue], Field(min_length=1, max_length=256)]


class OfferedResource(BaseModel):
    """Something that can be had: accelerators of one type in a domain."""

    model_config = ConfigDict(extra="forbid")

    domain_id: _Text
    accelerator: _Text
    available: int = Field(ge=0, le=10_000_000)
    total: int = Field(ge=0, le=10_000_000)
    price_per_accelerator_hour: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    currency: Annotated[str, Field(max_length=16)] = ""
    round_trip_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    reachable: bool = True
    memory_bytes: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class RecommendationRequest(BaseModel):
    """A workload and what is on offer."""

    model_config = ConfigDict(extra="forbid")

    workload: Workload
    offers: Annotated[list[OfferedResource], Field(max_length=10_000)]


class IndexService:
    """Keeps the newest fit; another is made when measurements came since."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._catalogue = standard()
        self._state: tuple[int, object] | None = None
        self._fit: ServedIndex | None = None
        self._fitting = asyncio.Lock()

    @property
    def catalogue(self) -> Catalogue:
        """Chips by name."""
        return self._catalogue

    async def current(self) -> ServedIndex:
        """The index fitted to everything known now."""
        async with self._fitting:
            async with self._database.reading() as connection:
                state = await index_store.measurements_state(connection)
                if self._fit is not None and state == self._state:
                    return self._fit
                stored = await index_store.all_measurements(connection)
            known = [each for each in stored if self._known(each.chip_id)]
            everything = [*catalogue_measurements(self._catalogue), *known]
            self._fit = await asyncio.to_thread(ServedIndex, everything, self._catalogue, self._clock.now())
            self._state = state
            return self._fit

    async def add(self, result: ProbeResult) -> int:
        """Keep a result; the number of values that are new. The error names the chip's candidates."""
        chip_id = self.resolve(result.chip, "chip").chip_id or ""
        rows = [
            (
                f"{result.run_id}/{value.task}/{value.precision}/{value.n_accel}",
                Measurement(
                    chip_id,
                    Column(result.program, value.task, precision_of(value.precision), value.n_accel),
                    value.throughput,
                    result.origin,
                    result.source,
                    result.measured_at,
                    result.software,
                ),
            )
            for value in result.results
        ]
        async with self._database.transaction() as connection:
            return await index_store.add_measurements(connection, rows, self._clock.now())

    async def on_probes(self, transaction: Transaction, envelopes: Sequence[Envelope]) -> None:
        """Keep results that agents reported; values that say nothing (no known chip, no positive number) are logged."""
        rows: list[tuple[str, Measurement]] = []
        for envelope in envelopes:
            report = cast("ProbeReported", envelope.data)
            chip_id = self._catalogue.resolve(report.chip).chip_id
            if chip_id is None or not report.run_id or not report.HasField("measured_at"):
                log.warning("probe run %r of chip %r is not used", report.run_id, report.chip)
                continue
            for value in report.results:
                if not (value.task and math.isfinite(value.throughput) and value.throughput > 0):
                    log.warning("probe run %r: %r of %r is not used", report.run_id, value.throughput, value.task)
                    continue
                count = max(1, value.accelerators)
                precision = precision_of(value.precision)
                measurement = Measurement(
                    chip_id,
                    Column(report.program or _PROGRAM, value.task, precision, count),
                    value.throughput,
                    Origin.PROBE,
                    f"agent of domain {report.domain_id}",
                    report.measured_at.ToDatetime(UTC),
                    report.software,
                )
                key = f"{report.run_id}/{value.task}/{value.precision or 'unstated'}/{count}"
                rows.append((key.replace("\x00", "\ufffd"), measurement))
        await index_store.add_measurements(transaction.connection, rows, self._clock.now())

    def resolve(self, name: str, field: str) -> Resolution:
        """The chip that ``name`` stands for; InvalidArgumentError names ``field`` and what it may mean."""
        found = self._catalogue.resolve(name)
        if found.chip_id is None:
            may_be = f"; it may be {', '.join(found.candidates)}" if found.candidates else ""
            detail = f"{name!r}: {found.reason}{may_be}"
            raise InvalidArgumentError(detail, errors=(FieldError(field, detail),))
        return found

    def _known(self, chip_id: str) -> bool:
        try:
            self._catalogue.chip(chip_id)
        except KeyError:
            return False
        return True


def index_router(service: IndexService) -> APIRouter:
    """All routes about the index."""
    router = APIRouter()

    @router.get("/v1/index")
    async def read(
        chip: Annotated[list[_Text] | None, Query()] = None,
        task: Annotated[_Text, Query()] = "gemm",
        precision: Annotated[_Text, Query()] = "bf16",
        n_accel: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    ) -> dict[str, Any]:
        index = await service.current()
        ids = [service.resolve(name, "query:chip").chip_id or "" for name in chip or ()]
        ids = ids or [each.id for each in service.catalogue]

        def all_entries() -> list[Entry | None]:
            return [index.entry(chip_id, task, precision_of(precision), n_accel) for chip_id in ids]

        entries = await asyncio.to_thread(all_entries)
        if chip and entries == [None] * len(entries):
            raise NotFoundError("the catalogue states no peak or no bandwidth of these chips")
        return {
            "version": index.version,
            "fitted_at": index.fitted_at,
            "reference": REFERENCE,
            "measurements": index.measurements,
            "tasks": [{"task": name, "precision": kind} for name, kind in index.tasks],
            "items": [entry_body(entry) for entry in entries if entry is not None],
        }

    @router.post("/v1/probes", status_code=201)
    async def add(result: ProbeResult) -> dict[str, Any]:
        added = await service.add(result)
        index = await service.current()
        chip_id = service.resolve(result.chip, "chip").chip_id
        return {"chip_id": chip_id, "added": added, "index_version": index.version}

    @router.post("/v1/recommendations")
    async def recommend(request: RecommendationRequest) -> dict[str, Any]:
        index = await service.current()
        requirement = graded(request.workload)
        offers = []
        for each in request.offers:
            found = service.catalogue.resolve(each.accelerator)
            chip = service.catalogue.chip(found.chip_id) if found.chip_id else None
            entry = index.entry(chip.id, requirement.task, requirement.precision) if chip else None
            offers.append(
                Offer(
                    each.domain_id, each.accelerator, chip, entry, each.available, each.total,
                    each.price_per_accelerator_hour, each.currency, each.round_trip_s, each.reachable,
                    each.memory_bytes,
                )
            )  # fmt: skip
        return {
            "index_version": index.version,
            "requirement": requirement.body(),
            "items": [each.body() for each in ranked(requirement, offers)],
        }

    return router


def entry_body(entry: Entry) -> dict[str, Any]:
    """An entry as people see it."""
    return {
        "chip_id": entry.chip_id,
        "task": entry.task,
        "precision": entry.precision,
        "n_accel": entry.n_accel,
        "index": round(entry.index, 4),
        "low": round(entry.low, 4),
        "high": round(entry.high, 4),
        "band": entry.band,
        "basis": str(entry.basis),
        "evidence": [
            {
                "task": each.column.task,
                "precision": each.column.precision,
                "n_accel": each.column.n_accel,
                "throughput": each.throughput,
                "origin": str(each.origin),
                "source": each.source,
                "software": each.software,
                "measured_at": each.measured_at,
            }
            for each in entry.evidence[:10]
        ],
        "other_measurements": entry.other_measurements,
        "cats": {
            "l0": dict(entry.scores.l0),
            "l1": {name: round(value, 2) for name, value in entry.scores.l1.items()},
            "l2": entry.scores.l2,
            "reading": entry.scores.reading,
            "normalisation": entry.scores.normalisation,
        },
    }
