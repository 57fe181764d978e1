"""`meridian probe`: how fast this machine is, in numbers that enter the compute index. Guide: docs/index.md."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from meridian.cli.main import Context, json_option
from meridian.cli.output import print_json, print_table
from meridian.errors import InvalidArgumentError
from meridian.hardware import standard

if TYPE_CHECKING:
    from agent.benchmark.program import Value

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


@click.command()
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--quick", is_flag=True, help="Small sizes: seconds, not comparable with full runs.")
@click.option("--chip", "named", help="The chip's name, where the system does not tell the right one.")
@click.option("--send", is_flag=True, help="Send the result to the network; it enters the next fit of the index.")
@json_option
@click.pass_obj
def probe(context: Context, device: str, quick: bool, named: str | None, send: bool) -> None:
    """Measure matrix products, memory, the way to other devices and a training step on this machine.

    What was measured is shown though it could not be sent.
    """
    from agent.benchmark import program
    from agent.benchmark.backends import backend

    found = backend(device)
    if isinstance(found, str):
        raise InvalidArgumentError(f"--device {device}: {found}")
    sizes = program.sizes_of("quick" if quick else "full", cuda=found.name == "cuda")
    chip = named or found.chip()
    resolved = standard().resolve(chip)
    values = program.run(found, sizes, time.perf_counter)
    result = program.body(f"probe-{uuid.uuid4()}", chip, found.software, datetime.now(UTC).isoformat(), sizes, values)
    answer, refused = _sent(context, result) if send else (None, None)
    if context.as_json:
        print_json(result | {"chip_id": resolved.chip_id, "sent": answer})
    else:
        click.echo(f"{chip} ({resolved.chip_id or resolved.reason}), {found.software}")
        _print(values)
    if refused is not None:
        raise refused
    if answer is not None and not context.as_json:
        click.echo(f"sent: {answer['added']} new values, index {answer['index_version']}")


def _sent(context: Context, result: dict[str, Any]) -> tuple[dict[str, Any] | None, Exception | None]:
    """The network's answer, or why there is none."""
    from meridian.client import ApiError, UnreachableError

    try:
        with context.client() as network:
            return network.post("/v1/probes", result), None
    except (ApiError, UnreachableError) as error:
        return None, error


def _print(values: Sequence[Value]) -> None:
    print_table(
        ["TASK", "PRECISION", ">THROUGHPUT", ">SECONDS", ">SPREAD", ">RUNS"],
        (
            [value.task, value.precision, _amount(value.throughput, value.unit), f"{value.seconds:.4g}",
             f"{value.spread:.0%}", value.runs]
            for value in values
        ),
        empty="Nothing was measured.",
    )  # fmt: skip


def _amount(value: float, unit: str) -> str:
    factor, prefix = next((each for each in _PREFIXES if value >= each[0]), _PREFIXES[-1])
    return f"{value / factor:.3g} {prefix}{unit}"
