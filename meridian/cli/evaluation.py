"""What every `meridian evaluate` command has: a file of the user's, the result form, refusals, a list cut short."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from meridian.errors import FieldError, InvalidArgumentError
from meridian.result import DataSource, Row, Setting, in_words, write

SHOWN = 10
"""How many of a kind are told one by one."""

USER_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _in_a_folder(_context: click.Context, _option: click.Parameter, out: Path | None) -> Path | None:
    """Refused before the work, which may take long."""
    if out is not None and not out.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(out.absolute().parent)!r}")
    return out


result_option = click.option(
    "--json",
    "out",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=_in_a_folder,
    metavar="OUT",
    help="Write meridian.result/1.",
)


def one_thread() -> None:
    """Keep numpy to one thread: in many small arrays threads would only wait for each other. Call it before the import."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def refused(argument: str, detail: str) -> InvalidArgumentError:
    """The error that says why the file given as ``argument`` cannot be used."""
    return InvalidArgumentError(detail, errors=(FieldError(argument, detail),))


def say_each(sentences: Sequence[str], more: str) -> None:
    """The first sentences on stderr, one a line; ``more`` ends the line that counts the rest."""
    for sentence in sentences[:SHOWN]:
        click.echo(sentence, err=True)
    if len(sentences) > SHOWN:
        click.echo(f"and {len(sentences) - SHOWN} more {more}", err=True)


def write_result(out: Path | None, paths: Iterable[Path], seed: int, rows: Sequence[Row]) -> None:
    """Write the figures to ``out``, if it was asked for, with this command line and the digests of the files."""
    if out is not None:
        data = [DataSource.of(path) for path in paths]
        try:
            write(out, f"meridian {in_words(sys.argv[1:])}", data, seed, Setting.OFFLINE, rows)
        except OSError as error:
            raise refused("--json", f"{out} cannot be written: {error.strerror or error}") from None
