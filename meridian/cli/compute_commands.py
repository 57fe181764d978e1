"""chips, recommend: facts of hardware, and what to rent for a workload."""

from __future__ import annotations

from typing import Any

import click

from meridian.cli.amounts import Amount
from meridian.cli.main import Context, json_option
from meridian.cli.output import print_json, print_table
from meridian.errors import NotFoundError
from meridian.hardware import Chip, Fact, standard

KINDS = ("training", "fine_tuning", "batch_inference", "realtime_inference", "hpc", "video")
_SCALES = {"FLOP/s": (1e12, "TFLOP/s"), "OP/s": (1e12, "TOP/s"), "By": (2.0**30, "GiB"), "By/s": (1e9, "GB/s")}


@click.command()
@click.argument("name", required=False)
@json_option
@click.pass_obj
def chips(context: Context, name: str | None) -> None:
    """List the chips that are known, or show one (by any of its names) with the evidence of each fact."""
    catalogue = standard()
    if name is None:
        found = list(catalogue)
        if context.as_json:
            print_json([_body(chip) for chip in found])
            return
        print_table(
            ["CHIP", "VENDOR", "NAME", ">YEAR", ">FP16", ">MEMORY", ">BANDWIDTH", ">TDP"],
            (
                [chip.id, chip.vendor, chip.name, chip.year, *(_shown(chip.facts.get(fact)) for fact in (
                    "peak_fp16" if "peak_fp16" in chip.facts else "peak_bf16", "memory", "memory_bandwidth", "tdp"))]
                for chip in found
            ),
            empty="The catalogue is empty.",
        )  # fmt: skip
        return
    resolved = catalogue.resolve(name)
    if resolved.chip_id is None:
        may_be = f"; it may be {', '.join(resolved.candidates)}" if resolved.candidates else ""
        raise NotFoundError(f"{name!r}: {resolved.reason}{may_be}")
    chip = catalogue.chip(resolved.chip_id)
    if context.as_json:
        print_json(_body(chip))
        return
    click.echo(f"{chip.name} ({chip.id}), {chip.vendor}, {chip.year or 'year unknown'}")
    if chip.members:
        click.echo(f"the name states no variant; it may be {', '.join(chip.members)}")
    print_table(
        ["FACT", ">VALUE", "EVIDENCE", "SOURCE", "USED"],
        (
            [fact.name if first else "", _amount(statement.value, fact.unit), str(statement.tier), statement.source,
             f"yes: {fact.why}" if first else ""]
            for fact in chip.facts.values()
            for first, statement in zip([True, *([False] * len(fact.statements))], fact.statements, strict=False)
        ),
        empty="No fact is known.",
    )  # fmt: skip
    for fact in chip.facts.values():
        if fact.disagreement > 1.05:
            click.echo(f"sources disagree about {fact.name} by a factor of {fact.disagreement:.2f}")


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--parameters", type=Amount(), help="Of the model, such as 7e9.")
@click.option("--precision", type=click.Choice(["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]))
@click.option("--low-rank", is_flag=True, help="Fine-tuning of adapters only.")
@click.option("--tokens", type=Amount(), help="To be processed in all.")
@click.option("--deadline-s", type=Amount(), help="In how many seconds.")
@click.option("--memory-gib", type=Amount(most=1e14), help="Needed in all, if known.")
@click.option("--accelerators", type=int, help="At least so many.")
@click.option("--max-round-trip-ms", type=Amount())
@click.option("--max-price-per-hour", type=Amount(), help="Of all accelerators together.")
@click.option("--from", "from_domain", help="The domain distances are counted from.")
@json_option
@click.pass_obj
def recommend(
    context: Context,
    /,
    kind: str,
    memory_gib: float | None,
    max_round_trip_ms: float | None,
    from_domain: str | None,
    **options: Any,
) -> None:
    """What of the network to rent for a workload, best first, with reasons."""
    # 0 is a limit too, though it equals False.
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    workload = {"kind": kind, **given}
    if memory_gib is not None:
        workload["memory_bytes"] = memory_gib * 2.0**30
    if max_round_trip_ms is not None:
        workload["max_round_trip_s"] = max_round_trip_ms / 1e3
    question: dict[str, Any] = {"workload": workload}
    if from_domain is not None:
        question["from_domain"] = from_domain
    with context.client() as network:
        answer = network.post("/v1/recommendations", question)
    if context.as_json:
        print_json(answer)
        return
    required = answer["requirement"]
    levels = ", ".join(f"{name} {level} of 5" for name, level in required["levels"].items() if level is not None)
    click.echo(f"{kind}: {levels or 'nothing is asked of size'}")
    for reason in required["reasons"]:
        click.echo(f"  {reason}")
    print_table(
        ["DOMAIN", "ACCELERATOR", ">COUNT", ">SCORE", ">PRICE/H", ">INDEX", "REASONS"],
        (
            [item["domain_id"], item["accelerator"], item["accelerators"],
             f"{item['score']:.3f}" if item["fits"] else "-",
             "" if item["price_per_hour"] is None else f"{item['price_per_hour']:g} {item['currency']}",
             "" if item["index"] is None else f"{item['index']:.2f}", "; ".join(item["reasons"])]
            for item in answer["items"]
        ),
        empty="No domain offers accelerators.",
    )  # fmt: skip


def _body(chip: Chip) -> dict[str, Any]:
    return {
        "id": chip.id,
        "vendor": chip.vendor,
        "name": chip.name,
        "year": chip.year,
        "form": chip.form,
        "link": chip.link,
        "members": list(chip.members),
        "facts": {
            fact.name: {
                "value": fact.value,
                "unit": fact.unit,
                "tier": str(fact.tier),
                "why": fact.why,
                "disagreement": round(fact.disagreement, 4),
                "statements": [
                    {"value": each.value, "tier": str(each.tier), "source": each.source} for each in fact.statements
                ],
            }
            for fact in chip.facts.values()
        },
    }


def _shown(fact: Fact | None) -> str:
    return (
        "" if fact is None else _amount(fact.value, fact.unit) + ("" if fact.tier == "official" else f" ({fact.tier})")
    )


def _amount(value: float, unit: str) -> str:
    factor, name = _SCALES.get(unit, (1.0, unit))
    return f"{value / factor:g} {name}"
