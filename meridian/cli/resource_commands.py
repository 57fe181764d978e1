"""resource: add, list, show, remove. Resources that users define; guide: docs/telemetry.md."""

from __future__ import annotations

from typing import Any, TextIO

import click

from meridian.cli.amounts import Amount
from meridian.cli.main import Context, json_option
from meridian.cli.output import age, print_json, print_table
from meridian.cli.yaml_files import read_yaml
from meridian.errors import InvalidArgumentError
from meridian.resource_model import resource_from


@click.group()
def resource() -> None:
    """Resources that users define: static values, or commands that print them."""


@resource.command()
@click.argument("name", required=False)
@click.option("--file", "-f", type=click.File(encoding="utf-8"), help="YAML with one resource, or a list `resources`.")
@click.option("--description", default="", help="What it is.")
@click.option("--value", type=Amount(), help="The amount of a static resource.")
@click.option("--command", help="The command of a dynamic resource; it prints [value] [extended attributes].")
@click.option("--interval", "interval_s", type=int, help="Seconds between two runs of the command. [default: 60]")
@click.option(
    "--consumable/--not-consumable", default=True, show_default=True, help="Work that asks for it uses it up."
)
@click.option("--shareable/--not-shareable", default=False, show_default=True, help="One amount for all of the scope.")
@click.option("--scope", multiple=True, help="node:ID or domain:ID, several times; everywhere when left out.")
@json_option
@click.pass_obj
def add(context: Context, /, name: str | None, file: TextIO | None, **options: Any) -> None:
    """Define a resource, or change what was defined."""
    if (name is None) == (file is None):
        raise InvalidArgumentError("either NAME with its attributes or --file is needed")
    definitions = resources_in(file) if file is not None else [_from_options(str(name), options)]
    with context.client() as network:
        answers = [network.put_resource(definition) for definition in definitions]
    if context.as_json:
        print_json(answers if file is not None else answers[0])
        return
    for answer in answers:
        click.echo(f"resource {answer['name']} is defined")


@resource.command("list")
@json_option
@click.pass_obj
def list_resources(context: Context) -> None:
    """List what is defined."""
    with context.client() as network:
        found = network.resources()
    if context.as_json:
        print_json(found)
        return
    print_table(
        ["NAME", "VALUE", "KIND", "SCOPE", ">DEFINED", "DESCRIPTION"],
        (
            [
                item["name"],
                "by command" if item["dynamic"] else f"{item['value']:g}",
                ", ".join(word for word in ("consumable", "shareable") if item[word]) or "-",
                " ".join(item["scope"]) or "everywhere",
                age(item["defined_at"]),
                item["description"],
            ]
            for item in found
        ),
        empty="No resource is defined.",
    )


@resource.command()
@click.argument("name")
@json_option
@click.pass_obj
def show(context: Context, name: str) -> None:
    """Show a resource and what each node has of it."""
    with context.client() as network:
        found = network.resource(name)
    if context.as_json:
        print_json(found)
        return
    print_table(
        ["DOMAIN", "NODE", "VALUE", "ATTRIBUTES", "WHY NOT"],
        (
            [
                item["domain_id"],
                item["node_id"],
                "unknown" if item["value"] is None else f"{item['value']:g}",
                " ".join(f"{key}={value}" for key, value in item["attributes"].items()),
                "" if item["value"] is not None else f"{item['quality']}: {item['reason']}",
            ]
            for item in found["nodes"]
        ),
        empty="No node has reported it yet.",
    )


@resource.command()
@click.argument("name")
@json_option
@click.pass_obj
def remove(context: Context, name: str) -> None:
    """Remove a definition."""
    with context.client() as network:
        answer = network.delete_resource(name)
    if context.as_json:
        print_json(answer)
    else:
        click.echo(f"resource {name} is removed")


def _from_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    dynamic = options["command"] is not None
    given = {key: value for key, value in options.items() if value is not None}
    return {**given, "name": name, "dynamic": dynamic, "scope": list(options["scope"])}


def resources_in(file: TextIO) -> list[dict[str, Any]]:
    """The definitions in a YAML file: one, or a list below ``resources``. All of them can be, or none is given.

    :raises InvalidArgumentError: names the file and, where YAML says it, the line, or the resource and its field.
    """
    content = read_yaml(file)
    is_list = isinstance(content, dict) and "resources" in content
    items = content.get("resources") if is_list else [content]
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) and "name" in item for item in items):
        raise InvalidArgumentError(f"{file.name}: a resource is a mapping with a name")
    names: set[str] = set()
    for position, item in enumerate(items):
        if str(item["name"]) in names:
            raise InvalidArgumentError(f"{file.name}: two resources have the name {item['name']}")
        names.add(str(item["name"]))
        try:
            resource_from(item, f"/resources/{position}" if is_list else "")
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{file.name}, {item['name']}: {error.detail}", errors=error.errors) from None
    return items
