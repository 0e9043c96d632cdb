"""The rows of the page: one for each node, pod and unit, as they are sent to the browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bayplan.page.node_gpus import PodGpu

__all__ = ["NodeTile", "PodRow", "Stint", "UnitRow"]


class NodeTile(msgspec.Struct, frozen=True):
    """A node: where it stands, what it has, and how much of it is taken.

    ``domain`` and ``machine`` are numbers, None for none. ``cpu`` and ``memory`` are (used,
    offered), in milli-CPU and bytes; ``used`` are thousandths of its ``gpus`` taken, ``free`` how
    many GPUs nobody has a part of. ``nvlink`` are its NVLink domains. ``state`` is "in-service",
    "maintenance" or "failed".
    """

    domain: int | None
    machine: int | None
    gpus: int
    used: int
    free: int
    models: Sequence[str]
    cpu: tuple[int, int]
    memory: tuple[int, int]
    state: str
    nvlink: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object without empty fields."""
        plain = {
            "cards": self.gpus,
            "models": list(self.models),
            "cpu": list(self.cpu),
            "memory": list(self.memory),
            "state": "" if self.state == "in-service" else self.state,
            "nvlink": list(self.nvlink),
        }
        numbers = {"domain": self.domain, "machine": self.machine}
        return {key: value for key, value in numbers.items() if value is not None} | {
            key: value for key, value in plain.items() if value not in ("", [], 0)
        }


class Stint(msgspec.Struct):
    """A pod's time on a node, in seconds of the cluster; ``until`` is None while it lasts."""

    node: str
    since: float
    until: float | None = None
    gpus: Sequence[PodGpu] = ()

    def as_json(self) -> list[Any]:
        """Return ``[node, since, until, gpus]``."""
        gpus = [gpu.as_json() for gpu in self.gpus]
        return [self.node, round(self.since, 3), _rounded(self.until), gpus]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


class PodRow(msgspec.Struct):
    """A pod: its unit, its requests, and its stints on nodes, the last one last."""

    unit: str
    created: float
    cpu: int = 0
    gpus: int = 0
    node: str = ""
    ended: float | None = None
    nominated: str = ""
    stints: list[Stint] = msgspec.field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object without empty fields."""
        plain = {
            "unit": self.unit,
            "created": round(self.created, 3),
            "cpu": self.cpu,
            "gpus": self.gpus,
            "ended": _rounded(self.ended),
            "nominated": self.nominated,
            "stints": [one.as_json() for one in self.stints],
        }
        return {key: value for key, value in plain.items() if value not in (None, "", [], 0)}


class UnitRow(msgspec.Struct, frozen=True):
    """A job: a gang, the pods that one controller made, or a pod of its own.

    ``outcome`` and ``message`` are those of its latest cycle, ``decided`` its time; ``why`` says
    in one sentence why no domain has room, "" where ``message`` alone says why. ``held`` is
    since when it waits suspended, without any pods yet, and for how many: None for other jobs.
    """

    queue: str = ""
    gang: bool = False
    priority: int = 0
    members: int = 1
    outcome: str = ""
    message: str = ""
    why: str = ""
    domain: str = ""
    decided: float | None = None
    held: tuple[float, int] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object without empty fields."""
        held = None if self.held is None else [_rounded(self.held[0]), self.held[1]]
        plain = {
            "held": held,
            "queue": self.queue,
            "gang": self.gang,
            "priority": self.priority,
            "members": self.members,
            "outcome": self.outcome,
            "message": self.message,
            "why": self.why,
            "domain": self.domain,
            "decided": _rounded(self.decided),
        }
        return {key: value for key, value in plain.items() if value not in (None, "", False, 0)}
