"""up, down, status, demo, completion: the network on this machine."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict
from pathlib import Path

import click
from click.core import ParameterSource

from meridian.cli.amounts import Amount
from meridian.cli.main import FAILED, Context, json_option
from meridian.cli.output import age, console, errors, print_json, print_table, state
from meridian.errors import InvalidArgumentError, MeridianError


@click.command()
@click.option("--compact", is_flag=True, help="All services in one process (less memory, less isolation).")
@click.option(
    "--domains",
    "domains_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Domains to emulate (YAML). [default: five domains]",
)
@click.option(
    "--port", "gateway_port", type=click.IntRange(1, 65535), help="Port of the gateway. [default: a free one]"
)
@click.option(
    "--shards", type=click.IntRange(1, 100), default=1, show_default=True, help="Schedulers that share the tenants."
)
@click.option(
    "--levels",
    type=click.Choice(["one", "two"]),
    default="one",
    show_default=True,
    help="Two: schedulers choose domains, a decider of its own chooses nodes.",
)
@click.option("--foreground", is_flag=True, help="Stay in the foreground; Ctrl-C stops everything.")
@click.option("--timeout", "timeout_s", type=Amount(), default=300.0, show_default=True)
@json_option
@click.pass_obj
def up(
    context: Context,
    compact: bool,
    domains_file: Path | None,
    gateway_port: int | None,
    shards: int,
    levels: str,
    foreground: bool,
    timeout_s: float,
) -> None:
    """Start a network on this machine and wait until it is ready.

    KAFKA_BOOTSTRAP_SERVERS, DATABASE_URL and REDIS_URL name external servers to use instead of the embedded ones.
    """
    from meridian.embedded import stack

    options = stack.StackOptions(
        context.data_dir, compact, domains_file, gateway_port=gateway_port, shards=shards, levels=levels
    )
    if foreground:
        asyncio.run(stack.run_foreground(options))
        return
    runs_already = stack.is_up(context.data_dir)
    if runs_already and (given := _given("compact", "domains_file", "gateway_port", "shards", "levels")):
        errors.print(
            f"a network runs already, as it was started: {', '.join(given)} changes nothing of it (meridian down stops it)"
        )
    started = time.monotonic()
    with errors.status("starting the network ..."):
        running = stack.start_detached(options, timeout_s)
    if context.as_json:
        print_json(asdict(running))
        return
    if runs_already:
        console.print(f"it runs already: {running.urls['gateway']}")
        return
    console.print(f"[green]ready[/green] after {time.monotonic() - started:.1f} s: {running.urls['gateway']}")
    console.print(f"state and logs are in {context.data_dir}; stop it with [bold]meridian down[/bold]")


def _given(*names: str) -> list[str]:
    """Of these parameters the options that stand on the command line."""
    found = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in found.command.params
        if parameter.name in names and found.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


@click.command()
@click.option("--timeout", "timeout_s", type=Amount(), default=60.0, show_default=True)
@click.pass_obj
def down(context: Context, timeout_s: float) -> None:
    """Stop the network on this machine; no process stays."""
    from meridian.embedded import stack

    stopped = stack.stop(context.data_dir, timeout_s=timeout_s)
    console.print("stopped" if stopped else "nothing was running")


@click.command()
@json_option
@click.pass_obj
def status(context: Context) -> None:
    """Show the processes of the network on this machine."""
    from meridian.embedded import control, stack

    found = stack.status(context.data_dir)
    running = found is not None and control.is_running(found)
    if context.as_json:
        print_json({**asdict(found), "running": running} if found else {"running": False})
    elif found is None or not running:
        console.print("no network is running on this machine")
    else:
        console.print(
            state(found.phase.value), f"for {age(found.started_at)}, gateway {found.urls.get('gateway', 'external')}"
        )
        print_table(
            ["PROCESS", "STATE", ">PID", ">RESTARTS", ">UP", "LAST EXIT"],
            (
                [item.name, state(item.state.value), item.pid, item.restarts, age(item.ready_at), item.last_exit]
                for item in found.processes
            ),
            empty="",
        )
    if not running:
        sys.exit(FAILED)


@click.command()
@click.option("--keep", is_flag=True, help="Leave the network running afterwards.")
@json_option
@click.pass_obj
def demo(context: Context, keep: bool) -> None:
    """Start a network, train a model on it, kill a node, watch the training resume and finish."""
    from meridian.cli.demo import run_demo

    if not run_demo(context, keep=keep):
        sys.exit(FAILED)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: eval "$(meridian completion bash)"."""
    from click.shell_completion import get_completion_class

    from meridian.cli.main import main

    kind = get_completion_class(shell)
    if kind is None:
        raise InvalidArgumentError(f"there is no completion for {shell}")
    try:
        click.echo(kind(main, {}, "meridian", "_MERIDIAN_COMPLETE").source())
    except RuntimeError as error:
        raise MeridianError(str(error)) from None
