"""The shares that a pod's containers hold of GPUs, so that their sums are what the pod takes.

Containers hold what they may use. An init container uses its GPU before the others do, so it
holds only what they do not: nothing, if they need as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bayplan.api.gpu_shares import MEBIBYTE, Share
from bayplan.dialects.hami.assignments import Assigned
from bayplan_plugins.gpus.vendors.hami.containers import ContainerKind, Held, held_together
from bayplan_plugins.gpus.vendors.hami.device import PERCENT

__all__ = ["shares_of"]

_Part = tuple[int, int, Assigned]


def shares_of(kinds: Sequence[ContainerKind], parts: Iterable[_Part]) -> tuple[Share, ...]:
    """Return the shares of all containers, in their order.

    :param kinds: of all containers.
    :param parts: container, index of the GPU, and what the container may use of it.
    """
    all_parts = list(parts)
    amounts = [
        (container, one.uuid, Held(one.memory, one.cores, 1))
        for container, _, one in all_parts
        if one.partition is None
    ]
    beyond = held_together(kinds, amounts)
    for container, uuid, own in amounts:
        if kinds[container] is not ContainerKind.INIT:
            rest = beyond[uuid]
            beyond[uuid] = Held(
                rest.memory - own.memory, rest.cores - own.cores, rest.slots - own.slots
            )
    found = []
    for container, gpu, one in all_parts:
        held = Held(one.memory, one.cores, 1)
        if one.partition is None and kinds[container] is ContainerKind.INIT:
            # The first init container on a GPU stands for all of them.
            held = beyond.pop(one.uuid, Held())
        found.append(
            Share(
                gpu,
                held.cores * PERCENT,
                held.memory * MEBIBYTE,
                held.slots,
                container,
                one.partition,
            )
        )
    return tuple(found)
