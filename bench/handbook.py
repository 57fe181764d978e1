"""The handbook of demand: what training takes, by model, strategy and chip, each with the error of the estimate.

    python -m bench.handbook              writes docs/handbook/*.md and *.svg
    python -m bench.handbook --check      fails when they are not what the cost model says now

Errors are those of `docs/handbook/validation.json`, which `python -m bench.cost_model FIGURES --json` writes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.result import read
from services.forecast.cost_model import Estimate, Machine, TrainingLayout, machine_of
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.search import Work, best_layouts

FOLDER = Path(__file__).parents[1] / "docs/handbook"
MODELS = ("llama3-8b", "llama2-13b", "llama2-70b", "gpt3-175b", "mixtral-8x7b")
# Chip -> families of measured runs that bear on it.
CHIPS = {
    "A100-SXM4-80GB": ("vtrain-39b", "megatron-a100", "mosaic-a100"),
    "H100-SXM5-80GB": ("megatron-h100", "mosaic-h100", "dgxc-bf16"),
    "B200": (),
    "Ascend 910B3": (),
}
# What is known of a chip from runs that are in no family (docs/cost-model.md).
ELSEWHERE = {
    "B200": "Eight runs of NeMo 25.02 in 8 bit took 0.9 to 1.4 times as long as estimated, eight of NeMo 25.04 with long sequences 0.9 to 1.1.",
    "Ascend 910B3": "Eight runs with the software of 2023 and 2024 took 1.3 to 1.8 times as long as estimated.",
}
COUNTS = (8, 64, 512)
WORK = Work(4096, 512)
_GIB = 2**30


@dataclass(frozen=True)
class Entry:
    """The best layout of a strategy."""

    model: str
    strategy: str
    layout: TrainingLayout
    estimate: Estimate

    @property
    def hours_per_billion_tokens(self) -> float:
        """Accelerator-hours."""
        return self.layout.accelerators * 1e9 / self.estimate.tokens_per_s / 3600


def strategy_of(layout: TrainingLayout) -> str:
    """The strategy of a layout by what it divides."""
    words = [
        name for name, size in (("TP", layout.tp), ("PP", layout.pp), ("CP", layout.cp), ("EP", layout.ep)) if size > 1
    ]
    sharded = "FSDP" if layout.zero == 3 else ("DP" if layout.dp > 1 else "")
    return "+".join([*words, *([sharded] if sharded else [])]) or "one chip"


def entries(machine: Machine, count: int) -> Iterator[Entry]:
    """Per model the two best strategies on ``count`` chips."""
    for name in MODELS:
        seen: dict[str, Entry] = {}
        for layout, estimate in best_layouts(model_named(name), WORK, machine, count, count=60).best:
            strategy = strategy_of(layout)
            seen.setdefault(strategy, Entry(name, strategy, layout, estimate))
            if len(seen) == 2:
                break
        yield from seen.values()


def errors() -> dict[str, float]:
    """MAPE of each family by parameters fitted without it."""
    rows = read(FOLDER / "validation.json")["rows"]
    return {
        row["slice"].removeprefix("family="): row["value"]
        for row in rows
        if (row["subject"], row["measure"]) == ("cost_model_left_out", "step_time_mape_ratio")
    }


def page(chip: str, found: list[Entry], known: dict[str, float]) -> str:
    """The page of one chip."""
    families = CHIPS[chip]
    told = ", ".join(f"{name} {known[name]:.1%}" for name in families)
    others = f"{min(known.values()):.0%} to {max(known.values()):.0%}"
    unchecked = (
        f"No measured run of this chip is among those compared: for families left out of the fit the error is {others}."
    )
    error = f"Measured error of the step time, families left out of the fit: {told}." if families else unchecked
    error = " ".join([error, *([ELSEWHERE[chip]] if chip in ELSEWHERE else [])])
    lines = [
        f"# Training on {chip}",
        "",
        f"Sequences of {WORK.sequence}, {WORK.global_batch} per step, {WORK.precision}; written by `python -m bench.handbook`.",
        error,
        "",
        f"![Accelerator-hours per billion tokens]({slug(chip)}.svg)",
        "",
        "| model | chips | strategy | layout | step s | tokens/s | hours per 1e9 tokens | GiB | exposed | bubble | between nodes GB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        layout, step = each.layout, each.estimate.step
        sizes = f"tp{layout.tp} pp{layout.pp} vpp{layout.vpp} dp{layout.dp} ep{layout.ep} mbs{layout.micro_batch}"
        if layout.recompute.value != "none":
            sizes += f" recompute {layout.recompute_share:.0%}"
        exposed = sum(step.exposed_s.values()) / step.total_s
        lines.append(
            f"| {each.model} | {layout.accelerators} | {each.strategy} | {sizes} | {step.total_s:.2f} "
            f"| {each.estimate.tokens_per_s:.3g} | {each.hours_per_billion_tokens:.1f} "
            f"| {each.estimate.memory.total / _GIB:.0f} | {exposed:.1%} | {step.bubble_s / step.total_s:.1%} "
            f"| {each.estimate.traffic.by_link['fabric'] / 1e9:.1f} |"
        )
    absent = [f"{name} on {count}" for count in COUNTS for name in MODELS if not _has(found, name, count)]
    if absent:
        lines += ["", f"Does not fit, or does not divide: {', '.join(absent)}."]
    return "\n".join(lines) + "\n"


def _has(found: list[Entry], name: str, count: int) -> bool:
    return any(each.model == name and each.layout.accelerators == count for each in found)


def slug(chip: str) -> str:
    """The name of a chip's files."""
    return chip.lower().replace(" ", "-")


def plot(found: list[Entry]) -> str:
    """Accelerator-hours per billion tokens over chips, both logarithmic, as SVG."""
    best: dict[str, dict[int, float]] = {}
    for each in found:
        of_model = best.setdefault(each.model, {})
        count = each.layout.accelerators
        of_model[count] = min(of_model.get(count, math.inf), each.hours_per_billion_tokens)
    values = [value for of_model in best.values() for value in of_model.values()]
    low, high = math.log10(min(values) / 1.3), math.log10(max(values) * 1.3)
    colours = dict(zip(MODELS, ("#1b6ca8", "#c8553d", "#2a9d8f", "#7b4ea3", "#b08900"), strict=True))

    def at(count: int, value: float) -> str:
        x = 70 + 440 * math.log(count / COUNTS[0]) / math.log(COUNTS[-1] / COUNTS[0])
        return f"{x:.1f},{290 - 260 * (math.log10(value) - low) / (high - low):.1f}"

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 340" font-family="sans-serif" font-size="12">',
        '<path d="M70 30V290H510" fill="none" stroke="#888"/>',
        '<text x="70" y="20">accelerator-hours per billion tokens</text><text x="510" y="330" text-anchor="end">chips</text>',
    ]
    for count in COUNTS:
        x = at(count, 10**low).split(",")[0]
        parts.append(f'<text x="{x}" y="308" text-anchor="middle">{count}</text>')
    for power in range(math.ceil(low), math.floor(high) + 1):
        y = at(COUNTS[0], 10.0**power).split(",")[1]
        parts.append(f'<text x="62" y="{y}" text-anchor="end">{10.0**power:g}</text>')
    for number, (name, points) in enumerate(best.items()):
        path = " ".join(at(count, value) for count, value in sorted(points.items()))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        for point in path.split():
            x, y = point.split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colours[name]}"/>')
        parts.append(f'<text x="525" y="{50 + 20 * number}" fill="{colours[name]}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def pages() -> dict[str, str]:
    """Every file of the handbook by name."""
    known = errors()
    written = {}
    index = [
        "# Handbook of demand",
        "",
        "What training takes by model, strategy and chip, by the [cost model](../cost-model.md).",
        "",
    ]
    for chip in CHIPS:
        machine = machine_of(chip)
        found = [each for count in COUNTS for each in entries(machine, count)]
        written[f"{slug(chip)}.md"] = page(chip, found, known)
        written[f"{slug(chip)}.svg"] = plot(found)
        index.append(f"- [{chip}]({slug(chip)}.md)")
    written["README.md"] = "\n".join(index) + "\n"
    return written


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    stale = []
    for name, text in pages().items():
        path = FOLDER / name
        if arguments.check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(f"not what the cost model says now: {', '.join(stale)}; run python -m bench.handbook")


if __name__ == "__main__":
    main()
