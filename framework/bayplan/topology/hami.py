"""A machine from what HAMi's device plugin writes to its node: GPUs, NUMA nodes, pair scores.

A pair score is 100 for each NVLink and 10 to 60 for the PCIe level, added up, so both can be told
from it (pkg/device/nvidia/calculate_score.go). NICs and PCIe switches are not published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayplan.topology.bandwidth import (
    MOST_DIRECT_LINKS,
    Bandwidth,
    inter_socket,
    model_of,
    nvlink,
    pcie,
)
from bayplan.topology.builder import MachineBuilder
from bayplan.topology.levels import UNKNOWN, Level, Levels
from bayplan.topology.machine import Gpu, Machine

__all__ = [
    "REGISTER",
    "SCORE",
    "RegisteredGpu",
    "machine_from_scores",
    "read_register",
    "read_scores",
]

SCORE = "hami.io/node-nvidia-score"
REGISTER = "hami.io/node-nvidia-register"

_LEVELS = {10: Level.SYS, 20: Level.NODE, 30: Level.PHB, 40: Level.PXB, 50: Level.PIX}
_SAME_BOARD = 60


@dataclass(frozen=True)
class RegisteredGpu:
    """A GPU as HAMi's device plugin registers it; memory in MiB."""

    uuid: str
    index: int
    model: str = ""
    numa: int | None = None
    healthy: bool = True


def machine_from_scores(
    name: str, gpus: Sequence[RegisteredGpu], scores: Mapping[str, Mapping[str, int]]
) -> Machine:
    """Return the machine that the annotations of a node describe.

    :param gpus: the registered GPUs; without any, those that have scores, by UUID.
    """
    known = list(gpus) or [RegisteredGpu(uuid, i) for i, uuid in enumerate(sorted(scores))]
    known.sort(key=lambda gpu: gpu.index)
    model = next((found for gpu in known if (found := model_of(gpu.model))), None)
    generation = model.nvlink if model is not None else 0
    notes: list[str] = []
    links, levels = _pairs(known, scores, notes)
    if links and not generation:
        generation = 3
        notes.append(f"assumed: NVLink 3 ({nvlink(3).wire:g} GB/s a link)")
    link = nvlink(generation) if generation else Bandwidth(0.0, 0.0)
    up = pcie(model.pcie if model is not None else 3)
    builder = MachineBuilder(name, link, inter_socket("skylake"))
    nodes = dict.fromkeys(gpu.numa for gpu in known)
    for node in nodes:
        builder.socket(f"socket {node}")
        builder.numa(f"numa {node}", f"socket {node}")
    for index, gpu in enumerate(known):
        root = f"root {index}"
        builder.root(root, f"numa {gpu.numa}")
        lost = "" if gpu.healthy else "HAMi reports it as unhealthy"
        builder.gpu(Gpu(index, gpu.uuid, model=gpu.model, numa=gpu.numa, lost=lost), root, up)
    for (a, b), count in links.items():
        builder.nvlink(a, b, count)
    totals = [sum(n for pair, n in links.items() if i in pair) for i in range(len(known))]
    if any(total > MOST_DIRECT_LINKS for total in totals):
        builder = _switched(builder, links, len(known))
    builder.notes += notes
    return builder.build(levels)


def _switched(
    builder: MachineBuilder, links: Mapping[tuple[int, int], int], size: int
) -> MachineBuilder:
    """Take the links of pairs for those of GPUs to NVSwitches: there are more than a GPU has."""
    builder.forget_nvlinks()
    for gpu in range(size):
        builder.nvswitch(gpu, max((n for pair, n in links.items() if gpu in pair), default=0))
    return builder


def _pairs(
    gpus: Sequence[RegisteredGpu],
    scores: Mapping[str, Mapping[str, int]],
    notes: list[str],
) -> tuple[dict[tuple[int, int], int], Levels]:
    """Return NVLinks and PCIe levels of pairs; what is not the same both ways is left out."""
    size = len(gpus)
    levels = np.full((size, size), UNKNOWN, dtype=np.int8)
    np.fill_diagonal(levels, Level.X)
    links: dict[tuple[int, int], int] = {}
    for a in range(size):
        for b in range(a):
            one = scores.get(gpus[a].uuid, {}).get(gpus[b].uuid)
            other = scores.get(gpus[b].uuid, {}).get(gpus[a].uuid, one)
            one = other if one is None else one
            if one != other:
                notes.append(f"GPU{b} to GPU{a} has scores {other} and {one}: left out")
            if one is None or one != other or one <= 0:
                continue
            count, rest = divmod(one, 100)
            if rest == _SAME_BOARD:
                rest = 50
            if rest in _LEVELS:
                levels[a, b] = levels[b, a] = _LEVELS[rest]
            if count:
                links[b, a] = count
    return links, levels


# The annotations ----------------------------------------------------------------------------


def read_register(text: str) -> list[RegisteredGpu]:
    """Read ``hami.io/node-nvidia-register``: JSON, or the older list of fields.

    :raises ValueError: for anything else.
    """
    content = _json(text) if text.lstrip().startswith("[") else None
    if content is None:
        return [_older(index, part) for index, part in enumerate(_parts(text))]
    found = []
    for place, entry in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            raise ValueError(f"[{place}]: expected a device with an id")
        index = entry.get("index", place)
        numa = entry.get("numa")
        found.append(
            RegisteredGpu(
                entry["id"],
                index if type(index) is int else place,
                str(entry.get("type", "")),
                numa if type(numa) is int and numa >= 0 else None,
                entry.get("health") is not False,
            )
        )
    return found


def _parts(text: str) -> list[str]:
    parts = [part for part in text.split(":") if part.strip()]
    if not parts or any(part.count(",") < 4 for part in parts):
        raise ValueError("expected a JSON list of devices")
    return parts


def _older(index: int, part: str) -> RegisteredGpu:
    fields = part.split(",")
    numa = int(fields[5]) if len(fields) > 5 and re.fullmatch(r"\d+", fields[5]) else None
    return RegisteredGpu(fields[0], index, fields[4], numa)


def read_scores(text: str) -> dict[str, dict[str, int]]:
    """Read ``hami.io/node-nvidia-score``: scores by UUID and UUID.

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
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
