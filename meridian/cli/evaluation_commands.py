"""`meridian evaluate`: how good the network's models are on one's own data. Each service brings its evaluations."""

from __future__ import annotations

import click

from meridian.cli.brought import BroughtCommands


class Evaluations(BroughtCommands):
    """Entry points of the group ``meridian.evaluations``."""

    points = "meridian.evaluations"


@click.group(cls=Evaluations)
def evaluate() -> None:
    """Measure the models that the network serves on your own files.

    Every evaluation prints a table, and with --json OUT writes the form meridian.result/1.
    """
