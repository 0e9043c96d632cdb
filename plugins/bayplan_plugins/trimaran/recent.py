"""Scores for nodes whose load was reported recently."""

from __future__ import annotations

import numpy as np

from bayplan.plugin.hookspecs import FloatColumn
from bayplan_plugins.loads.columns import LoadColumns

__all__ = ["rounded"]

_OLDEST_SECONDS = 300.0
"""load-watcher keeps what it measured for as long."""


def rounded(columns: LoadColumns, points: FloatColumn) -> FloatColumn:
    """Return scores rounded half up; 0 for nodes without a recent report, which take pods, too."""
    recent = columns.fresh(_OLDEST_SECONDS)
    scores: FloatColumn = np.where(recent, np.floor(points + 0.5), 0.0)
    return scores
