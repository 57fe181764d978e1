"""A scheduler's explanation as text. Unknown parts of it are shown as they are, never dropped."""

from __future__ import annotations

from typing import Any

from meridian.cli.output import console


def print_explanation(found: dict[str, Any]) -> None:
    """Print an explanation of `GET /v1/jobs/{id}/explanation`."""
    _print(found, 0)


def _print(value: Any, depth: int) -> None:
    indent = "  " * depth
    if isinstance(value, dict):
        for name, item in value.items():
            if _simple(item):
                console.print(f"{indent}[bold]{name.replace('_', ' ')}[/bold]: {_text(item)}", soft_wrap=True)
            elif item:
                console.print(f"{indent}[bold]{name.replace('_', ' ')}[/bold]:")
                _print(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            if _simple(item):
                console.print(f"{indent}- {_text(item)}", soft_wrap=True)
            else:
                console.print(f"{indent}-")
                _print(item, depth + 1)
    else:
        console.print(f"{indent}{_text(value)}", soft_wrap=True)


def _simple(value: Any) -> bool:
    return not isinstance(value, dict | list) or (
        isinstance(value, list) and all(not isinstance(item, dict | list) for item in value)
    )


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
