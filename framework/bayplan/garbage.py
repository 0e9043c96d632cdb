"""The garbage collector and the objects of a cluster."""

from __future__ import annotations

import gc

__all__ = ["collect_rarely"]


def collect_rarely() -> None:
    """Keep the garbage collector from walking all objects of the cluster over and over.

    They hold no cycles. Measured: a sixth of the CPU time at 1,000 nodes and 5,000 pods.
    """
    # What was kept before may be garbage by now.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 5, 200)
