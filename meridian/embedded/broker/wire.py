"""Primitive types of the Kafka protocol and the description of messages over all their versions.

A message is a ``Struct`` of ``Field``s, each with the versions it exists in. ``Struct.at(version, flexible)`` compiles it
to a pair of functions that read it from a frame into a dict and write it from one. "Flexible" versions (KIP-482) use
compact lengths and end every struct with tagged fields; tags are skipped on reading and none are written. A field that a
version lacks reads as its default, so that handlers see one form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from meridian.embedded.broker.errors import MalformedFrameError

Message = dict[str, Any]
Read = Callable[["Reader"], Any]
Write = Callable[[bytearray, Any], None]

ALWAYS = 1 << 15
"""Above any version number."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class Reader:
    """A position in the bytes of one frame; running over the end raises ``MalformedFrameError``."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes | memoryview, position: int = 0) -> None:
        self.data = memoryview(data)
        self.position = position
        self.end = len(self.data)

    def take(self, length: int) -> memoryview:
        """The next ``length`` bytes, not copied."""
        start = self.position
        stop = start + length
        if length < 0 or stop > self.end:
            raise MalformedFrameError(f"{length} bytes wanted at {start}, frame ends at {self.end}")
        self.position = stop
        return self.data[start:stop]

    def fixed(self, layout: struct.Struct) -> Any:
        """One number of the given layout."""
        start = self.position
        stop = start + layout.size
        if stop > self.end:
            raise MalformedFrameError(f"{layout.size} bytes wanted at {start}, frame ends at {self.end}")
        self.position = stop
        return layout.unpack_from(self.data, start)[0]

    def varint(self) -> int:
        """An unsigned base-128 number of at most 32 bits."""
        value = shift = 0
        while True:
            if self.position >= self.end or shift > 28:
                raise MalformedFrameError(f"bad variable-length number at {self.position}")
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def skip_tags(self) -> None:
        """Pass over the tagged fields that end a flexible struct."""
        for _ in range(self.varint()):
            self.varint()
            self.take(self.varint())


def write_varint(out: bytearray, value: int) -> None:
    """Append an unsigned base-128 number."""
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


@dataclass(frozen=True, slots=True)
class Type:
    """How one kind of value is read and written, in a plain and in a flexible version; ``default`` where it is absent."""

    compile: Callable[[int, bool], tuple[Read, Write]]
    default: Any = None

    def at(self, version: int, flexible: bool) -> tuple[Read, Write]:
        """The functions for one version."""
        return self.compile(version, flexible)


def _number(code: str, default: Any) -> Type:
    layout = struct.Struct(">" + code)
    pack = layout.pack

    def read(reader: Reader) -> Any:
        return reader.fixed(layout)

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return Type(lambda _version, _flexible: (read, write), default)


def _read_length(flexible: bool, short: bool) -> Callable[[Reader], int]:
    """Length of a string, of bytes or of an array; -1 means null."""
    if flexible:
        return lambda reader: reader.varint() - 1
    layout = _INT16 if short else _INT32
    return lambda reader: int(reader.fixed(layout))


def _write_length(flexible: bool, short: bool) -> Callable[[bytearray, int], None]:
    if flexible:
        return lambda out, length: write_varint(out, length + 1)
    pack = (_INT16 if short else _INT32).pack

    def write(out: bytearray, length: int) -> None:
        out += pack(length)

    return write


def _string(nullable: bool) -> Type:
    @cache
    def compile_for(_version: int, flexible: bool) -> tuple[Read, Write]:
        read_length, write_length = _read_length(flexible, short=True), _write_length(flexible, short=True)

        def read(reader: Reader) -> str | None:
            length = read_length(reader)
            if length < 0:
                if nullable and length == -1:
                    return None
                raise MalformedFrameError(f"string of length {length} at {reader.position}")
            try:
                return str(reader.take(length), "utf-8")
            except UnicodeDecodeError as error:
                raise MalformedFrameError(f"string at {reader.position} is not UTF-8") from error

        def write(out: bytearray, value: str | None) -> None:
            if value is None:
                write_length(out, -1)
                return
            encoded = value.encode()
            write_length(out, len(encoded))
            out += encoded

        return read, write

    return Type(compile_for, None if nullable else "")


def _bytes(nullable: bool) -> Type:
    @cache
    def compile_for(_version: int, flexible: bool) -> tuple[Read, Write]:
        read_length, write_length = _read_length(flexible, short=False), _write_length(flexible, short=False)

        def read(reader: Reader) -> memoryview | None:
            length = read_length(reader)
            if length < 0:
                if nullable and length == -1:
                    return None
                raise MalformedFrameError(f"bytes of length {length} at {reader.position}")
            return reader.take(length)

        def write(out: bytearray, value: bytes | memoryview | None) -> None:
            if value is None:
                write_length(out, -1)
                return
            write_length(out, len(value))
            out += value

        return read, write

    return Type(compile_for, None if nullable else b"")


BOOLEAN = _number("?", default=False)
INT8 = _number("b", 0)
INT16 = _number("h", 0)
INT32 = _number("i", 0)
INT64 = _number("q", 0)
UUID = _number("16s", bytes(16))
STRING = _string(nullable=False)
NULLABLE_STRING = _string(nullable=True)
BYTES = _bytes(nullable=False)
NULLABLE_BYTES = _bytes(nullable=True)


@dataclass(frozen=True, slots=True)
class Field:
    """A named value that exists in the versions ``since``..``until``; ``default`` overrides that of the type."""

    name: str
    type: Type
    since: int = 0
    until: int = ALWAYS
    default: Any = None

    @property
    def absent(self) -> Any:
        """The value where the version lacks the field or the writer gave none."""
        return self.type.default if self.default is None else self.default


class Struct:
    """An ordered list of fields: a whole message, or the items of an array."""

    def __init__(self, *fields: Field) -> None:
        self.fields = fields
        self._compiled: dict[tuple[int, bool], tuple[Read, Write]] = {}

    def at(self, version: int, flexible: bool) -> tuple[Read, Write]:
        """The functions that read and write this struct in one version."""
        key = (version, flexible)
        if key not in self._compiled:
            self._compiled[key] = self._compile(version, flexible)
        return self._compiled[key]

    def _compile(self, version: int, flexible: bool) -> tuple[Read, Write]:
        present = [field for field in self.fields if field.since <= version <= field.until]
        missing = {field.name: field.absent for field in self.fields if field not in present}
        readers = [(field.name, field.type.at(version, flexible)[0]) for field in present]
        writers = [(field.name, field.absent, field.type.at(version, flexible)[1]) for field in present]

        def read(reader: Reader) -> Message:
            message = {name: read_field(reader) for name, read_field in readers}
            if missing:
                message.update(missing)
            if flexible:
                reader.skip_tags()
            return message

        def write(out: bytearray, message: Message) -> None:
            for name, absent, write_field in writers:
                write_field(out, message.get(name, absent))
            if flexible:
                out.append(0)

        return read, write


def array(items: Type | Struct, *, nullable: bool = False) -> Type:
    """A list of values or of structs."""

    @cache
    def compile_for(version: int, flexible: bool) -> tuple[Read, Write]:
        read_length, write_length = _read_length(flexible, short=False), _write_length(flexible, short=False)
        read_item, write_item = items.at(version, flexible)

        def read(reader: Reader) -> list[Any] | None:
            length = read_length(reader)
            if length < 0:
                if nullable and length == -1:
                    return None
                raise MalformedFrameError(f"array of length {length} at {reader.position}")
            if length > reader.end - reader.position:
                raise MalformedFrameError(f"array of {length} items in {reader.end - reader.position} bytes")
            return [read_item(reader) for _ in range(length)]

        def write(out: bytearray, values: list[Any] | None) -> None:
            if values is None:
                write_length(out, -1)
                return
            write_length(out, len(values))
            for value in values:
                write_item(out, value)

        return read, write

    return Type(compile_for, None if nullable else [])
