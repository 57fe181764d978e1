"""The catalogue: the tables beside this file, read and checked; chips can be added from a table of the same columns."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meridian.hardware.chip import GIBI, QUANTITIES, Chip
from meridian.hardware.facts import Fact, Statement, Tier
from meridian.hardware.names import Resolution, canonical, resolve
from meridian.text_table import TextTable, UnreadableTableError

FOLDER = Path(__file__).parent
# Other spellings of columns, as published tables of specifications use them.
_COLUMN_NAMES = {"evidence_tier": ("tier",), "source": ("evidence_url",), "link": ("interconnect",)}
_LARGEST = 1e12
"""In the units of a table (TFLOP/s, GB, GB/s, W): more is a slip of the pen."""
_LARGEST_FAMILY_SPREAD = 2.0
"""Members of a family may differ by this factor in 16-bit peak and in bandwidth; else the name says too little."""


class InvalidCatalogueError(ValueError):
    """A table of chips does not keep its form; the message names file, line and column."""


@dataclass(frozen=True, slots=True)
class _Row:
    id: str
    vendor: str
    name: str
    year: int | None
    form: str
    link: str
    statements: Mapping[str, Statement]
    aliases: tuple[str, ...]


class Catalogue:
    """Chips by id, and by any of their names."""

    def __init__(
        self,
        chips: Mapping[str, Chip],
        aliases: Mapping[str, tuple[str, ...]],
        machines: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        self._chips = dict(chips)
        self._machines = {canonical(name): found for name, found in (machines or {}).items()}
        self._aliases = {canonical(name): ids for name, ids in aliases.items()}
        for chip in chips.values():
            self._aliases.setdefault(canonical(chip.id), (chip.id,))
        memory = {chip.id: chip.value("memory") for chip in chips.values()}
        self._memory_gib = {chip_id: None if size is None else size / GIBI for chip_id, size in memory.items()}
        self._vendors = {chip.id: chip.vendor.lower() for chip in chips.values()}
        self._families = {ids: name for name, ids in sorted(self._aliases.items(), reverse=True) if len(ids) > 1}

    def __iter__(self) -> Iterator[Chip]:
        return iter(self._chips.values())

    def __contains__(self, chip_id: object) -> bool:
        return chip_id in self._chips

    def chip(self, chip_id: str) -> Chip:
        """The chip or family with this id; KeyError when there is none."""
        found = self._chips.get(chip_id)
        if found is not None:
            return found
        family = self._family_with_id(chip_id)
        if family is None:
            raise KeyError(chip_id)
        return family

    def resolve(self, name: str) -> Resolution:
        """What ``name`` stands for; a family whose members are alike resolves to the family."""
        found = resolve(name, self._aliases, self._memory_gib, self._machines, self._vendors)
        if found.chip_id is None and not found.candidates:
            family_of_id = self._family_with_id(name.strip())
            if family_of_id is not None:
                return Resolution(name, family_of_id.id, None, "", family_of_id.members)
        if found.chip_id is not None or not found.candidates:
            return found
        family = self._family(found.candidates)
        if family is None:
            return Resolution(name, None, found.count, "the name may mean chips that differ too much", found.candidates)
        return Resolution(name, family.id, found.count, "", found.candidates)

    def possible_ids(self, chip_id: str) -> frozenset[str]:
        """All ids under which rows of this very chip may stand: itself, and families it may belong to."""
        members = set(self.chip(chip_id).members) or {chip_id}
        families = {self._family_id(name) for ids, name in self._families.items() if members & set(ids)}
        return frozenset({chip_id} | members | families)

    def with_chips(self, path: Path) -> Catalogue:
        """This catalogue and the chips of the table ``path``; where an id is known already, the table's row is used.

        Raises InvalidCatalogueError.
        """
        added, aliases = _read_chips(path)
        everything = dict(self._aliases) | {canonical(name): ids for name, ids in aliases.items()}
        return Catalogue(self._chips | {chip.id: chip for chip in added}, everything, self._machines)

    def _family_with_id(self, chip_id: str) -> Chip | None:
        for ids, name in self._families.items():
            if self._family_id(name) == chip_id:
                return self._family(ids)
        return None

    @staticmethod
    def _family_id(name: str) -> str:
        return f"{name}-any"

    def _family(self, ids: tuple[str, ...]) -> Chip | None:
        members = [self._chips[chip_id] for chip_id in ids]
        facts: dict[str, Fact] = {}
        for name in members[0].facts:
            values = [value for value in (member.value(name) for member in members) if value is not None]
            if len(values) < len(members):
                continue
            spread = max(values) / min(values)
            if spread > _LARGEST_FAMILY_SPREAD and name in {"peak_fp16", "peak_bf16", "memory_bandwidth"}:
                return None
            middle = math.sqrt(max(values) * min(values))
            source = "all variants" if spread == 1 else f"middle of {len(values)} variants, {spread:.2f} apart"
            tier = members[0].facts[name].tier if spread == 1 else Tier.ESTIMATED
            facts[name] = Fact.of(name, members[0].facts[name].unit, [Statement(middle, tier, source)])
        memory = tuple(value for value in (member.memory_bytes for member in members) if value is not None)
        name = self._families[ids]
        years = [member.year for member in members if member.year is not None]
        return Chip(
            id=self._family_id(name),
            vendor=members[0].vendor,
            name=f"{name.upper()}, variant not stated",
            year=min(years) if years else None,
            form=members[0].form if len({member.form for member in members}) == 1 else "",
            link="",
            facts=facts,
            members=ids,
            members_memory_bytes=memory if len(memory) == len(members) else (),
        )


@cache
def standard() -> Catalogue:
    """The catalogue that comes with Meridian."""
    chips, aliases = _read_chips(FOLDER / "chips.csv")
    by_id = {chip.id: chip for chip in chips}
    with (FOLDER / "aliases.csv").open(encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.DictReader(stream), start=2):
            ids = tuple(row["ids"].split())
            unknown = [chip_id for chip_id in ids if chip_id not in by_id]
            if unknown or not ids:
                raise InvalidCatalogueError(f"aliases.csv, line {number}: no chip {' '.join(unknown) or 'is named'}")
            aliases[row["alias"]] = ids
    return Catalogue(by_id, aliases, _machines(by_id))


def _machines(chips: Mapping[str, Chip]) -> dict[str, tuple[str, int]]:
    """Type of machine, with and without what Azure puts before it -> chip and number."""
    machines = {}
    with (FOLDER / "instances.csv").open(encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.DictReader(stream), start=2):
            if row["chip"] not in chips:
                raise InvalidCatalogueError(f"instances.csv, line {number}: no chip {row['chip']!r}")
            for name in (row["instance"], row["instance"].removeprefix("Standard_")):
                machines[name] = (row["chip"], int(row["count"]))
    return machines


def _read_chips(path: Path) -> tuple[list[Chip], dict[str, tuple[str, ...]]]:
    try:
        table = TextTable(path)
        if not {"id", "name"} & {name.strip() for name in table.columns}:
            raise InvalidCatalogueError(f"{path.name}, line 1: needs a column id or name")
        rows = [_row(f"{path.name}, line {number}", row) for number, row in table.rows()]
    except UnreadableTableError as error:
        raise InvalidCatalogueError(str(error)) from None
    grouped: dict[str, list[_Row]] = {}
    for row in rows:
        grouped.setdefault(row.id, []).append(row)
    aliases: dict[str, tuple[str, ...]] = {}
    for row in rows:
        for alias in row.aliases:
            aliases[alias] = (row.id,)
    return [_chip(same) for same in grouped.values()], aliases


def _chip(rows: list[_Row]) -> Chip:
    facts = {}
    for name, unit, _ in QUANTITIES.values():
        statements = [row.statements[name] for row in rows if name in row.statements]
        if statements:
            facts[name] = Fact.of(name, unit, statements)
    first = rows[0]
    return Chip(first.id, first.vendor, first.name, first.year, first.form, first.link, facts)


def _row(where: str, row: Mapping[str | None, str | None]) -> _Row:
    cells = {key.strip(): (value or "").strip() for key, value in row.items() if key is not None}
    for column, spellings in _COLUMN_NAMES.items():
        for spelling in spellings:
            cells.setdefault(column, cells.get(spelling, ""))
    tier_text = cells.get("evidence_tier") or Tier.ESTIMATED
    try:
        tier = Tier(tier_text)
    except ValueError:
        raise InvalidCatalogueError(f"{where}, evidence_tier: {tier_text!r} is none of {', '.join(Tier)}") from None
    source = cells.get("source") or "the table itself"
    if "link_gbps" not in cells and cells.get("scaleup_gbps"):
        # Published tables count both directions.
        cells["link_gbps"] = repr(_number(where, "scaleup_gbps", cells["scaleup_gbps"]) / 2 or "")
    statements = {}
    for column, (name, _, factor) in QUANTITIES.items():
        text = cells.get(column, "")
        if text:
            statements[name] = Statement(_number(where, column, text) * factor, tier, source)
    name = cells.get("name") or cells.get("id", "")
    chip_id = cells.get("id") or canonical(name)
    if not chip_id:
        raise InvalidCatalogueError(f"{where}, id: is empty")
    year = _year(where, cells["year"]) if cells.get("year") else None
    aliases = (name, chip_id, *(alias.strip() for alias in cells.get("aliases", "").split(";") if alias.strip()))
    return _Row(
        chip_id, cells.get("vendor", ""), name, year, cells.get("form", ""), cells.get("link", ""), statements, aliases
    )


def _number(where: str, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _LARGEST:
        raise InvalidCatalogueError(f"{where}, {column}: {text[:40]!r} is no positive number up to {_LARGEST:g}")
    return value


def _year(where: str, text: str) -> int:
    year = _number(where, "year", text)
    if year != int(year) or not 1970 <= year < 2200:
        raise InvalidCatalogueError(f"{where}, year: {text[:40]!r} is no year")
    return int(year)
