"""The Prometheus text format, read strictly line by line: a line that is not exactly of the format is no sample.

Lenient parsers make numbers of what is none: ``a 1 2 3`` (which of them?), digits of other scripts, a line that was cut off
by the end of the transfer. Exporters are not trusted: lines, labels and series are bounded, and the patterns take linear time
(possessive quantifiers). Format: Prometheus "Exposition formats" 0.0.4; a text that ends with ``# EOF`` is OpenMetrics 1.0,
whose timestamps are seconds and not milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agent.collectors.unknown import UnknownError, UnknownKind

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_LABEL = r'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\\n]|\\[\\"n])*+)"[ \t]*+'
_NUMBER = r"[+-]?(?:(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?|[Ii][Nn][Ff](?:inity)?|[Nn][Aa][Nn])"
_FAMILY = re.compile(rf"[ \t]*+({_NAME})[ \t]*+")
_ONE_LABEL = re.compile(_LABEL)
_END = re.compile(rf"[ \t]*+({_NUMBER})(?:[ \t]++([+-]?[0-9]++))?[ \t]*+$")
_END_OPENMETRICS = re.compile(rf"[ \t]*+({_NUMBER})(?:[ \t]++([+-]?[0-9]++(?:\.[0-9]*+)?))?(?:[ \t]++# \{{.*)?[ \t]*+$")
_ESCAPE = re.compile(r'\\([\\"n])')
_PLAIN = {"\\": "\\", '"': '"', "n": "\n"}


@dataclass(frozen=True, slots=True)
class ExpositionLimits:
    """How much of one answer is read. A longer line or one with more labels is dropped; more series refuse the answer."""

    max_line_chars: int = 16_384
    max_labels: int = 64
    max_series: int = 100_000


DEFAULT_LIMITS = ExpositionLimits()


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: ``timestamp_s`` (Unix time) only when the exporter gave one."""

    family: str
    labels: Mapping[str, str]
    value: float
    timestamp_s: float | None = None


@dataclass(frozen=True, slots=True)
class Exposition:
    """What could be read. ``types``: family to what its TYPE line says; ``bad_lines``: line numbers (from 1) with the reason."""

    samples: tuple[Sample, ...]
    types: Mapping[str, str] = field(default_factory=dict)
    bad_lines: tuple[tuple[int, str], ...] = ()

    @property
    def families(self) -> frozenset[str]:
        """Families that have a sample."""
        return frozenset(sample.family for sample in self.samples)


def parse_exposition(
    text: str,
    wanted: Callable[[str], bool] | None = None,
    limits: ExpositionLimits = DEFAULT_LIMITS,
    *,
    last_line_may_be_cut: bool = False,
) -> Exposition:
    """Samples of the wanted families (all when None).

    :param last_line_may_be_cut: a last line without its end of line is not believed.
    :raises UnknownError: LIMIT_EXCEEDED, there are more series than ``limits`` allow.
    """
    lines = text.split("\n")
    openmetrics = text.rstrip().endswith("# EOF")
    end = _END_OPENMETRICS if openmetrics else _END
    per_second = 1.0 if openmetrics else 1000.0
    cut = len(lines) if last_line_may_be_cut and not openmetrics else -1
    samples: list[Sample] = []
    types: dict[str, str] = {}
    bad: list[tuple[int, str]] = []
    series = 0
    for number, raw in enumerate(lines, 1):
        line = raw.removesuffix("\r")
        if not line or line.isspace():
            continue
        if line.startswith("#"):
            words = line.split(None, 3)
            if len(words) == 4 and words[1] == "TYPE":
                types[words[2]] = words[3].strip()
            continue
        series += 1
        if series > limits.max_series:
            raise UnknownError(UnknownKind.LIMIT_EXCEEDED, f"more than {limits.max_series} series")
        if number == cut:
            bad.append((number, "the last line has no end: it may be cut off"))
            continue
        if len(line) > limits.max_line_chars:
            bad.append((number, f"longer than {limits.max_line_chars} characters"))
            continue
        found = _FAMILY.match(line)
        if found is None:
            bad.append((number, "no name of a family"))
            continue
        if wanted is not None and not wanted(found[1]):
            continue
        sample = _sample(found[1], line, found.end(), end, per_second, limits.max_labels)
        if isinstance(sample, str):
            bad.append((number, sample))
        else:
            samples.append(sample)
    return Exposition(tuple(samples), types, tuple(bad))


def _sample(family: str, line: str, at: int, end: re.Pattern[str], per_second: float, max_labels: int) -> Sample | str:
    """The sample of a line, or what is wrong with it. ``at`` is where the name ends."""
    labels: dict[str, str] = {}
    if at < len(line) and line[at] == "{":
        at += 1
        while True:
            label = _ONE_LABEL.match(line, at)
            if label is None:
                break
            name, value = label[1], label[2]
            if name in labels:
                return f"label {name!r} stands twice"
            if len(labels) == max_labels:
                return f"more than {max_labels} labels"
            labels[name] = _ESCAPE.sub(lambda match: _PLAIN[match[1]], value) if "\\" in value else value
            at = label.end()
            if at < len(line) and line[at] == ",":
                at += 1
                continue
            break
        while at < len(line) and line[at] in " \t":
            at += 1
        if at >= len(line) or line[at] != "}":
            return "the labels cannot be read"
        at += 1
    elif line[at - 1 : at] not in {" ", "\t"}:
        return "no value"
    rest = end.match(line, at)
    if rest is None:
        return "not a value and at most one timestamp"
    stamp = rest[2]
    return Sample(family, labels, float(rest[1]), None if stamp is None else float(stamp) / per_second)
