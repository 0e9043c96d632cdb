"""Which taints a toleration tolerates (k8s.io/component-helpers, ToleratesTaint)."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api.node import Taint
from bayplan.api.pod import Toleration

__all__ = ["tolerated"]


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Tell whether any of the tolerations tolerates the taint."""
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    # An empty key is only allowed with Exists, and then tolerates every taint.
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    if not toleration.key:
        return False
    if toleration.operator in ("Gt", "Lt"):
        return _compares(toleration, taint)
    return toleration.value == taint.value


def _compares(toleration: Toleration, taint: Taint) -> bool:
    """Compare numbers: the taint's value is greater (less) than the toleration's."""
    try:
        mine, theirs = int(toleration.value), int(taint.value)
    except ValueError:
        return False
    return theirs > mine if toleration.operator == "Gt" else theirs < mine
