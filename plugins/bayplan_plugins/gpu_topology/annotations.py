"""What a bound pod's annotations and notes say about its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.api.gpus import GPUS
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.select import Selection

__all__ = ["RELAXED", "gpu_annotations", "selection_notes"]

_RING_ORDER = "gpu.topology/ring-order"
_BANDWIDTH = "gpu.topology/bandwidth"
RELAXED = "gpu.topology/relaxed"
"""Names the preferences that could not be met."""


def gpu_annotations(machine: Machine, found: Selection) -> dict[str, str]:
    """Return the annotations that name a pod's GPUs, their ring, and its bandwidth in GB/s."""
    # Loaded late: only schedulers that bind pods with GPUs need it.
    from bayplan.topology.machine.rings import ring_order

    order = ring_order(machine.bandwidth, found.gpus)
    written = {
        GPUS: ",".join(str(gpu) for gpu in found.gpus),
        _RING_ORDER: ",".join(str(gpu) for gpu in order),
    }
    if len(order) > 1:
        written[_BANDWIDTH] = f"{found.bottleneck:g}"
    return written


def selection_notes(found: Selection) -> Iterator[str]:
    """Yield what a decision notes about a selection."""
    names = ", ".join(f"GPU{gpu}" for gpu in found.gpus)
    yield f"gets {names}: {'; '.join(found.why)}"
    if found.relaxed:
        yield f"gave up: {found.relaxed}"
