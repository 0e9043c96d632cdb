"""Numbers that follow from what is left of a node, computed once for all nodes that are alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan_plugins.device_share.columns import Cards
from bayplan_plugins.gpu_fragmentation.states import NodeStates, Rows

__all__ = ["KnownValues", "kinds_of"]

_MOST_KNOWN = 400_000


class KnownValues:
    """Remembers a number for each state of a node, whatever the order of its cards.

    :param compute: returns the numbers of the states at some places, which are all different.
    """

    def __init__(self, compute: Callable[[NodeStates], FloatColumn]) -> None:
        self._compute = compute
        self._known: dict[bytes, float] = {}

    def of(self, states: NodeStates, cpu: IntColumn, kind: IntColumn) -> FloatColumn:
        """Return the number of each state.

        :param cpu: what counts of each state's CPU.
        :param kind: tells nodes apart that differ in which pods they allow.
        """
        known = self._known
        if len(known) > _MOST_KNOWN:
            known.clear()
        texts = _texts(cpu, kind, states.left)
        found = [known.get(text) for text in texts]
        if None in found:
            missing = {text: place for place, text in enumerate(texts) if text not in known}
            places: Rows = np.fromiter(missing.values(), dtype=np.intp, count=len(missing))
            computed = self._compute(states.part(places))
            known.update(zip(missing, computed.tolist(), strict=True))
            found = [known[text] for text in texts]
        return np.array(found, dtype=np.float64)


def _texts(cpu: IntColumn, kind: IntColumn, left: Cards) -> list[bytes]:
    keys = np.empty((len(left), left.shape[1] + 2), dtype=np.int32)
    keys[:, 0], keys[:, 1] = cpu, kind
    keys[:, 2:] = left
    keys[:, 2:].sort(axis=1)
    texts: list[bytes] = keys.view(f"V{keys.itemsize * keys.shape[1]}").ravel().tolist()
    return texts


def kinds_of(allowed: BoolColumn) -> tuple[BoolColumn, IntColumn]:
    """Return the different rows of a table, and the place among them of each row.

    :param allowed: by node and choice, whether pods of the choice may use the node.
    """
    kinds, kind = np.unique(allowed, axis=0, return_inverse=True)
    return kinds, kind.reshape(-1)
