"""How near two devices of a machine are, in the terms of ``nvidia-smi topo -m``.

PCIe levels are an ultrametric: if a and b have different levels to c, the level between a and b is
the larger of the two. This is how levels are inferred that a table does not show.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

__all__ = ["UNKNOWN", "Level", "Levels", "implied", "is_ultrametric"]

Levels = npt.NDArray[np.int8]
"""A square, symmetric matrix of ``Level`` values, or ``UNKNOWN``."""
UNKNOWN = -1


class Level(IntEnum):
    """The levels, the nearest first.

    NVL: NVLink from GPU to GPU. NVS: NVLink through NVSwitch. PIX: at most one PCIe bridge. PXB:
    several PCIe bridges. PHB: a PCIe host bridge. NODE: host bridges of one NUMA node. SYS: between
    NUMA nodes. NET: between machines.
    """

    X = 0
    NVL = 1
    NVS = 2
    PIX = 3
    PXB = 4
    PHB = 5
    NODE = 6
    SYS = 7
    NET = 8


def implied(levels: Levels) -> Levels:
    """Return a copy of the levels with every level filled in that follows from the others.

    Level (a, b) is max((a, c), (c, b)) for any c where these differ. If both are PIX, all three are
    on one switch, so (a, b) is PIX.
    """
    found = levels.copy()
    size = len(found)
    while True:
        missing = np.argwhere(np.triu(found == UNKNOWN, 1))
        filled = False
        for a, b in missing.tolist():
            known = (found[a] != UNKNOWN) & (found[b] != UNKNOWN)
            telling = known & ((found[a] != found[b]) | (found[a] == Level.PIX))
            telling[[a, b]] = False
            if telling.any():
                found[a, b] = found[b, a] = np.maximum(found[a], found[b])[telling].max()
                filled = True
        if not filled or not size:
            return found


def is_ultrametric(levels: Levels) -> bool:
    """Tell whether the levels of any three devices are consistent; unknown levels are."""
    size = len(levels)
    known = levels != UNKNOWN
    for middle in range(size):
        through = np.maximum(levels[:, [middle]], levels[[middle], :])
        all_known = known & known[:, [middle]] & known[[middle], :]
        if bool((all_known & (levels > through)).any()):
            return False
    return True
