"""An update replaces services one by one (docs/operations.md): until the last is replaced, the old version uses the new schema."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MIGRATIONS = sorted((ROOT / "services").rglob("migrations/versions/*.py"))
TAKING = re.compile(r"\b(DROP|RENAME)\b", re.IGNORECASE)


def taken_away(source: str) -> list[str]:
    """What a migration drops or renames on the way up, statements and calls of Alembic's operations."""
    found = []
    for part in ast.parse(source).body:
        if isinstance(part, ast.FunctionDef) and part.name == "downgrade":
            continue
        for node in ast.walk(part):
            if isinstance(node, ast.Attribute) and TAKING.search(node.attr.replace("_", " ")):
                found.append(node.attr)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and TAKING.search(node.value):
                found.append(node.value)
    return found


def test_migrations_are_found() -> None:
    services = {path.relative_to(ROOT / "services").parts[0] for path in MIGRATIONS}
    assert services == {path.parent.name for path in (ROOT / "services").glob("*/migrations")}


@pytest.mark.parametrize("path", MIGRATIONS, ids=lambda path: "-".join(path.relative_to(ROOT / "services").parts[::3]))
def test_a_migration_takes_nothing_away_that_the_version_before_uses(path: Path) -> None:
    assert taken_away(path.read_text()) == []


def test_what_takes_away_is_seen() -> None:
    source = 'X = ("ALTER TABLE a DROP COLUMN b",)\ndef upgrade():\n    op.drop_column("a", "b")\ndef downgrade():\n    op.drop_table("a")\n'
    assert taken_away(source) == ["ALTER TABLE a DROP COLUMN b", "drop_column"]
