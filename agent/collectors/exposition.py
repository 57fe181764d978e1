"""The Prometheus text format, read leniently: only wanted families, and a bad line costs that line only."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: ``timestamp_s`` (Unix time) only when the exporter gave one."""

    family: str
    labels: Mapping[str, str]
    value: float
    timestamp_s: float | None


def parse_exposition(text: str, families: Set[str]) -> tuple[list[Sample], int]:
    """Samples of the wanted families and the number of their lines that could not be read."""
    wanted = [line for line in text.splitlines() if _family_of(line) in families]
    try:
        return _parse(wanted), 0
    except ValueError:
        pass
    samples: list[Sample] = []
    bad_lines = 0
    for line in wanted:
        try:
            samples += _parse([line])
        except ValueError:
            bad_lines += 1
    return samples, bad_lines


def _family_of(line: str) -> str:
    if line.startswith("#"):
        return ""
    return line.partition("{")[0].partition(" ")[0].partition("\t")[0]


def _parse(lines: list[str]) -> list[Sample]:
    return [
        Sample(
            sample.name,
            sample.labels,
            float(sample.value),
            None if sample.timestamp is None else float(sample.timestamp),
        )
        for family in text_string_to_metric_families("\n".join(lines) + "\n")
        for sample in family.samples
    ]
