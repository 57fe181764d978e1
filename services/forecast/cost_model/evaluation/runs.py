"""Measured runs from rows of text: what is stated, what is derived from it, and what makes a row unusable."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from meridian.errors import FieldError, InvalidArgumentError
from services.forecast.cost_model.evaluation.table import Rejected, Table, column_named, read_table
from services.forecast.cost_model.hugging_face import model_of_config
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import (
    Context,
    Recompute,
    TrainingLayout,
    check,
    context_named,
    gradients_named,
    precision_named,
    recompute_named,
)
from services.forecast.cost_model.machine import Machine, machine_of
from services.forecast.cost_model.memory import memory_of
from services.forecast.cost_model.shapes import ModelShape, shape_of

# State may take this share of the memory where the stage of ZeRO is derived.
_STATE_SHARE = 0.85
_LONG_SEQUENCE = 2048
_FUSED_SINCE = 2022
_LARGEST_COUNT = 1e12
_FLAGS = {**dict.fromkeys(("1", "true", "yes", "y", "t"), True), **dict.fromkeys(("0", "false", "no", "n", "f"), False)}
_UNSTATED = frozenset(("", "n/a", "na", "-"))
# Measurements beyond these shares of a step at the peak and of the memory are in other units. Model FLOPs count all of causal
# attention, and 8-bit peaks may stand for those in 4 bit; chips of 80 GB offer 80 GiB.
_FASTEST, _FULLEST = 0.25, 1.25


@dataclass(frozen=True, slots=True)
class Run:
    """A measured run. ``derived`` names what the row left open."""

    line: int
    group: str
    model: str
    shape: ModelShape
    layout: TrainingLayout
    machine: Machine
    step_s: float | None
    memory_bytes: float | None
    # What was said to have happened: fitted or ran out of memory; None when nothing was said.
    fitted_in_memory: bool | None
    derived: tuple[str, ...] = ()

    @property
    def model_flops(self) -> float:
        """Model FLOPs of a step."""
        tokens = self.layout.global_batch * self.layout.sequence
        return self.shape.flops_per_token(self.layout.sequence) * tokens


def read_runs(path: Path) -> tuple[list[Run], list[Rejected]]:
    """The runs of a CSV file, and the rows left aside, each with its last line in the file. InvalidArgumentError when the file
    is no such table."""
    return runs_of(read_table(path), path.parent)


def runs_of(table: Table, folder: Path) -> tuple[list[Run], list[Rejected]]:
    """The runs of a table, and the rows left aside; files that rows name may lie in ``folder``."""
    runs, rejected = [], list(table.rejected)
    for line, row in table.rows:
        try:
            runs.append(run_of(row, line, folder))
        except InvalidArgumentError as error:
            fields = tuple(item.pointer[1:] for item in error.errors)
            rejected.append(Rejected(line, error.detail, fields))
    return runs, sorted(rejected, key=lambda item: item.line)


def run_of(row: Mapping[str, str | None], line: int = 0, folder: Path | None = None) -> Run:
    """One run; InvalidArgumentError names what is missing, unknown or impossible."""
    cells = {column_named(name): _stated(value) for name, value in row.items() if not isinstance(value, list)}
    derived: list[str] = []
    shape, name = _shape(cells, folder or Path())
    if not cells.get("accelerator"):
        raise _lacking("accelerator")
    machine = _machine(cells)
    layout, stated = _layout(cells, shape, machine, derived)
    check(shape, layout, stated)
    # Raises where the chip multiplies in nothing like it.
    machine.multiplies_in(layout.precision)
    memory, fitted = _memory(cells)
    time = _positive(cells, "step_s")
    run = Run(
        line=line,
        group=cells.get("group", "") or "all rows",
        model=name,
        shape=shape,
        layout=layout,
        machine=machine,
        step_s=time,
        memory_bytes=memory,
        fitted_in_memory=fitted,
        derived=tuple(derived),
    )
    at_peak = run.model_flops / (machine.peak(layout.precision) * layout.accelerators)
    if time is not None and time < _FASTEST * at_peak:
        raise _wrong(
            "step_s",
            f"{time:g} s is {at_peak / time:,.0f} times as fast as the peak allows: is it in seconds, and gbs in sequences?",
        )
    if memory is not None and memory > _FULLEST * machine.memory_bytes:
        offered = f"{machine.memory_bytes / 2**30:.0f} of {machine.chip}"
        raise _wrong("mem_gib", f"{cells['mem_gib']} is more than the {offered}: is it in GiB?")
    return run


def _stated(value: str | None) -> str:
    text = (value or "").strip()
    return "" if text.lower() in _UNSTATED else text


def _lacking(*names: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{', '.join(names)}: not stated", errors=tuple(FieldError(f"/{name}", "not stated") for name in names)
    )


def _wrong(name: str, detail: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name}: {detail}", errors=(FieldError(f"/{name}", detail),))


def _positive(cells: Mapping[str, str], name: str) -> float | None:
    text = cells.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise _wrong(name, f"{text!r} is no positive number")
    return value


def _count(cells: Mapping[str, str], name: str) -> int:
    """A whole number; 0 where nothing is stated."""
    text = cells.get(name, "")
    if not text:
        return 0
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not 0 <= value <= _LARGEST_COUNT or value != int(value):
        raise _wrong(name, f"{text!r} is no whole number up to {_LARGEST_COUNT:g}")
    return int(value)


def _share(cells: Mapping[str, str], name: str) -> float:
    """A share up to 1; 1 where nothing is stated."""
    value = _positive(cells, name)
    if value is not None and value > 1:
        raise _wrong(name, f"{cells[name]!r} is more than 1")
    return 1.0 if value is None else value


def _size(cells: Mapping[str, str], name: str) -> int:
    """A whole number from 1; 0 where nothing is stated."""
    value = _count(cells, name)
    if not value and cells.get(name):
        raise _wrong(name, "must be at least 1")
    return value


def _sizes(cells: Mapping[str, str], name: str) -> tuple[int, ...]:
    """Whole numbers with ";" between them; none where nothing is stated."""
    text = cells.get(name, "")
    if not text:
        return ()
    return tuple(_count({name: part.strip() or "?"}, name) for part in text.split(";"))


def _flag(cells: Mapping[str, str], name: str, *, unstated: bool = False) -> bool:
    text = cells.get(name, "").lower()
    if not text:
        return unstated
    if text not in _FLAGS:
        raise _wrong(name, f"{text!r} is neither 1 nor 0")
    return _FLAGS[text]


def _shape(cells: Mapping[str, str], folder: Path) -> tuple[ModelShape, str]:
    name = cells.get("model", "")
    if cells.get("layers") and cells.get("hidden"):
        shape = shape_of(
            layers=_count(cells, "layers"),
            hidden=_count(cells, "hidden"),
            heads=_count(cells, "heads"),
            kv_heads=_count(cells, "kv_heads"),
            ffn=_count(cells, "ffn"),
            gated=_flag(cells, "gated"),
            vocabulary=_count(cells, "vocab"),
            tied=_flag(cells, "tied") if cells.get("tied") else None,
            experts=_count(cells, "experts"),
            top_k=_count(cells, "top_k"),
        )
        return shape, name or f"{shape.layers}x{shape.hidden}"
    if not name:
        raise _lacking(*(column for column in ("layers", "hidden") if not cells.get(column)))
    if name.endswith(".json"):
        # Beside the table, or from where the command runs.
        path = next((each for each in (folder / name, Path(name)) if each.is_file()), None)
        if path is None:
            raise _wrong("model", f"no file {name}")
        try:
            return _as_stated(cells, model_of_config(path.read_text(encoding="utf-8-sig")), name), name
        except UnicodeDecodeError:
            raise _wrong("model", f"{name} is no UTF-8 text") from None
    return _as_stated(cells, model_named(name), name), name


def _as_stated(cells: Mapping[str, str], shape: ModelShape, name: str) -> ModelShape:
    """The shape of the model ``name`` with what the row states of its vocabulary; InvalidArgumentError where it states another
    model's sizes."""
    known = {
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "ffn": shape.ffn,
        "experts": shape.experts,
        "top_k": shape.top_k,
    }
    for column, size in known.items():
        stated = _count(cells, column)
        if stated and stated != size:
            raise _wrong(column, f"{stated} is not the {size} of {name}; another model is stated by layers and hidden")
    if cells.get("gated") and _flag(cells, "gated") != shape.gated:
        raise _wrong("gated", f"{cells['gated']} is not what {name} has; another model is stated by layers and hidden")
    tied = _flag(cells, "tied") if cells.get("tied") else shape.tied
    return replace(shape, vocabulary=_count(cells, "vocab") or shape.vocabulary, tied=tied)


def _machine(cells: Mapping[str, str]) -> Machine:
    machine = machine_of(cells["accelerator"])
    fabric = _positive(cells, "fabric_gbps")
    if fabric is not None:
        machine = machine.with_fabric(fabric * 1e9)
    power, memory = _positive(cells, "power_w"), _positive(cells, "memory_gbps")
    if power is not None:
        machine = machine.with_power(power)
    if memory is not None:
        machine = replace(machine, memory_bytes_per_s=memory * 1e9)
    node = _size(cells, "node_size")
    return replace(machine, node_size=node) if node else machine


def _memory(cells: Mapping[str, str]) -> tuple[float | None, bool | None]:
    text = cells.get("mem_gib", "")
    if text.lower() in {"oom", "inf"}:
        return None, False
    memory = _positive(cells, "mem_gib")
    return (None, None) if memory is None else (memory * 2**30, True)


def _layout(
    cells: Mapping[str, str], shape: ModelShape, machine: Machine, derived: list[str]
) -> tuple[TrainingLayout, int | None]:
    sequence, batch = _size(cells, "seq"), _size(cells, "gbs")
    missing = [name for name, value in (("seq", sequence), ("gbs", batch)) if not value]
    if missing:
        raise _lacking(*missing)
    total = _size(cells, "n_accel")
    sizes = {name: _size(cells, name) for name in ("tp", "pp", "dp", "cp", "vpp", "ep")}
    if not sizes["tp"] and not sizes["pp"] and sizes["dp"] != total:
        raise _lacking("tp", "pp")
    for name in ("tp", "pp", "cp", "vpp", "ep"):
        sizes[name] = sizes[name] or 1
    if not sizes["dp"]:
        others = sizes["tp"] * sizes["pp"] * sizes["cp"]
        if not total:
            raise _lacking("n_accel", "dp")
        if total % others:
            raise _wrong("n_accel", f"{total} is not a multiple of tp x pp x cp = {others}")
        sizes["dp"] = total // others
        derived.append("dp")
    precision = cells.get("precision", "")
    recompute = cells.get("recompute", "")
    layout = TrainingLayout(
        sequence=sequence,
        global_batch=batch,
        micro_batch=_size(cells, "mbs"),
        tp=sizes["tp"],
        pp=sizes["pp"],
        vpp=sizes["vpp"],
        stage_layers=_sizes(cells, "stage_layers"),
        dp=sizes["dp"],
        cp=sizes["cp"],
        context=context_named(cells["context"]) if cells.get("context") else Context.RING,
        repeated_keys=_flag(cells, "repeated_keys"),
        ep=sizes["ep"],
        precision=precision_named(precision) if precision else "bf16",
        gradients=gradients_named(cells["gradients"]) if cells.get("gradients") else None,
        recompute=recompute_named(recompute),
        recompute_share=_share(cells, "recompute_share"),
        eager=_flag(cells, "eager"),
        fused_loss=_flag(cells, "fused_loss", unstated=machine.compiled),
        captured=_flag(cells, "captured"),
        expert_overlap=_flag(cells, "expert_overlap"),
        fused_experts=_flag(cells, "fused_experts"),
        dispatch_once=_flag(cells, "dispatch_once", unstated=True),
    )
    if not precision:
        derived.append("precision")
    layout = _with_derived(
        cells, layout, shape, machine, derived, recompute_stated="recompute" in cells and bool(recompute)
    )
    return layout, total or None


def _with_derived(
    cells: Mapping[str, str],
    layout: TrainingLayout,
    shape: ModelShape,
    machine: Machine,
    derived: list[str],
    *,
    recompute_stated: bool,
) -> TrainingLayout:
    """Fill in ZeRO, micro batch, recomputation, sequence parallelism and kind of attention, by what fits the memory."""
    started_without = not layout.micro_batch
    layout = replace(layout, micro_batch=max(1, layout.micro_batch))
    # Of what is impossible nothing can be derived.
    check(shape, layout)
    if cells.get("zero"):
        layout = replace(layout, zero=_count(cells, "zero"))
    elif layout.replicas > 1:
        layout = replace(layout, zero=_zero_stage(shape, layout, machine))
        derived.append("zero")
    if cells.get("attention"):
        layout = _with_attention(layout, cells["attention"])
    else:
        layout = replace(layout, fused_attention=_usually_fused(layout, machine))
        derived.append("attention")
    if cells.get("sp"):
        layout = replace(layout, sequence_parallel=_flag(cells, "sp"))
    elif layout.tp > 1:
        usual = layout.fused_attention or layout.recompute is Recompute.SELECTIVE
        layout = replace(layout, sequence_parallel=usual)
        derived.append("sp")

    def fits(candidate: TrainingLayout) -> bool:
        # Who chose the layout knew that it fits, and an allocator under pressure gives back of its reserve.
        return memory_of(shape, candidate).needed <= machine.memory_bytes

    if not recompute_stated:
        # As few layers as fit.
        some = [replace(layout, recompute=Recompute.FULL, recompute_share=share / 8) for share in range(1, 9)]
        ways = [replace(layout, recompute=each) for each in (Recompute.NONE, Recompute.SELECTIVE)]
        layout = _first(layout, [*ways, *some], fits)
        derived.append("recompute")
    if started_without:
        sizes = [1] if layout.pp > 1 else [8, 4, 2, 1]
        possible = [n for n in sizes if layout.global_batch % (n * layout.dp) == 0] or [1]
        layout = _first(layout, [replace(layout, micro_batch=n) for n in possible], fits)
        derived.append("mbs")
    return layout


def _first(
    layout: TrainingLayout, candidates: list[TrainingLayout], fits: Callable[[TrainingLayout], bool]
) -> TrainingLayout:
    return next((each for each in candidates if fits(each)), candidates[-1] if candidates else layout)


# Kind of attention by name: whether fused, and the generation of the kernels (0: the newest for the chip).
_ATTENTION = {
    **dict.fromkeys(("unfused", "eager", "standard", "0", "false"), (False, 0)),
    **dict.fromkeys(("fused", "flash", "1", "true"), (True, 0)),
    **dict.fromkeys(("flash1", "triton"), (True, 1)),
    "flash2": (True, 2),
    **dict.fromkeys(("flash3", "cudnn"), (True, 3)),
}


def _with_attention(layout: TrainingLayout, name: str) -> TrainingLayout:
    found = _ATTENTION.get(name.lower())
    if found is None:
        raise _wrong("attention", f"{name!r} is none of {', '.join(_ATTENTION)}")
    return replace(layout, fused_attention=found[0], attention_generation=found[1])


def _zero_stage(shape: ModelShape, layout: TrainingLayout, machine: Machine) -> int:
    """The lowest stage with which the state fits; where it must be divided over replicas alone, it is taken as full.

    On chips since 2022 stage 1 (the distributed optimiser) stands for 0: it costs no time.
    """

    def fits(stage: int) -> bool:
        found = memory_of(shape, replace(layout, zero=stage))
        return found.parameters + found.gradients + found.optimiser <= _STATE_SHARE * machine.memory_bytes

    modern = machine.year >= _FUSED_SINCE
    if fits(1 if modern else 0):
        return 1 if modern else 0
    if layout.tp == layout.pp == 1 and not shape.experts:
        return 3
    return next((stage for stage in (1, 2) if fits(stage)), 3)


def _usually_fused(layout: TrainingLayout, machine: Machine) -> bool:
    """Whether attention is fused where nothing says so.

    It was not before chips of 2022, for sequences up to 2,048, in code bases that divide models (Megatron-LM 2021) or
    train in fp16.
    """
    old = machine.year < _FUSED_SINCE and layout.sequence <= _LONG_SEQUENCE
    return not (old and (layout.tp * layout.pp > 1 or layout.precision == "fp16"))
