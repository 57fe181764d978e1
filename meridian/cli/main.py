"""The `meridian` command: run a network on this machine, submit jobs, look at everything.

Exit codes: 0 success, 1 the operation failed (a job failed, a part did not start), 2 wrong usage or bad input,
3 the network does not answer, 4 not allowed, 5 not found.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meridian.cli.brought import brought, load

if TYPE_CHECKING:
    from meridian.client import Client

FAILED, BAD_INPUT, UNREACHABLE, NOT_ALLOWED, NOT_FOUND = 1, 2, 3, 4, 5

_COMMANDS = {
    "up": "stack", "down": "stack", "status": "stack", "demo": "stack", "completion": "stack",
    "submit": "job", "jobs": "job", "job": "job", "logs": "job", "explain": "job", "cancel": "job", "trace": "job",
    "domains": "network", "nodes": "network", "events": "network", "kill-node": "network", "incidents": "network",
    "forecasts": "network", "graph": "graph",
    "phases": "forecast", "waveform": "forecast", "advice": "forecast",
    "policy": "policy",
    "chips": "compute", "recommend": "compute",
    "resource": "resource",
    "shares": "promise", "service-levels": "promise", "front": "promise", "objectives": "promise",
    "evaluate": "evaluation",
}  # fmt: skip


class Context:
    """What all commands share: where the network is, and how to answer."""

    def __init__(self, data_dir: Path, as_json: bool) -> None:
        self.data_dir = data_dir
        self.as_json = as_json

    def client(self, **options: Any) -> Client:
        """A client for the network that the environment or the data directory names."""
        from meridian.client import Client

        return Client.from_environment(self.data_dir, **options)


class Commands(click.Group):
    """Loads a command's module only when it is used, and turns errors into one clear line and an exit code.

    Packages above the kernel bring commands of their own as entry points of the group ``meridian.commands``.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_COMMANDS, *self.commands, *brought("meridian.commands")})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            known = super().get_command(ctx, cmd_name)
            return load("meridian.commands", cmd_name) if known is None else known
        from importlib import import_module

        command: click.Command = getattr(import_module(f"meridian.cli.{module}_commands"), cmd_name.replace("-", "_"))
        return command

    def invoke(self, ctx: click.Context) -> Any:
        from meridian.client import ApiError, UnreachableError
        from meridian.errors import InvalidArgumentError, MeridianError, NotFoundError

        try:
            return super().invoke(ctx)
        except ApiError as error:
            _complain(str(error), [f"{item['pointer']}: {item['detail']}" for item in error.problem.get("errors", [])])
            codes = {400: BAD_INPUT, 401: NOT_ALLOWED, 403: NOT_ALLOWED, 404: NOT_FOUND, 422: BAD_INPUT}
            ctx.exit(codes.get(error.status, FAILED))
        except UnreachableError as error:
            _complain(str(error))
            ctx.exit(UNREACHABLE)
        except InvalidArgumentError as error:
            _complain(error.detail)
            ctx.exit(BAD_INPUT)
        except MeridianError as error:
            _complain(error.detail)
            ctx.exit(NOT_FOUND if isinstance(error, NotFoundError) else FAILED)
        except TimeoutError as error:
            _complain(str(error))
            ctx.exit(FAILED)
        except KeyboardInterrupt:
            ctx.exit(130)
        except BrokenPipeError:
            # The reader of our output went away; nothing more can be said.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)


def _complain(message: str, details: list[str] | None = None) -> None:
    click.echo(click.style("error: ", fg="red") + message, err=True)
    for detail in details or []:
        if detail not in message:
            click.echo(f"  {detail}", err=True)


@click.group(cls=Commands, help="The command line of a Meridian compute network.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    envvar="MERIDIAN_DATA_DIR",
    help="State of the network on this machine. [default: the user's data folder]",
)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
@click.version_option(package_name="meridian-network", prog_name="meridian")
@click.pass_context
def main(ctx: click.Context, data_dir: Path | None, as_json: bool) -> None:
    """The `meridian` command."""
    from meridian.client import default_data_dir

    ctx.obj = Context(data_dir or default_data_dir(), as_json)


def json_option(function: Any) -> Any:
    """``--json`` behind the command's name as well as before it."""

    def remember(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
        if value:
            ctx.obj.as_json = True

    return click.option("--json", is_flag=True, expose_value=False, callback=remember, help="Answer in JSON.")(function)


if __name__ == "__main__":
    main()
