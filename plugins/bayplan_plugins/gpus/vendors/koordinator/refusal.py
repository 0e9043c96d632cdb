"""Why a node's devices do not do for a pod."""

from __future__ import annotations

__all__ = ["Refused"]


class Refused(Exception):
    """The devices do not do; with ``resolvable=False``, not even when all pods are gone."""

    def __init__(self, reason: str, resolvable: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.resolvable = resolvable
