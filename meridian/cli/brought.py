"""Commands that packages above the kernel bring, as entry points of a group: found without loading them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class BroughtCommands(click.Group):
    """A command whose subcommands are the entry points of ``points``."""

    points = ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *brought(self.points)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = super().get_command(ctx, cmd_name)
        return load(self.points, cmd_name) if known is None else known


def brought(group: str) -> dict[str, EntryPoint]:
    """What installed packages bring, by name."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


def load(group: str, name: str) -> click.Command | None:
    """A command of another package; one that does not load stands in the list all the same, and says why when used."""
    point = brought(group).get(name)
    if point is None:
        return None
    try:
        found = point.load()
        reason = "" if isinstance(found, click.Command) else "it is no command"
    except ImportError as error:
        found, reason = None, str(error)
    if isinstance(found, click.Command) and not reason:
        return found

    def refuse() -> None:
        raise click.ClickException(f"the command {name} ({point.value}) does not load: {reason}")

    return click.Command(
        name,
        callback=refuse,
        help=f"Not available: {reason}",
        params=[click.Argument(["rest"], nargs=-1, type=click.UNPROCESSED, expose_value=False)],
        context_settings={"ignore_unknown_options": True},
    )
