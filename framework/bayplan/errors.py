"""Every exception that bayplan raises on purpose.

BayplanError
├── InputError        what a person wrote cannot be used (exit status 2)
├── PluginError       a plugin raised; it names the plugin and the hook
└── ClusterError      a write was refused by the cluster
    ├── Conflict      the object changed meanwhile (HTTP 409)
    ├── NotFound      there is no such object (HTTP 404)
    └── AlreadyExists an object of this name is there (HTTP 409 on create)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AlreadyExists",
    "BayplanError",
    "ClusterError",
    "Conflict",
    "InputError",
    "NotFound",
    "PluginError",
    "TooManyDisruptions",
    "did_you_mean",
]


class BayplanError(Exception):
    """Root of the tree; its text is written for the person who reads it."""


class InputError(BayplanError):
    """Something that a person wrote cannot be used.

    ``where`` names the file, the document and the path inside it, as far as they are known.
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.where = where


class PluginError(BayplanError):
    """A plugin's hook raised; ``__cause__`` is what it raised."""

    def __init__(self, plugin: str, hook: str, cause: BaseException) -> None:
        text = str(cause) or "no message"
        super().__init__(f'plugin "{plugin}" failed in {hook}: {type(cause).__name__}: {text}')
        self.plugin = plugin
        self.hook = hook
        self.__cause__ = cause


class ClusterError(BayplanError):
    """A write was refused by the cluster."""


class Conflict(ClusterError):
    """The object changed since it was read."""


class NotFound(ClusterError):
    """There is no object of this kind and key."""


class TooManyDisruptions(ClusterError):
    """An eviction would violate a disruption budget."""


class AlreadyExists(ClusterError):
    """An object of this kind and key exists already."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``'; did you mean "X"?'`` for the known word nearest to ``word``, or nothing."""
    candidates = sorted(known)
    near = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    if not near:
        lowered = {name.lower(): name for name in candidates}
        near = [
            lowered[match]
            for match in difflib.get_close_matches(word.lower(), sorted(lowered), n=1, cutoff=0.6)
        ]
    return f'; did you mean "{near[0]}"?' if near else ""
