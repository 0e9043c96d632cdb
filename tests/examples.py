"""How many examples a property is tried on: few by default, thousands in a thorough run.

``pytest --hypothesis-profile=thorough`` takes those of the profile ``thorough`` for every test that
asks here; ``BAYPLAN_EXAMPLES=N`` sets how many that is.
"""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]


def examples(few: int) -> settings:
    """Return the settings of a property that takes ``few`` examples unless the run is thorough."""
    if settings.get_current_profile_name() == "thorough":
        return settings()
    return settings(max_examples=few)
