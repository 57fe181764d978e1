"""Resources that users define: the model by its fields, commands within their limits, what nodes have of them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import select
from pathlib import Path
from typing import Any

import pytest

from agent import commands
from agent.collectors.unknown import UnknownKind
from agent.commands import CommandError, CommandLimits, run_command
from agent.user_resources import Amount, CommandPolicy, UserResources
from meridian.cli.resource_commands import resources_in
from meridian.errors import InvalidArgumentError
from meridian.resource_model import ResourceModel, parse_output, resource_from, share_of

LIMITS = CommandLimits(time_s=60.0, output_bytes=1000)


def _resource(**fields: Any) -> ResourceModel:
    return resource_from({"name": "licences", "description": "seats", **fields})


def _dynamic(*command: str, **fields: Any) -> ResourceModel:
    return _resource(dynamic=True, command=command, interval_s=1, **fields)


def _resources(
    tmp_path: Path, *own: ResourceModel, nodes: tuple[str, ...] = ("n1", "n2", "n3"), **more: Any
) -> UserResources:
    return UserResources("north", nodes, own, more.pop("policy", CommandPolicy(limits=LIMITS)), tmp_path, **more)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({}, "/value"),
        ({"value": -1}, "/value"),
        ({"value": float("nan")}, "/value"),
        ({"dynamic": True}, "/command"),
        ({"dynamic": True, "command": ["x"], "value": 3}, "/value"),
        ({"value": 3, "command": ["x"]}, "/command"),
        ({"value": 3, "name": "gpu"}, "/name"),
        ({"value": 3, "name": "two words"}, "/name"),
        ({"value": 3, "interval_s": 0}, "/interval_s"),
        ({"value": 3, "shareable": True}, "/scope"),
        ({"value": 3, "scope": ["rack:1"]}, "/scope/0"),
        ({"value": 3, "colour": "red"}, "/colour"),
        ({"value": True}, "/value"),
        ({"dynamic": True, "command": ["x"], "interval_s": True}, "/interval_s"),
        ({"dynamic": True, "command": ["x"], "interval_s": 3, "interval": 4}, "/interval"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        _resource(**fields)
    assert [item.pointer for item in refusal.value.errors] == [pointer]


def test_the_interval_goes_by_its_name_in_the_model_too() -> None:
    found = resource_from({"name": "x", "dynamic": True, "command": "free", "interval": 30})
    assert found.interval_s == 30


def test_of_a_file_with_a_wrong_resource_none_is_sent() -> None:
    text = "resources: [{name: one, value: 1}, {name: two, value: yes}, {name: three}]"
    with pytest.raises(InvalidArgumentError) as refusal:
        resources_in(named(text, "seats.yaml"))
    assert [item.pointer for item in refusal.value.errors] == ["/resources/1/value"]
    assert "seats.yaml" in refusal.value.detail
    assert "two" in refusal.value.detail


def test_a_file_that_says_two_things_of_one_resource_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="two resources have the name one"):
        resources_in(named("resources: [{name: one, value: 1}, {name: one, value: 2}]", "seats.yaml"))


def named(text: str, name: str) -> io.StringIO:
    file = io.StringIO(text)
    file.name = name
    return file


def test_bare_names_of_a_scope_are_nodes_and_a_command_may_be_a_line() -> None:
    found = resource_from({"name": "x", "dynamic": True, "command": "cat '/a b'", "scope": "node1,".rstrip(",")})
    assert found.scope == ("node:node1",)
    assert found.command == ("cat", "/a b")
    assert found.every_s == 60


@pytest.mark.parametrize(
    ("text", "value", "attributes"),
    [
        ("42\n", 42.0, {}),
        ("\n 7.5 unit=seats vendor=acme\n9\n", 7.5, {"unit": "seats", "vendor": "acme"}),
        ("1e3 all of them", 1000.0, {"text": "all of them"}),
        ("3\tx=1", 3.0, {"x": "1"}),
    ],
)
def test_value_and_extended_attributes(text: str, value: float, attributes: dict[str, str]) -> None:
    assert parse_output(text) == (value, attributes)


@pytest.mark.parametrize("text", ["", "\n", "seats 5", "-3", "nan", "inf", "1_000", "٣", "5seats", "1e99"])
def test_output_that_does_not_begin_with_an_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"amount|nothing|more than"):
        parse_output(text)


async def test_a_command_gets_a_clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    output = await run_command(["/usr/bin/env"], LIMITS, tmp_path, {"MERIDIAN_NODE_ID": "n1"})
    names = {line.partition("=")[0] for line in output.splitlines()}
    assert "SECRET_TOKEN" not in names
    assert names <= {"PATH", "LANG", "MERIDIAN_NODE_ID", "PWD", "SHLVL", "_", "LC_CTYPE"}


@pytest.mark.parametrize(
    ("argv", "time_s", "words"),
    [
        (["/bin/sleep", "60"], 0.5, "ran longer than"),
        (["/bin/sh", "-c", "sleep 60 & sleep 60"], 0.5, "ran longer than"),
        (["/usr/bin/yes"], 60.0, "printed more than 1000 bytes"),
        (["/bin/sh", "-c", "echo bad >&2; exit 3"], 60.0, "ended with status 3: bad"),
        (["/no/such/program"], 60.0, "cannot be started"),
        (["/bin/echo", "5;", "echo", "$HOME"], 60.0, ""),
    ],
)
async def test_limits_of_a_command(tmp_path: Path, argv: list[str], time_s: float, words: str) -> None:
    limits = CommandLimits(time_s=time_s, output_bytes=1000)
    if not words:
        assert await run_command(argv, limits, tmp_path) == "5; echo $HOME\n", "no shell reads the words"
        return
    with pytest.raises(CommandError, match=words):
        await run_command(argv, limits, tmp_path)


async def test_a_command_that_prints_faster_than_it_is_read_has_printed_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, streams = commands._answer, []

    async def late(process: asyncio.subprocess.Process, most: int) -> tuple[bytes | None, bytes | None, int]:
        # So much that the stream takes no more until it is read.
        streams.append(process.stdout)
        while len(process.stdout._buffer) <= 2 * 65_536:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        return await answer(process, most)

    monkeypatch.setattr(commands, "_answer", late)
    with pytest.raises(CommandError, match="printed more than 1000 bytes"):
        await run_command(["/usr/bin/yes"], CommandLimits(time_s=60.0, output_bytes=1000), tmp_path)
    [stream] = streams
    assert stream is not None
    assert stream.at_eof(), "its pipe would stay open"


async def test_what_a_command_said_counts_though_a_child_of_its_holds_its_output_open(tmp_path: Path) -> None:
    limits = CommandLimits(time_s=1.0, output_bytes=1000)
    assert await run_command(["/bin/sh", "-c", "echo 5; sleep 600 & exit 0"], limits, tmp_path) == "5\n"
    with pytest.raises(CommandError, match="ended with status 3"):
        await run_command(["/bin/sh", "-c", "sleep 600 & exit 3"], limits, tmp_path)


async def test_nothing_of_a_command_lives_on(tmp_path: Path) -> None:
    told = tmp_path / "child"
    line = f"sleep 600 & echo $! > {told}.new && mv {told}.new {told}; echo 1; wait"
    for time_s in (0.5, 5.0, 50.0):  # The shell of a busy machine may come to its first line late.
        with pytest.raises(CommandError, match="ran longer"):
            await run_command(["/bin/sh", "-c", line], CommandLimits(time_s=time_s), tmp_path)
        if told.exists():
            break
    child = int(told.read_text())
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(child)
        assert select.select([handle], [], [], 60)[0], "its child has ended too"


async def test_a_static_value_is_that_of_every_node_of_its_scope(tmp_path: Path) -> None:
    resources = _resources(tmp_path, _resource(value=4, scope=["n1", "n3"]))
    assert {node: [item.value for item in items] for node, items in resources.amounts().items()} == {
        "n1": [4],
        "n3": [4],
    }


async def test_what_is_shared_and_used_up_is_never_given_twice(tmp_path: Path) -> None:
    resources = _resources(tmp_path, _resource(value=5, shareable=True, scope=["domain:north"]))
    assert [items[0].value for items in resources.amounts().values()] == [2, 2, 1]
    present = _resources(tmp_path, _resource(value=5, shareable=True, consumable=False))
    assert [items[0].value for items in present.amounts().values()] == [5, 5, 5]
    assert sum(share_of(2.5, 4, place) for place in range(4)) == 2.5


async def test_a_command_is_read_for_each_node_and_once_for_what_they_share(tmp_path: Path) -> None:
    line = f'echo x >> {tmp_path}/calls; echo "3 node=$MERIDIAN_NODE_ID"'
    own = _dynamic("/bin/sh", "-c", line)
    resources = _resources(tmp_path, own)
    assert next(iter(resources.amounts().values()))[0].reason == "the command has not run yet"
    await resources.read_once()
    assert {node: items[0].attributes["node"] for node, items in resources.amounts().items()} == {
        "n1": "n1", "n2": "n2", "n3": "n3",
    }  # fmt: skip
    assert (tmp_path / "calls").read_text().count("x") == 3
    shared = _resources(tmp_path, _dynamic("/bin/sh", "-c", line, shareable=True, scope=["domain:north"]))
    await shared.read_once()
    assert [items[0].value for items in shared.amounts().values()] == [1, 1, 1]
    assert (tmp_path / "calls").read_text().count("x") == 4


async def test_a_command_that_fails_makes_the_amount_unknown(tmp_path: Path) -> None:
    for command, kind in (
        (("/bin/false",), UnknownKind.UNAVAILABLE),
        (("/bin/echo", "many"), UnknownKind.NOT_A_NUMBER),
    ):
        resources = _resources(tmp_path, _dynamic(*command), nodes=("n1",))
        await resources.read_once()
        amount: Amount = resources.amounts()["n1"][0]
        assert (amount.value, amount.kind) == (None, kind)
        assert amount.reason


@pytest.mark.parametrize(
    ("policy", "runs"),
    [
        (CommandPolicy("none", limits=LIMITS), False),
        (CommandPolicy("listed", frozenset({"/bin/false"}), LIMITS), False),
        (CommandPolicy("listed", frozenset({"/bin/echo"}), LIMITS), True),
        (CommandPolicy("any", limits=LIMITS), True),
    ],
)
async def test_commands_that_the_network_tells_run_only_where_they_may(
    tmp_path: Path, policy: CommandPolicy, runs: bool
) -> None:
    resources = _resources(tmp_path, nodes=("n1",), policy=policy)
    resources.tell("licences", _dynamic("/bin/echo", "7"))
    await resources.read_once()
    amount = resources.amounts()["n1"][0]
    assert amount.value == (7 if runs else None)
    assert runs or "does not run commands" in amount.reason
    resources.tell("licences", _dynamic("/bin/echo", "7"))
    assert resources.amounts()["n1"][0] == amount, "told again, nothing changes"
    resources.tell("licences", None)
    assert resources.amounts() == {}


async def test_ones_own_word_stands_and_only_it_may_have_a_shell(tmp_path: Path) -> None:
    own = _dynamic("echo $((2+3))")
    resources = _resources(
        tmp_path, own, nodes=("n1",), shell_names=frozenset({"licences"}), policy=CommandPolicy("any", limits=LIMITS)
    )
    resources.tell("licences", _resource(value=99))
    resources.tell(
        "other", resource_from({"name": "other", "dynamic": True, "command": ["echo $((2+3))"], "interval_s": 9})
    )
    await resources.read_once()
    found = {item.resource.name: item for item in resources.amounts()["n1"]}
    assert found["licences"].value == 5
    assert "cannot be started" in found["other"].reason
