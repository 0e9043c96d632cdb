"""A machine from the annotations of HAMi's device plugin: GPUs, NUMA nodes, pair scores.

A pair score is the sum of 100 for each NVLink and 10 to 60 for the PCIe level, so both can be read
from it (pkg/device/nvidia/calculate_score.go). HAMi does not publish NICs, PCIe switches or the
CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from bayplan.inputs.jsontext import parse_json
from bayplan.inputs.limits import ANNOTATION
from bayplan.topology.machine.bandwidth import (
    MOST_DIRECT_LINKS,
    Bandwidth,
    inter_socket,
    model_of,
    nvlink,
    pcie,
)
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.levels import UNKNOWN, Level, Levels
from bayplan.topology.machine.model import MOST_GPUS, Gpu, Machine
from bayplan.topology.machine.readers.hami_register import CORDON, RegisteredGpu, cordoned_uuids

__all__ = ["SCORE", "machine_from_scores", "read_scores"]

SCORE = "hami.io/node-nvidia-score"

_LEVELS = {10: Level.SYS, 20: Level.NODE, 30: Level.PHB, 40: Level.PXB, 50: Level.PIX}
_SAME_BOARD = 60
_CPU = "skylake"


class _Pairs(msgspec.Struct):
    """What the scores say about pairs of GPUs: PCIe levels, NVLinks, and contradictions.

    Pairs have the lower index first. ``asymmetric`` are those whose two directions differ.
    """

    levels: Levels
    links: dict[tuple[int, int], int] = msgspec.field(default_factory=dict)
    asymmetric: set[tuple[int, int]] = msgspec.field(default_factory=set)

    @property
    def any_known(self) -> bool:
        """Whether the scores show how any two GPUs are connected."""
        diagonal = len(self.levels)
        return bool(self.links) or int(np.count_nonzero(self.levels != UNKNOWN)) > diagonal


def machine_from_scores(
    name: str,
    gpus: Sequence[RegisteredGpu],
    scores: Mapping[str, Mapping[str, int]],
    cordoned: str = "",
) -> Machine:
    """Return the machine that the annotations of a node describe.

    :param gpus: the registered GPUs; if empty, the GPUs that have scores, in their order.
    :param scores: the pair scores by UUID and UUID.
    :param cordoned: the value of ``hami.io/device-cordon``.
    :raises ValueError: for more GPUs than a machine can have.
    """
    known = list(gpus) or [RegisteredGpu(uuid, i) for i, uuid in enumerate(scores)]
    if len(known) > MOST_GPUS:
        raise ValueError(f"expected {MOST_GPUS} GPUs or fewer, got {len(known)}")
    known.sort(key=lambda gpu: gpu.index)
    model = next((found for gpu in known if (found := model_of(gpu.model))), None)
    generation = model.nvlink if model is not None else 0
    between = inter_socket(_CPU)
    notes = [f"assumed: {between.wire:g} GB/s between sockets, as of {_CPU.title()}"]
    if model is None:
        notes.append("assumed: PCIe 3")
    pairs = _pairs(known, scores, notes)
    if pairs.links and not generation:
        generation = 3
        notes.append(f"assumed: NVLink 3 ({nvlink(3).wire:g} GB/s a link)")
    link = nvlink(generation) if generation else Bandwidth(0.0, 0.0)
    builder = MachineBuilder(name, link, between)
    _add_gpus(builder, known, cordoned, pcie(model.pcie if model is not None else 3))
    for (a, b), count in pairs.links.items():
        builder.nvlink(a, b, count)
    totals = Counter(gpu for pair, count in pairs.links.items() for gpu in pair * count)
    if any(total > MOST_DIRECT_LINKS for total in totals.values()):
        _switch(builder, pairs.links)
    return builder.build(pairs.levels, notes, pairs.asymmetric, links_assumed=not pairs.any_known)


def _add_gpus(
    builder: MachineBuilder, gpus: Sequence[RegisteredGpu], cordoned: str, up: Bandwidth
) -> None:
    """Add GPUs to the builder, each on a PCIe root of its own, because no more is known."""
    for node in dict.fromkeys(gpu.numa for gpu in gpus):
        builder.socket(f"socket {node}")
        builder.numa(f"numa {node}", f"socket {node}", node)
    kept_back = cordoned_uuids(cordoned)
    for index, gpu in enumerate(gpus):
        root = f"root {index}"
        builder.root(root, f"numa {gpu.numa}")
        lost = "" if gpu.healthy else "HAMi reports it as unhealthy"
        if gpu.uuid in kept_back:
            lost = f"cordoned by {CORDON}"
        builder.gpu(Gpu(index, gpu.uuid, model=gpu.model, numa=gpu.numa, lost=lost), root, up)


def _switch(builder: MachineBuilder, links: Mapping[tuple[int, int], int]) -> None:
    """Replace the links of pairs by links to NVSwitches: the pairs have more than a GPU has."""
    builder.forget_nvlinks()
    most: dict[int, int] = {}
    for pair, count in links.items():
        for gpu in pair:
            most[gpu] = max(count, most.get(gpu, 0))
    for gpu, count in most.items():
        builder.nvswitch(gpu, count)


def _pairs(
    gpus: Sequence[RegisteredGpu],
    scores: Mapping[str, Mapping[str, int]],
    notes: list[str],
) -> _Pairs:
    """Read the pair scores.

    Ignores pairs whose directions differ, and NVLinks beyond the most that a GPU has.
    """
    size = len(gpus)
    levels = np.full((size, size), UNKNOWN, dtype=np.int8)
    np.fill_diagonal(levels, Level.X)
    found = _Pairs(levels)
    for a in range(size):
        for b in range(a):
            one = scores.get(gpus[a].uuid, {}).get(gpus[b].uuid)
            other = scores.get(gpus[b].uuid, {}).get(gpus[a].uuid, one)
            one = other if one is None else one
            if one != other:
                found.asymmetric.add((b, a))
                notes.append(f"GPU{b} to GPU{a} has scores {other} and {one}: ignored")
            if one is None or one != other or one <= 0:
                continue
            count, rest = divmod(one, 100)
            if rest == _SAME_BOARD:
                rest = 50
            if rest in _LEVELS:
                levels[a, b] = levels[b, a] = _LEVELS[rest]
            if count > MOST_DIRECT_LINKS:
                notes.append(
                    f"GPU{b} to GPU{a} has a score of more than {MOST_DIRECT_LINKS} NVLinks: "
                    "these are ignored"
                )
            elif count:
                found.links[b, a] = count
    return found


# The annotation of scores --------------------------------------------------------------------


def read_scores(text: str) -> dict[str, dict[str, int]]:
    """Parse ``hami.io/node-nvidia-score``: scores by UUID and UUID.

    :raises ValueError: for anything else.
    """
    content = _json(text)
    if not isinstance(content, list):
        raise ValueError("expected a list of devices with their scores")
    found: dict[str, dict[str, int]] = {}
    for place, entry in enumerate(content):
        uuid = entry.get("uuid") if isinstance(entry, dict) else None
        scores = entry.get("score") if isinstance(entry, dict) else None
        if not isinstance(uuid, str) or not isinstance(scores, dict):
            raise ValueError(f"[{place}]: expected a uuid and its scores")
        for other, score in scores.items():
            if type(score) is not int:
                raise ValueError(f"[{place}].score[{other[:40]!r}]: expected an integer")
        found[uuid] = scores
    return found


def _json(text: str) -> Any:
    return parse_json(text, ANNOTATION)
