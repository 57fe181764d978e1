"""YAML that remembers where each value stood, so that an error can name the line. JSON is read as well.

YAML 1.1 as PyYAML's safe loader resolves it, with four differences: a key given twice is an error, numbers in the form of
JSON (``1e3``) are numbers, numbers to the base of 8 or 60 (``0120`` is 80 in YAML 1.1, and so is ``1:20``) are an error, and only
mappings, lists and plain scalars are read (no other tags, no merge keys).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from meridian.errors import FieldError
from meridian.plain_yaml import misread
from services.scheduler.core.errors import PolicyError

_MOST_VALUES = 50_000
"""Aliases may make a small text into a very large document."""
_DEEPEST = 32
_LONGEST = 2000
"""Characters of a text about one problem."""
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?[eE][-+]?\d+")
_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")}


@dataclass(frozen=True, slots=True)
class Marked:
    """A value with its place. ``value`` is a text, number, truth value or None, or a dict or list of `Marked`.

    ``path`` is for people (``selection.order[1]``), ``pointer`` a JSON pointer (RFC 6901); ``line`` and ``column`` count
    from 1 and show the value itself.
    """

    value: Any
    path: str = ""
    pointer: str = ""
    line: int = 1
    column: int = 1

    def plain(self) -> Any:
        """The value without the places inside it."""
        if isinstance(self.value, dict):
            return {name: item.plain() for name, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def get(self, name: str) -> Marked | None:
        """The entry of a mapping."""
        found: Marked | None = self.value.get(name) if isinstance(self.value, dict) else None
        return found


@dataclass(slots=True)
class Problems:
    """What is wrong with a document, collected so that all of it is said at once. ``source`` names the document."""

    source: str = ""
    found: list[tuple[Marked, str]] = field(default_factory=list)

    def add(self, at: Marked, text: str) -> None:
        """Something is wrong with a value."""
        self.found.append((at, _clipped(text)))

    def raise_if_any(self) -> None:
        """PolicyError with every problem in the order of the lines; its detail names the first ones."""
        if not self.found:
            return
        ranked = sorted(self.found, key=lambda item: (item[0].line, item[0].column))
        texts = [
            f"line {at.line}: {_clipped(at.path)}: {text}" if at.path else f"line {at.line}: {text}"
            for at, text in ranked
        ]
        prefix = f"{self.source}: " if self.source else ""
        more = f"; and {len(texts) - 3} more" if len(texts) > 3 else ""
        raise PolicyError(
            prefix + "; ".join(texts[:3]) + more,
            errors=tuple(FieldError(_clipped(at.pointer), text) for (at, _), text in zip(ranked, texts, strict=True)),
        )


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 200]} ... {text[-100:]}"


def read(text: str, source: str = "") -> Marked:
    """The document in ``text``; PolicyError names the line where it does not read."""
    if text.lstrip().startswith("{"):
        # JSON allows tabs between values, YAML does not; inside the strings of JSON there are none.
        text = text.replace("\t", " ")
    problems = Problems(source)
    loader: Any = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            problems.add(Marked(None), "the document is empty")
        else:
            reader = _Reader(loader, problems)
            found = reader.marked(node, "", "", 0)
            problems.raise_if_any()
            return found
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Marked(None, line=mark.line + 1, column=mark.column + 1) if mark else Marked(None)
        problems.add(at, f"this is not YAML: {error.problem or error.context}")
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problems.add(Marked(None, line=line), f"this is not YAML: {error.reason}")
    except _TooLargeError as error:
        problems.add(Marked(None, line=error.mark.line + 1, column=error.mark.column + 1), error.text)
    finally:
        if loader is not None:
            loader.dispose()
    problems.raise_if_any()
    raise AssertionError


class _TooLargeError(Exception):
    """The document has more than is read; ``mark`` is where."""

    def __init__(self, mark: yaml.Mark, text: str) -> None:
        super().__init__(text)
        self.mark, self.text = mark, text


class _Loader(yaml.SafeLoader):
    """Gives up where the document becomes too large, and not after all of it was read, which takes seconds."""

    _depth = _values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A node with all below it."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._depth += 1
        # Keys have a parent and no index.
        self._values += parent is None or index is not None
        if self._depth > _DEEPEST + 1:
            raise _TooLargeError(mark, f"the document is nested deeper than {_DEEPEST} levels")
        if self._values > _MOST_VALUES:
            raise _TooLargeError(mark, f"the document has more than {_MOST_VALUES} values")
        found: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return found


class _Reader:
    def __init__(self, loader: Any, problems: Problems) -> None:
        self._loader, self._problems, self._values = loader, problems, 0

    def marked(self, node: yaml.Node, path: str, pointer: str, depth: int) -> Marked:
        """A node of the representation graph as a marked value."""
        mark = node.start_mark
        here = Marked(None, path, pointer, mark.line + 1, mark.column + 1)
        self._values += 1
        if depth > _DEEPEST:
            self._problems.add(here, f"this is nested deeper than {_DEEPEST} levels")
            self._problems.raise_if_any()
        if self._values > _MOST_VALUES:
            self._problems.add(here, f"the document has more than {_MOST_VALUES} values")
            self._problems.raise_if_any()
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return Marked(dict(self._entries(node, here, depth)), path, pointer, here.line, here.column)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            items = [
                self.marked(item, f"{path}[{place}]", f"{pointer}/{place}", depth + 1)
                for place, item in enumerate(node.value)
            ]
            return Marked(items, path, pointer, here.line, here.column)
        return Marked(self._scalar(node, here), path, pointer, here.line, here.column)

    def _entries(self, node: yaml.MappingNode, here: Marked, depth: int) -> Iterator[tuple[str, Marked]]:
        seen: dict[str, int] = {}
        for key, value in node.value:
            at = Marked(None, here.path, here.pointer, key.start_mark.line + 1, key.start_mark.column + 1)
            if not isinstance(key, yaml.ScalarNode):
                self._problems.add(at, "a key must be a text")
                continue
            name = str(key.value)
            if name in seen:
                self._problems.add(at, f"{name!r} is given twice, first in line {seen[name]}")
                continue
            seen[name] = at.line
            escaped = name.replace("~", "~0").replace("/", "~1")
            path = f"{here.path}.{name}" if here.path else name
            yield name, self.marked(value, path, f"{here.pointer}/{escaped}", depth + 1)

    def _scalar(self, node: yaml.Node, here: Marked) -> Any:
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALARS:
            if node.tag == "tag:yaml.org,2002:timestamp":
                return str(node.value)
            self._problems.add(here, f"values of type {node.tag!r} are not read here")
            return None
        if node.tag.endswith(":str"):
            text = str(node.value)
            if node.style is None and _JSON_NUMBER.fullmatch(text):
                return float(text)
            if any("\ud800" <= character <= "\udfff" for character in text):
                self._problems.add(here, "the text holds half a character (a lone surrogate)")
                return ""
            return text
        try:
            value = self._loader.construct_object(node)
        except (ValueError, KeyError, yaml.YAMLError):
            self._problems.add(here, f"{node.value!r} does not read as a value")
            return None
        if wrong := misread(node, value):
            self._problems.add(here, wrong)
        return value
