"""Pod counts that may be percentages, as in rollout strategies."""

from __future__ import annotations

import math

__all__ = ["amount_of"]


def amount_of(value: int | str, total: int, up: bool) -> int:
    """Return a count, or a percentage of ``total``, rounded up or down."""
    if isinstance(value, int):
        return value
    share = int(value.removesuffix("%")) * total / 100
    return math.ceil(share) if up else math.floor(share)
