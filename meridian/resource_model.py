"""The unified resource model: a resource that users define without programming, by its nine attributes.

Source: the network's table 3-1 of resource attributes: name, description, dynamic, consumable, shareable, value, command,
interval, scope. A static resource has a value; a dynamic one has a command that prints ``[value] [extended attributes]``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from meridian.errors import FieldError, InvalidArgumentError

NAME = r"^[A-Za-z][A-Za-z0-9._-]{0,62}$"
MAX_AMOUNT = 1e15
MAX_ATTRIBUTES = 32
MAX_ATTRIBUTE_CHARS = 256
# Names that a job asks for in fields of their own.
RESERVED = frozenset({"cpu", "cpus", "memory", "memory_bytes", "gpu", "gpus", "accelerator", "accelerators"})
_VALUE = re.compile(r"[+]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,2})?")
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")

Name = Annotated[str, StringConstraints(pattern=NAME)]
Word = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]
Place = Annotated[str, StringConstraints(pattern=r"^(node|domain):[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]


class ResourceModel(BaseModel):
    """One resource. ``interval_s``: seconds between two runs of the command.

    ``consumable``: work that asks for some of it uses it up while it runs; otherwise having it is enough. ``shareable``: one
    amount for all of its scope; otherwise every node of the scope has its own. ``scope``: ``node:ID``, ``domain:ID`` or bare
    node ids; empty is everywhere.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    description: Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00]*$")] = ""
    dynamic: bool = False
    consumable: bool = True
    shareable: bool = False
    value: float | None = Field(default=None, ge=0, le=MAX_AMOUNT, allow_inf_nan=False)
    command: tuple[Word, ...] = Field(default=(), max_length=64)
    interval_s: int | None = Field(
        default=None, ge=1, le=86_400, validation_alias=AliasChoices("interval_s", "interval")
    )
    scope: tuple[Place, ...] = Field(default=(), max_length=1000)

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name.lower() in RESERVED:
            raise ValueError(f"{name!r} is asked for in a field of its own")
        return name

    @field_validator("value", "interval_s", mode="before")
    @classmethod
    def _is_number(cls, number: Any) -> Any:
        if number is True or number is False:
            raise ValueError("is yes or no and not a number")
        return number

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, command: Any) -> Any:
        return tuple(shlex.split(command)) if isinstance(command, str) else command

    @field_validator("scope", mode="before")
    @classmethod
    def _places(cls, scope: Any) -> Any:
        items = [scope] if isinstance(scope, str) else scope
        if not isinstance(items, list | tuple):
            return items
        return tuple(
            item if not isinstance(item, str) or ":" in item else f"node:{item}" for item in items if item != ""
        )

    @model_validator(mode="after")
    def _kinds_agree(self) -> ResourceModel:
        if self.dynamic:
            if not self.command or not self.command[0]:
                raise ValueError("command: a dynamic resource needs one")
            if self.value is not None:
                raise ValueError("value: that of a dynamic resource comes from its command")
        else:
            if self.value is None:
                raise ValueError("value: a static resource needs one")
            if self.command or self.interval_s is not None:
                raise ValueError("command: only a dynamic resource has one, and an interval")
        domains = [place for place in self.scope if place.startswith("domain:")]
        if self.consumable and self.shareable and (len(self.scope) != 1 or len(domains) != 1):
            raise ValueError("scope: what is shared and used up has the scope of exactly one domain")
        return self

    @property
    def every_s(self) -> int:
        """Seconds between two runs of the command; 60 where none is given."""
        return self.interval_s or 60

    def covers(self, domain_id: str, node_id: str) -> bool:
        """Whether a node is in the scope."""
        return not self.scope or f"domain:{domain_id}" in self.scope or f"node:{node_id}" in self.scope


def resource_from(content: object, pointer: str = "") -> ResourceModel:
    """A resource from what JSON or YAML gave.

    :raises InvalidArgumentError: names each field that is wrong, by JSON pointer.
    """
    try:
        return ResourceModel.model_validate(content)
    except ValidationError as error:
        found = []
        for item in error.errors():
            place, detail = "/".join(str(step) for step in item["loc"]), item["msg"].removeprefix("Value error, ")
            if not place and ": " in detail:
                place, detail = detail.split(": ", 1)
            found.append(FieldError(f"{pointer}/{place}".rstrip("/"), detail))
        words = "; ".join(f"{item.pointer or '/'}: {item.detail}" for item in found)
        raise InvalidArgumentError(f"no resource: {words}", errors=tuple(found)) from None


def parse_output(text: str) -> tuple[float, Mapping[str, str]]:
    """Value and extended attributes that a command printed: a number, then words or ``name=value`` pairs.

    Only the first line that is not empty counts. :raises ValueError: it does not begin with an amount, with the reason.
    """
    line = next((item.strip() for item in text.splitlines() if item.strip()), "")
    if not line:
        raise ValueError("the command printed nothing")
    first, _, rest = line.partition(" ") if " " in line else line.partition("\t")
    if not _VALUE.fullmatch(first):
        raise ValueError(f"{first[:40]!r} is no amount")
    value = float(first)
    if not isfinite(value) or value > MAX_AMOUNT:
        raise ValueError(f"{first[:40]!r} is more than {MAX_AMOUNT:g}")
    attributes: dict[str, str] = {}
    words: list[str] = []
    for word in rest.replace("\x00", "").split():
        name, is_pair, content = word.partition("=")
        if is_pair and _ATTRIBUTE_NAME.fullmatch(name) and len(attributes) < MAX_ATTRIBUTES:
            attributes[name] = content[:MAX_ATTRIBUTE_CHARS]
        else:
            words.append(word)
    if words:
        attributes["text"] = " ".join(words)[:MAX_ATTRIBUTE_CHARS]
    return value, attributes


def share_of(value: float, nodes: int, place: int, kind: Literal["whole", "any"] = "any") -> float:
    """What node ``place`` of ``nodes`` may give of an amount that all of them share: the parts add up to the amount.

    ``whole``: whole units, the first nodes have one more.
    """
    if kind == "whole" and value == int(value):
        return float(int(value) // nodes + (1 if place < int(value) % nodes else 0))
    return value / nodes
