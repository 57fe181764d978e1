"""Page tokens: an opaque position in a list. They carry no rights; the caller's own filter applies on every page."""

from __future__ import annotations

import base64
import binascii

from meridian.errors import FieldError, InvalidArgumentError

_LARGEST = (1 << 63) - 1


def encode(kind: str, position: int) -> str:
    """The token for the page behind ``position`` (a row's sequence number, >= 0) of the list ``kind``."""
    return base64.urlsafe_b64encode(f"{kind}.{position}".encode()).decode().rstrip("=")


def decode(kind: str, token: str) -> int:
    """The position in a token of that list; InvalidArgumentError when it is none."""
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True).decode("ascii")
        found, _, digits = text.partition(".")
        position = int(digits)
    except (ValueError, binascii.Error):
        raise _invalid() from None
    if found != kind or not 0 <= position <= _LARGEST or encode(kind, position) != token:
        raise _invalid()
    return position


def _invalid() -> InvalidArgumentError:
    detail = "the page token does not belong to this list"
    return InvalidArgumentError(detail, errors=(FieldError("query:page_token", detail),))
