"""policy: show, list, check, diff, set, reset."""

from __future__ import annotations

import json
from typing import Any, TextIO

import click
import yaml

from meridian.cli.main import Context, json_option
from meridian.cli.output import age, console, errors, print_json, print_table
from meridian.errors import InvalidArgumentError

_DOCUMENT = click.argument("file", type=click.File(encoding="utf-8"))
_IF_MATCH = click.option("--if-match", default="", metavar="VERSION", help="Only if this version is in force.")


@click.group()
def policy() -> None:
    """See and change how the scheduler decides."""


@policy.command()
@click.argument("version", required=False)
@json_option
@click.pass_obj
def show(context: Context, version: str | None) -> None:
    """Show the policy in force, or one that was in force."""
    with context.client() as network:
        if version is None:
            found = network.policy()
            text = _yaml(found)
        else:
            known = network.policy_version(version)
            found = known["policy"]
            text = known["source"] or _yaml(found)
    if context.as_json:
        print_json(found)
    else:
        print(text.rstrip("\n"))


@policy.command("list")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@json_option
@click.pass_obj
def list_versions(context: Context, limit: int) -> None:
    """List the changes of the policy; the first one is in force."""
    with context.client() as network:
        found = list(network.policy_versions(limit=limit))
    if context.as_json:
        print_json(found)
        return
    print_table(
        ["VERSION", "FROM", ">SINCE", "BY"],
        ([item["version"], item["origin"], age(item["changed_at"]), item["changed_by"]] for item in found),
        empty="No policy was ever in force.",
    )


@policy.command()
@_DOCUMENT
@json_option
@click.pass_obj
def check(context: Context, file: TextIO) -> None:
    """Check a policy file without applying it; everything wrong is named with its line."""
    answer = _put(context, file, dry_run=True)
    if context.as_json:
        print_json(answer)
    else:
        console.print(f"{file.name} is a sound policy: {answer['version']}", markup=False)
        _print_warnings(answer)


@policy.command()
@_DOCUMENT
@json_option
@click.pass_obj
def diff(context: Context, file: TextIO) -> None:
    """Show what a policy file would change."""
    answer = _put(context, file, dry_run=True)
    if context.as_json:
        print_json(answer["changes"])
    else:
        _print_changes(answer)
        _print_warnings(answer)


@policy.command("set")
@click.argument("file", type=click.File(encoding="utf-8"), required=False)
@click.option("--version", help="Go back to a policy that was in force.")
@_IF_MATCH
@json_option
@click.pass_obj
def set_policy(context: Context, file: TextIO | None, version: str | None, if_match: str) -> None:
    """Decide by the policy in FILE (- for standard input) from the next cycle on."""
    if (file is None) == (version is None):
        raise click.UsageError("either a FILE or --version is needed")
    if file is not None:
        answer = _put(context, file, dry_run=False, if_match=if_match)
    else:
        with context.client() as network:
            known = network.policy_version(str(version))
            document = known["source"] or json.dumps(known["policy"])
            answer = network.put_policy(document, if_match=if_match)
    _print_applied(context, answer)


@policy.command()
@_IF_MATCH
@json_option
@click.pass_obj
def reset(context: Context, if_match: str) -> None:
    """Go back to the policy that the scheduler was started with."""
    with context.client() as network:
        answer = network.delete_policy(if_match=if_match)
    _print_applied(context, answer)


def _put(context: Context, file: TextIO, *, dry_run: bool, if_match: str = "") -> dict[str, Any]:
    try:
        document = file.read()
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"{file.name} is not a text file in UTF-8") from None
    with context.client() as network:
        return network.put_policy(document, dry_run=dry_run, if_match=if_match)


def _print_applied(context: Context, answer: dict[str, Any]) -> None:
    if context.as_json:
        print_json(answer)
        return
    _print_changes(answer)
    if answer["changed"]:
        console.print(f"{answer['version']} is in force, it was {answer['previous_version']}")
    else:
        console.print(f"{answer['version']} was in force already")
    _print_warnings(answer)


def _print_warnings(answer: dict[str, Any]) -> None:
    """What may be a mistake; a scheduler of an earlier release says nothing of it."""
    for item in answer.get("warnings", []):
        errors.print(f"warning: {item['field']}: {item['detail']}", markup=False, soft_wrap=True)


def _print_changes(answer: dict[str, Any]) -> None:
    print_table(
        ["FIELD", "IN FORCE", "NEW"],
        ([item["path"], _shown(item["before"]), _shown(item["after"])] for item in answer["changes"]),
        empty="No difference.",
    )


def _shown(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _yaml(body: dict[str, Any]) -> str:
    return yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=120)
