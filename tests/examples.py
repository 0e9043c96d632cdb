"""How many examples a property is tried on: few by default, thousands in a thorough run.

``pytest --hypothesis-profile=thorough`` takes those of the profile ``thorough`` for every test that
asks here; ``BAYPLAN_EXAMPLES=N`` sets how many that is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import settings

__all__ = ["examples"]


def examples(few: int, seed: int | None = None) -> Callable[[Any], Any]:
    """Have a property take ``few`` examples unless the run is thorough.

    :param seed: which ones, where several properties have one text: else all take the same.
    """
    if settings.get_current_profile_name() == "thorough":
        return settings()
    chosen = settings(max_examples=few)
    return chosen if seed is None else lambda test: hypothesis.seed(seed)(chosen(test))
