"""Latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): widths of its heads and weights of its matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meridian.errors import FieldError, InvalidArgumentError

_FIELDS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Ranks of the compressed queries and keys, and widths of a head: what is not rotated, what is, and values."""

    key_rank: int
    # 0: queries are not compressed.
    query_rank: int
    plain: int
    rotated: int
    values: int

    @classmethod
    def of(cls, config: Mapping[str, Any], wrong: Callable[[str, str], InvalidArgumentError]) -> LatentAttention | None:
        """That of a configuration; None when it has none. ``wrong`` makes the error for a field."""
        if not config.get("kv_lora_rank"):
            return None
        bad = [name for name in _FIELDS if not _is_size(config.get(name))]
        if config.get("q_lora_rank") is not None and not _is_size(config["q_lora_rank"]):
            bad.append("q_lora_rank")
        if bad:
            problems = [wrong(name, "needed with kv_lora_rank") for name in bad]
            errors: list[FieldError] = [each for problem in problems for each in problem.errors]
            raise InvalidArgumentError(f"model: {', '.join(bad)}: needed with kv_lora_rank", errors=tuple(errors))
        rank, nope, rope, values = (int(config[name]) for name in _FIELDS)
        return cls(rank, int(config.get("q_lora_rank") or 0), nope, rope, values)

    @property
    def head_size(self) -> int:
        """Mean width of a head's queries and values, by which attention is timed."""
        return (self.plain + self.rotated + self.values) // 2

    def weights(self, hidden: int, heads: int) -> int:
        """Weights of the attention matrices of one layer."""
        width = heads * (self.plain + self.rotated)
        queries = hidden * self.query_rank + self.query_rank * width if self.query_rank else hidden * width
        keys = hidden * (self.key_rank + self.rotated) + self.key_rank * heads * (self.plain + self.values)
        return queries + keys + heads * self.values * hidden


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 10_000_000
