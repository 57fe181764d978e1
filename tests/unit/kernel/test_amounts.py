"""Numbers of options: what has no end is refused, and everything else as click does."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from meridian.cli.amounts import Amount
from meridian.cli.main import main


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf", "1e999", "NaN"])
def test_what_has_no_end_is_no_amount(text: str) -> None:
    for kind in (Amount(), Amount(0.001, 10), Amount(min_open=True)):
        with pytest.raises(click.BadParameter, match="no finite number"):
            kind.convert(text, None, None)


def test_bounds_hold() -> None:
    assert Amount().convert("0", None, None) == 0
    assert Amount(0.5, 2).convert("2", None, None) == 2
    for kind, text in ((Amount(), "-1e-9"), (Amount(min_open=True), "0"), (Amount(0.5, 2), "2.1"), (Amount(), "x")):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)


def _floats(command: click.Command) -> list[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        children = [command.get_command(context, name) for name in command.list_commands(context)]
        return [found for child in children if child is not None for found in _floats(child)]
    names = []
    for option in command.params:
        kinds = option.type.types if isinstance(option.type, click.Tuple) else [option.type]
        if any(
            isinstance(kind, type(click.FLOAT) | click.FloatRange) and not isinstance(kind, Amount) for kind in kinds
        ):
            names.append(f"{command.name} {option.name}")
    return names


def test_every_number_of_every_command_has_an_end() -> None:
    assert _floats(main) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["resource", "add", "r", "--value", "nan"],
        ["telemetry", "parse", "-", "--interval", "inf"],
        ["recommend", "training", "--parameters", "nan"],
        ["evaluate", "demand", "-", "--steps", "nan"],
    ],
)
def test_commands_say_which_number(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments, input="x 1\n")
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert arguments[-2] in result.output
