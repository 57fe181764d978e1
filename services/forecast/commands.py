"""`meridian estimate` and `meridian layouts`: what a training layout takes, and which layouts are best. Works offline."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meridian.cli.amounts import Amount

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.forecast.cost_model import Band, Estimate, Machine, ModelShape, TrainingLayout
    from services.forecast.cost_model.search import Work

_GIB = 2**30
# As over REST.
_COUNT, _STEPS = click.IntRange(1, 10**9), click.IntRange(1, 10**12)


def _common(command: Callable[..., None]) -> Callable[..., None]:
    options = [
        click.option("--model", required=True, help="A well-known model, or the path of a Hugging Face config.json."),
        click.option("--accelerator", required=True, help="A chip of the catalogue."),
        click.option("--seq", "sequence", type=_COUNT, required=True, help="Tokens of a sequence."),
        click.option("--gbs", "global_batch", type=_COUNT, required=True, help="Sequences of a step."),
        click.option("--precision", default="bf16", show_default=True),
        click.option("--fabric-gbps", type=Amount(min_open=True), help="GB/s per chip between nodes."),
        click.option("--node-size", type=_COUNT, help="Chips that share the fast link."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_common
@click.option("--tp", type=_COUNT, default=1, show_default=True, help="Tensor-parallel size.")
@click.option("--pp", type=_COUNT, default=1, show_default=True, help="Pipeline stages.")
@click.option("--vpp", type=_COUNT, default=1, show_default=True, help="Model chunks per stage (interleaved).")
@click.option("--dp", type=_COUNT, default=1, show_default=True, help="Data-parallel size.")
@click.option("--cp", type=_COUNT, default=1, show_default=True, help="Context-parallel size.")
@click.option("--ep", type=_COUNT, default=1, show_default=True, help="Expert-parallel size.")
@click.option("--mbs", type=_COUNT, default=1, show_default=True, help="Sequences of a micro batch.")
@click.option("--zero", type=click.IntRange(0, 3), default=0, show_default=True, help="Stage of ZeRO; 3 is FSDP.")
@click.option("--sp/--no-sp", default=None, help="Sequence parallelism. [default: with tensor parallelism]")
@click.option(
    "--recompute",
    type=click.Choice(["none", "selective", "products", "full"]),
    default="none",
    show_default=True,
    help="Activations: of nothing, of attention, of all but attention and every second matrix product, of all.",
)
@click.option(
    "--recompute-share",
    type=Amount(0, 1),
    default=1.0,
    show_default=True,
    help="Of the layers; the others keep everything.",
)
@click.option(
    "--gradients",
    type=click.Choice(["fp32", "bf16+fp32", "bf16", "both"]),
    help="How gradients are kept: 16 bit with a copy in 32 for the step, 16 bit alone, or both whole. [default: fp32]",
)
@click.option("--stage-layers", metavar="N,N,...", help="Layers of each pipeline stage. [default: as even as can be]")
@click.option("--steps", type=_STEPS, help="Also say how long so many steps take.")
def estimate(
    model: str,
    accelerator: str,
    sequence: int,
    global_batch: int,
    precision: str,
    fabric_gbps: float | None,
    node_size: int | None,
    as_json: bool,
    tp: int,
    pp: int,
    vpp: int,
    dp: int,
    cp: int,
    ep: int,
    mbs: int,
    zero: int,
    sp: bool | None,
    recompute: str,
    recompute_share: float,
    gradients: str | None,
    stage_layers: str | None,
    steps: int | None,
) -> None:
    """Estimate one training layout: step time, memory and traffic, each split into its parts."""
    from services.forecast.cost_model import TrainingLayout, band_of
    from services.forecast.cost_model import estimate as estimated
    from services.forecast.cost_model.layout import gradients_named, precision_named, recompute_named

    shape, machine = _shape(model), _machine(accelerator, fabric_gbps, node_size)
    layout = TrainingLayout(
        sequence=sequence,
        global_batch=global_batch,
        micro_batch=mbs,
        tp=tp,
        pp=pp,
        vpp=vpp,
        stage_layers=_stage_layers(stage_layers),
        dp=dp,
        cp=cp,
        ep=ep,
        zero=zero,
        sequence_parallel=tp > 1 if sp is None else sp,
        precision=precision_named(precision),
        gradients=gradients_named(gradients) if gradients else None,
        recompute=recompute_named(recompute),
        recompute_share=recompute_share,
        fused_loss=machine.compiled,
    )
    found = estimated(shape, layout, machine)
    band = band_of(shape, layout, machine)
    if as_json:
        click.echo(json.dumps(as_body(layout, found) | {"step_band_s": asdict(band)}, indent=2))
        return
    _explain(model, machine, layout, found, band)
    if steps:
        hours, low, high = (steps * each / 3600 for each in (found.step.total_s, band.low_s, band.high_s))
        click.echo(
            f"{steps} steps take {hours:.1f} h ({low:.1f} to {high:.1f}), {hours * layout.accelerators:.0f} accelerator-hours"
        )


@click.command()
@_common
@click.option("--accelerators", type=_COUNT, required=True, help="Chips of the pool; all are used.")
@click.option("--count", type=click.IntRange(1, 100), default=5, show_default=True, help="Layouts to show.")
@click.option(
    "--with",
    "others",
    multiple=True,
    type=(str, _COUNT, Amount(min_open=True), Amount()),
    metavar="CHIP COUNT GBPS MS",
    help="More chips of another kind or domain, behind a link of GBPS GB/s (in all) and MS of delay: pipelines over all.",
)
def layouts(
    model: str,
    accelerator: str,
    sequence: int,
    global_batch: int,
    precision: str,
    fabric_gbps: float | None,
    node_size: int | None,
    as_json: bool,
    accelerators: int,
    count: int,
    others: tuple[tuple[str, int, float, float], ...],
) -> None:
    """Search the fastest layouts of a model on a pool of chips; only those that fit are shown."""
    from services.forecast.cost_model import band_of
    from services.forecast.cost_model.layout import precision_named
    from services.forecast.cost_model.search import Work, best_layouts

    shape, machine = _shape(model), _machine(accelerator, fabric_gbps, node_size)
    work = Work(sequence, global_batch, precision_named(precision))
    if others:
        _mixed(shape, work, machine, accelerators, others, count=count, as_json=as_json)
        return
    found = best_layouts(shape, work, machine, accelerators, count=count)
    bands = [band_of(shape, layout, machine) for layout, _ in found.best]
    if as_json:
        bodies = [
            as_body(layout, item) | {"step_band_s": asdict(band)}
            for (layout, item), band in zip(found.best, bands, strict=True)
        ]
        click.echo(json.dumps({"possible": found.possible, "fitting": found.fitting, "layouts": bodies}, indent=2))
        return
    click.echo(f"{found.fitting} of {found.possible} possible layouts fit on {accelerators} x {machine.chip}")
    for layout, item in found.best:
        part = _largest_loss(item)
        click.echo(
            f"{item.step.total_s:9.3f} s  {_brief(layout)}  {item.memory.total / _GIB:.1f} GiB "
            f"({item.verdict.confidence:.0%} sure to fit)  {item.utilisation:.1%} of peak  most lost: {part}"
        )
    for band in bands[:1]:
        click.echo(f"the first: {_words_of(band)}")
    for note in dict.fromkeys(note for _, item in found.best for note in item.assumptions):
        click.echo(f"note: {note}")


def _mixed(
    shape: ModelShape,
    work: Work,
    machine: Machine,
    accelerators: int,
    others: tuple[tuple[str, int, float, float], ...],
    *,
    count: int,
    as_json: bool,
) -> None:
    from services.forecast.cost_model import machine_of
    from services.forecast.cost_model.estimate import assumptions_of
    from services.forecast.cost_model.mixed import Segment, best_placements

    segments = [Segment(machine, accelerators)]
    segments += [Segment(machine_of(chip), chips, rate * 1e9, delay / 1e3) for chip, chips, rate, delay in others]
    found = best_placements(shape, work, segments, count=count)
    if as_json:
        click.echo(
            json.dumps({"layouts": [asdict(each) | {"limited_by": each.limited_by} for each in found]}, indent=2)
        )
        return
    pool = " + ".join(f"{segment.accelerators} x {segment.machine.chip}" for segment in segments)
    click.echo(f"{len(found)} pipelines shown over {pool}" if found else f"no pipeline fits over {pool}")
    for each in found:
        layers = "/".join(map(str, each.layers))
        click.echo(
            f"{each.step_s:9.3f} s  {_brief(each.layout)}  layers {layers}  paced by {each.limited_by}  "
            f"{each.crossing_bytes / 1e9:.1f} GB per step between kinds"
        )
    notes = [
        note
        for each in found[:1]
        for part in segments
        for note in assumptions_of(shape, replace(each.layout, stage_layers=each.layers), part.machine)
    ]
    for note in dict.fromkeys(notes):
        click.echo(f"note: {note}")


def as_body(layout: TrainingLayout, found: Estimate) -> dict[str, Any]:
    """An estimate as JSON."""
    return {
        "layout": asdict(layout),
        "accelerators": layout.accelerators,
        "step_s": found.step.total_s,
        "step_parts_s": asdict(found.step),
        "tokens_per_s": found.tokens_per_s,
        "utilisation": found.utilisation,
        "memory_bytes": found.memory.total,
        "memory_parts_bytes": found.memory.parts(),
        "verdict": asdict(found.verdict),
        "traffic_bytes": asdict(found.traffic),
        "parameters": found.parameters,
        "assumptions": list(found.assumptions),
    }


def _stage_layers(text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"{text!r} is no list of whole numbers", param_hint="--stage-layers")
    return tuple(int(part) for part in parts)


def _shape(model: str) -> ModelShape:
    from services.forecast.cost_model.hugging_face import model_of_config
    from services.forecast.cost_model.known_models import model_named

    if model.endswith(".json"):
        path = Path(model)
        if not path.is_file():
            raise click.BadParameter(f"no file {model}", param_hint="--model")
        try:
            return model_of_config(path.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError:
            raise click.BadParameter(f"{model} is no UTF-8 text", param_hint="--model") from None
    return model_named(model)


def _machine(accelerator: str, fabric_gbps: float | None, node_size: int | None) -> Machine:
    from services.forecast.cost_model import machine_of

    machine = machine_of(accelerator)
    if fabric_gbps is not None:
        machine = machine.with_fabric(fabric_gbps * 1e9)
    return replace(machine, node_size=node_size) if node_size else machine


def _brief(layout: TrainingLayout) -> str:
    sizes = {"tp": layout.tp, "pp": layout.pp, "vpp": layout.vpp, "dp": layout.dp, "cp": layout.cp, "ep": layout.ep}
    words = [f"{name}={size}" for name, size in sizes.items() if size > 1 or name == "dp"]
    words.append(f"mbs={layout.micro_batch}")
    if layout.stage_layers:
        words.append(f"layers={','.join(map(str, layout.stage_layers))}")
    if layout.gradients is not None:
        words.append(f"gradients={layout.gradients.value}")
    if layout.zero:
        words.append(f"zero={layout.zero}")
    if layout.recompute.value != "none":
        words.append(f"recompute={layout.recompute.value} {layout.recompute_share:.0%}")
    return " ".join(words)


def _parts(found: Estimate) -> dict[str, float]:
    step = found.step
    exposed = {f"exposed {name}": seconds for name, seconds in step.exposed_s.items()}
    return {
        "compute": step.compute_s,
        "recomputation": step.recompute_s,
        **exposed,
        "bubble": step.bubble_s,
        "optimiser": step.optimiser_s,
        "data and host": step.data_s,
        "straggling": step.straggling_s,
    }


def _largest_loss(found: Estimate) -> str:
    losses = {name: seconds for name, seconds in _parts(found).items() if name != "compute"}
    name = max(losses, key=lambda each: losses[each])
    return f"{name} {losses[name] / found.step.total_s:.0%}"


def _words_of(band: Band) -> str:
    from services.forecast.cost_model import BAND_PROBABILITY

    return f"{band.low_s:.3f} to {band.high_s:.3f} s with a probability of {BAND_PROBABILITY:.0%}, before a run is measured"


def _explain(model: str, machine: Machine, layout: TrainingLayout, found: Estimate, band: Band) -> None:
    click.echo(
        f"{model}: {found.parameters / 1e9:.2f} B parameters on {layout.accelerators} x {machine.chip}, {_brief(layout)}"
    )
    click.echo(
        f"step {found.step.total_s:.3f} s, {found.tokens_per_s:.0f} tokens/s, {found.utilisation:.1%} of the peak"
    )
    click.echo(f"  {_words_of(band)}")
    for name, seconds in _parts(found).items():
        if seconds > 0:
            click.echo(f"  {name:<16}{seconds:10.3f} s  {seconds / found.step.total_s:6.1%}")
    word = "fits" if found.verdict.fits else "does not fit"
    click.echo(
        f"memory {found.memory.total / _GIB:.1f} of {machine.memory_bytes / _GIB:.0f} GiB: {word} "
        f"({found.verdict.confidence:.0%} sure); {found.memory.needed / _GIB:.1f} GiB are needed, the rest is reserve"
    )
    for name, size in found.memory.parts().items():
        click.echo(f"  {name:<16}{size / _GIB:10.2f} GiB")
    click.echo("traffic per chip and step")
    for name, size in (*found.traffic.by_kind.items(), *found.traffic.by_link.items()):
        if size > 0:
            click.echo(f"  {name:<16}{size / 1e9:10.2f} GB")
    for note in found.assumptions:
        click.echo(f"note: {note}")
