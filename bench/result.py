"""The form of results, where the programs here have always found it; it lives in meridian/result.py."""

from meridian.result import (
    SCHEMA_NAME,
    SCHEMA_PATH,
    DataSource,
    InvalidResultError,
    Row,
    Setting,
    command_line,
    document,
    print_table,
    read,
    validate,
    write,
)

__all__ = [
    "SCHEMA_NAME",
    "SCHEMA_PATH",
    "DataSource",
    "InvalidResultError",
    "Row",
    "Setting",
    "command_line",
    "document",
    "print_table",
    "read",
    "validate",
    "write",
]
