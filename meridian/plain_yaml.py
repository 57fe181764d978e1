"""YAML as people mean it: what version 1.1 reads otherwise than it looks is an error with its line, not another value.

PyYAML reads YAML 1.1. There ``0120`` is 80, ``1:20`` is 80 too, and of a key that is given twice the last one counts. Everywhere that
people write YAML (policies, job files, settings of agents, files of domains and exporters) these are errors. Words of truth
(``yes``, ``off``) stay what version 1.1 says; where a text is wanted each reader refuses them by name.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, TextIO

import yaml

_OTHER_BASE = re.compile(r"[-+]?0[0-7_]+|.*:.*")
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_MERGE = "tag:yaml.org,2002:merge"


def misread(node: yaml.Node, value: Any) -> str:
    """What is wrong with a number that nobody means as YAML 1.1 reads it: ``0120`` as 80, and ``1:20`` too. Empty for others."""
    if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and _OTHER_BASE.fullmatch(node.value):
        return f"{node.value!r} would be read as {value!r} (YAML 1.1); write a decimal number, or a text in quotes"
    return ""


class PlainLoader(yaml.SafeLoader):
    """The safe loader; `yaml.constructor.ConstructorError` names the line of a number or key that is not what it looks like."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node."""
        value = super().construct_object(node, deep=deep)
        if wrong := misread(node, value):
            raise yaml.constructor.ConstructorError(None, None, wrong, node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping, whose keys must differ."""
        seen: dict[tuple[str, str], int] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in seen:
                    text = f"{key.value!r} is given twice, first in line {seen[name]}"
                    raise yaml.constructor.ConstructorError(None, None, text, key.start_mark)
                seen[name] = line
        return super().construct_mapping(node, deep=deep)


def load(source: str | TextIO) -> Any:
    """The one document of a text; None where it is empty. yaml.YAMLError, or ValueError for a day in no calendar, as PyYAML has them."""
    loader = PlainLoader(source)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
