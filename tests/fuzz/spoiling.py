"""Spoiled inputs in numbers: sound ones after one to six small changes, the same ones for a seed.

Hypothesis draws at about a thousand inputs a second; parsers that are quicker than that are given theirs from here.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence

INPUTS = int(os.environ.get("MERIDIAN_FUZZ_EXAMPLES", "2000"))
"""Of each parser. `make test-fuzz` gives each 100,000."""
FEWER = INPUTS if INPUTS > 2000 else INPUTS // 4
"""Of parsers that are slow, in the ordinary run."""
SEED = int(os.environ.get("MERIDIAN_FUZZ_SEED", "1"))
PIECES = (
    "{", "}", "[", "]", "(", ")", '"', "'", ",", ";", ":", "=", "|", "\n", "\r", "\r\n", " ", "\t", "\\", "#", "*", "+", "-",
    "--", ".", "_", "/", "&a", "*a", "!!", "? ", "- ", "0", "9", "7", "-1", "1_000", "٣", "²", "e9", "1e999", "1e-320",
    "0x1p3", "NaN", "inf", "null", "true", "99999999999", "9223372036854775808", "\x00", "\x1f", "\x85", "\u2028", "\u00a0",
    "\ufeff", "é", "[0-99999999]", "(x99999999)", "N/A",
)  # fmt: skip


def spoiled(sound: Sequence[str], inputs: int = INPUTS, pieces: Sequence[str] = PIECES) -> Iterator[str]:
    """So many spoiled inputs."""
    drawn = random.Random(SEED)
    for _ in range(inputs):
        text = drawn.choice(sound)
        for _ in range(drawn.randint(1, 6)):
            text = _changed(text, drawn, sound, pieces)
        yield text


def spoiled_bytes(sound: Sequence[bytes], inputs: int = INPUTS) -> Iterator[bytes]:
    """So many spoiled inputs that are no text: bytes put in, cut out, set to others, doubled, joined with another input."""
    drawn = random.Random(SEED)
    for _ in range(inputs):
        body = bytearray(drawn.choice(sound))
        for _ in range(drawn.randint(1, 6)):
            at = drawn.randint(0, len(body))
            to = min(at + drawn.randint(0, 16), len(body))
            match drawn.randint(0, 5):
                case 0:
                    body[at:at] = drawn.randbytes(drawn.randint(1, 4))
                case 1:
                    del body[at:to]
                case 2 if at < len(body):
                    body[at] = drawn.choice((0, 1, 0x7F, 0x80, 0xFF, drawn.randint(0, 255)))
                case 3:
                    body[to:to] = body[at:to]
                case 4:
                    body += drawn.choice(sound)
                case _:
                    del body[to:]
        yield bytes(body)


def _changed(text: str, drawn: random.Random, sound: Sequence[str], pieces: Sequence[str]) -> str:
    at = drawn.randint(0, len(text))
    to = min(at + drawn.randint(0, 40), len(text))
    match drawn.randint(0, 7):
        case 0 | 1:
            return text[:at] + drawn.choice(pieces) + text[at:]
        case 2:
            return text[:at] + drawn.choice(pieces) + text[to:]
        case 3:
            return text[:at] + text[to:]
        case 4:
            return text[:to] + text[at:to] + text[to:]
        case 5:
            lines = text.split("\n")
            lines.insert(drawn.randint(0, len(lines)), lines.pop(at % len(lines)))
            return "\n".join(lines)
        case 6:
            return text + drawn.choice(sound)
        case _:
            return text[:at] + "".join(chr(drawn.randint(0, 0x3FF)) for _ in range(drawn.randint(0, 4))) + text[to:]
