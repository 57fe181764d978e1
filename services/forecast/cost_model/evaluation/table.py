"""The table of measured runs as text: which columns it has, and which rows are none of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from meridian.errors import FieldError, InvalidArgumentError
from meridian.text_table import TextTable, UnreadableTableError

_NEEDED = ("accelerator", "seq", "gbs")
_MODEL = ("model", "layers")
_OF_MODEL = (*_MODEL, "hidden", "heads", "kv_heads", "ffn", "gated", "vocab", "tied", "experts", "top_k")
_OF_STATE = ("precision", "gradients", "recompute", "recompute_share", "zero")
_OF_SIZES = ("tp", "pp", "vpp", "dp", "cp", "ep", "mbs", "sp", "stage_layers")
_OF_LAYOUT = (*_OF_SIZES, "context", "repeated_keys", *_OF_STATE)
_OF_KERNELS = ("attention", "eager", "fused_loss", "captured", "expert_overlap", "dispatch_once", "fused_experts")
_OF_MACHINE = ("n_accel", "fabric_gbps", "node_size", "memory_gbps", "power_w")
COLUMNS = frozenset((*_NEEDED, *_OF_MODEL, *_OF_LAYOUT, *_OF_KERNELS, *_OF_MACHINE, "step_s", "mem_gib", "group"))
"""What a table of runs may state."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that cannot be used; ``fields`` say why."""

    line: int
    reason: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, each with its last line in the file and its cells by column; ``unused`` are columns that nothing reads."""

    rows: tuple[tuple[int, Mapping[str, str | None]], ...]
    rejected: tuple[Rejected, ...]
    unused: tuple[str, ...]


def column_named(name: str | None) -> str:
    """The column that a heading means, however it is capitalised."""
    return (name or "").strip().lower()


def read_table(path: Path) -> Table:
    """The rows of a CSV file; InvalidArgumentError when it is no table, lacks a column or has one twice."""
    try:
        table = TextTable(path)
        columns = [column_named(name) for name in table.columns]
        missing = [name for name in _NEEDED if name not in columns]
        if not set(_MODEL) & set(columns):
            missing.append("model (or layers and hidden)")
        if missing:
            only = "; it has one column: cells are divided by commas" if len(columns) == 1 else ""
            raise _no_table(path, f"needs {', '.join(missing)}{only}")
        twice = sorted(name for name in COLUMNS if columns.count(name) > 1)
        if twice:
            raise _no_table(path, f"has {', '.join(twice)} more than once")
        rows, rejected = [], []
        for line, cells in table.rows():
            # Cells beyond the last column come without a name.
            beyond = [cell for cell in cells.pop(None, None) or () if cell.strip()]
            if beyond:
                reason = f"row: has more cells than there are columns: {', '.join(beyond)}"
                rejected.append(Rejected(line, reason, ("row",)))
            else:
                rows.append((line, cells))
    except UnreadableTableError as error:
        raise InvalidArgumentError(str(error), errors=(FieldError("/rows", str(error)),)) from None
    unused = dict.fromkeys(name for name in columns if name and name not in COLUMNS)
    return Table(tuple(rows), tuple(rejected), tuple(unused))


def _no_table(path: Path, detail: str) -> InvalidArgumentError:
    text = f"{path.name}, line 1: {detail}"
    return InvalidArgumentError(text, errors=(FieldError("/columns", text),))
