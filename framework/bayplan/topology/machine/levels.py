"""How near two devices of a machine are, in the words of ``nvidia-smi topo -m``.

The PCIe levels are an ultrametric: where a and b differ in their level to c, the larger of the two
is the level between a and b. That is how a level is inferred that a table does not show.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

__all__ = ["UNKNOWN", "Level", "Levels", "implied", "is_ultrametric"]

Levels = npt.NDArray[np.int8]
"""A square matrix of ``Level`` values; ``UNKNOWN`` where nothing is known."""
UNKNOWN = -1


class Level(IntEnum):
    """From the same device to another machine, the nearest first.

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
    """Return the levels with every one filled in that follows from the others.

    Level (a, b) is max((a, c), (c, b)) for any c where these differ. Where both are PIX there is
    one switch, so (a, b) is PIX, too. Filled in until nothing more follows.
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
    """Tell whether no three devices contradict each other; unknown levels contradict nothing."""
    size = len(levels)
    known = levels != UNKNOWN
    for middle in range(size):
        through = np.maximum(levels[:, [middle]], levels[[middle], :])
        all_known = known & known[:, [middle]] & known[[middle], :]
        if bool((all_known & (levels > through)).any()):
            return False
    return True
