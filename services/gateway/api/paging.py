"""Lists in pages: their parameters and their shape."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query

from services.gateway import cursor

PageSize = Annotated[int, Query(ge=1, le=1000, description="items in one answer")]
PageToken = Annotated[str | None, Query(max_length=200, description="from the answer before")]


def position(kind: str, token: str | None) -> int | None:
    """The position in a page token; None for the first page."""
    return None if token is None else cursor.decode(kind, token)


def page(kind: str, found: list[tuple[int, dict[str, Any]]], page_size: int) -> dict[str, Any]:
    """A page of ``found`` (one more than fits, where there is more), whose token is the position of its last item."""
    more = len(found) > page_size
    found = found[:page_size]
    token = cursor.encode(kind, found[-1][0]) if more else None
    return {"items": [body for _, body in found], "next_page_token": token}
