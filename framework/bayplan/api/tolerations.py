"""When a toleration bears a taint (k8s.io/component-helpers, ToleratesTaint)."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api.node import Taint
from bayplan.api.pod import Toleration

__all__ = ["tolerated"]


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Tell whether any of the tolerations bears the taint."""
    return any(_bears(toleration, taint) for toleration in tolerations)


def _bears(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    # An empty key is allowed with Exists only, and then bears every taint.
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
    """Numeric operators: the taint's value is greater (less) than the toleration's."""
    try:
        mine, theirs = int(toleration.value), int(taint.value)
    except ValueError:
        return False
    return theirs > mine if toleration.operator == "Gt" else theirs < mine
