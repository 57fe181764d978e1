"""Resources that users define: declared in the agent's file or told by the network, read, and given to nodes.

A static one has its value. The command of a dynamic one runs every interval: once for each node that has an amount of its own
(``MERIDIAN_NODE_ID`` names it), once for all when they share it. A value that could not be read is unknown, with the reason;
an old one is not kept. Commands that the network tells run only where the agent's file allows them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.collectors.unknown import UnknownKind
from agent.commands import CommandError, CommandLimits, run_command
from meridian.resource_model import ResourceModel, parse_output, share_of

AT_ONCE = 8
NOT_READ_YET = "the command has not run yet"


@dataclass(frozen=True, slots=True)
class Amount:
    """What a node has of a resource. ``value`` None: unknown, for ``kind`` and ``reason``."""

    resource: ResourceModel
    value: float | None
    attributes: Mapping[str, str] = field(default_factory=dict)
    kind: UnknownKind | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CommandPolicy:
    """Whose commands run: ``remote`` none, those whose program is in ``programs``, or any. ``shell`` for one's own only."""

    remote: str = "none"
    programs: frozenset[str] = frozenset()
    limits: CommandLimits = field(default_factory=CommandLimits)

    def refusal(self, command: Sequence[str]) -> str:
        """Why a command that the network tells does not run; empty: it runs."""
        if self.remote == "any" or (self.remote == "listed" and command[0] in self.programs):
            return ""
        return "this agent does not run commands that the network tells (resource_commands)"


class UserResources:
    """All definitions that concern one domain, and what its nodes have."""

    def __init__(
        self,
        domain_id: str,
        node_ids: Sequence[str],
        own: Iterable[ResourceModel],
        policy: CommandPolicy,
        working_dir: Path,
        *,
        shell_names: frozenset[str] = frozenset(),
    ) -> None:
        self._domain_id = domain_id
        self._node_ids = tuple(node_ids)
        self._own = {item.name: item for item in own}
        self._told: dict[str, ResourceModel] = {}
        self._policy = policy
        self._working_dir = working_dir
        self._shell_names = shell_names
        self._read: dict[tuple[str, str], Amount] = {}
        self._changed = asyncio.Event()
        self._room = asyncio.Semaphore(AT_ONCE)

    def tell(self, name: str, definition: ResourceModel | None) -> None:
        """The network defines a resource anew, or removes it (None). What the agent's own file says of a name stands."""
        if definition == self._told.get(name):
            # Told again: what was read stands, its command goes on at its interval.
            return
        if definition is None:
            del self._told[name]
        else:
            self._told[name] = definition
        self._read = {key: amount for key, amount in self._read.items() if key[0] != name or name in self._own}
        self._changed.set()

    @property
    def definitions(self) -> Mapping[str, ResourceModel]:
        """What is in force, by name."""
        return {**self._told, **self._own}

    def amounts(self) -> dict[str, list[Amount]]:
        """What each node has, by name; nodes that have nothing are left out."""
        found: dict[str, list[Amount]] = {}
        for _, definition in sorted(self.definitions.items()):
            nodes = self._nodes_of(definition)
            for place, node_id in enumerate(nodes):
                found.setdefault(node_id, []).append(self._amount(definition, node_id, place, len(nodes)))
        return found

    async def run(self) -> None:
        """Run the commands, each at its interval, until cancelled."""
        running: dict[str, tuple[ResourceModel, asyncio.Task[None]]] = {}
        try:
            while True:
                self._changed.clear()
                wanted = {
                    name: item for name, item in self.definitions.items() if item.dynamic and self._nodes_of(item)
                }
                for name, (definition, task) in list(running.items()):
                    if wanted.get(name) != definition:
                        task.cancel()
                        del running[name]
                for name, definition in wanted.items():
                    if name not in running:
                        running[name] = definition, asyncio.create_task(self._follow(definition))
                await self._changed.wait()
        finally:
            for _, task in running.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in running.values()), return_exceptions=True)

    async def read_once(self) -> None:
        """Run every command once."""
        await asyncio.gather(*(self._take(item) for item in self.definitions.values() if item.dynamic))

    async def _follow(self, definition: ResourceModel) -> None:
        while True:
            await self._take(definition)
            await asyncio.sleep(definition.every_s)

    async def _take(self, definition: ResourceModel) -> None:
        nodes = self._nodes_of(definition)
        readers = [""] if definition.shareable else list(nodes)
        await asyncio.gather(*(self._take_of(definition, node_id) for node_id in readers))

    async def _take_of(self, definition: ResourceModel, node_id: str) -> None:
        async with self._room:
            amount = await self._ask(definition, node_id)
        if self.definitions.get(definition.name) == definition:
            self._read[definition.name, node_id] = amount

    async def _ask(self, definition: ResourceModel, node_id: str) -> Amount:
        own = definition.name in self._own
        refusal = "" if own else self._policy.refusal(definition.command)
        if refusal:
            return Amount(definition, None, kind=UnknownKind.UNAVAILABLE, reason=refusal)
        environment = {"MERIDIAN_DOMAIN_ID": self._domain_id, "MERIDIAN_RESOURCE": definition.name}
        if node_id:
            environment["MERIDIAN_NODE_ID"] = node_id
        try:
            output = await run_command(
                definition.command,
                self._policy.limits,
                self._working_dir,
                environment,
                shell=own and definition.name in self._shell_names,
            )
        except CommandError as error:
            return Amount(definition, None, kind=UnknownKind.UNAVAILABLE, reason=f"the command {error}")
        try:
            value, attributes = parse_output(output)
        except ValueError as error:
            return Amount(definition, None, kind=UnknownKind.NOT_A_NUMBER, reason=str(error))
        return Amount(definition, value, attributes)

    def _nodes_of(self, definition: ResourceModel) -> list[str]:
        return [node_id for node_id in self._node_ids if definition.covers(self._domain_id, node_id)]

    def _amount(self, definition: ResourceModel, node_id: str, place: int, nodes: int) -> Amount:
        if definition.dynamic:
            known = self._read.get((definition.name, "" if definition.shareable else node_id))
            if known is None:
                return Amount(definition, None, kind=UnknownKind.NEEDS_SECOND_SAMPLE, reason=NOT_READ_YET)
        else:
            known = Amount(definition, definition.value)
        if known.value is not None and definition.shareable and definition.consumable:
            # Nodes know nothing of each other's use: each may give its part, so that the whole is never given twice.
            return Amount(definition, share_of(known.value, nodes, place, "whole"), known.attributes)
        return known
