"""The annotation that locks a node while a device plugin gives one pod its devices.

HAMi and Volcano write ``time,namespace,name``, earlier versions only the time (HAMi,
pkg/util/nodelock).
"""

from __future__ import annotations

import msgspec

from bayplan.api.times import rfc3339, seconds_of

__all__ = ["LOCK_SECONDS", "NodeLock", "lock_text", "read_lock"]

LOCK_SECONDS = 300.0
"""A lock older than this was left behind by a scheduler or a device plugin that died."""


class NodeLock(msgspec.Struct, frozen=True):
    """Who holds a node's lock, and since when (seconds since 1970).

    ``pod`` is the pod's key, "" in a lock that does not say it.
    """

    since: float
    pod: str = ""


def read_lock(text: str) -> NodeLock:
    """Return what a lock says; one that cannot be read counts as very old, so it can be broken."""
    time, *pod = text[:600].split(",")
    return NodeLock(seconds_of(time), "/".join(pod) if len(pod) == 2 else "")


def lock_text(now: float, namespace: str, name: str) -> str:
    """Return the lock for a pod, taken now (seconds since 1970)."""
    return f"{rfc3339(now)},{namespace},{name}"
