"""Every exception that bayplan raises on purpose.

BayplanError
├── InputError        what a person wrote cannot be used (exit status 2)
├── PluginError       a plugin raised; it names the plugin and the hook
└── ClusterError      the cluster refused a request
    ├── Conflict      the object changed meanwhile (HTTP 409)
    ├── NotFound      there is no such object (HTTP 404)
    ├── AlreadyExists an object of this name is there (HTTP 409 on create)
    ├── TooManyDisruptions  a disruption budget forbids an eviction (HTTP 429 of evictions)
    ├── Unauthorized  the credentials are not accepted (HTTP 401)
    ├── Forbidden     the credentials do not allow it (HTTP 403)
    ├── Gone          a version is too old to go on from (HTTP 410)
    ├── Stopped       this process may not write any more
    └── Transient     it may work when tried again (HTTP 429 and 5xx, connections, timeouts)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "AlreadyExists",
    "BayplanError",
    "ClusterError",
    "Conflict",
    "Forbidden",
    "Gone",
    "InputError",
    "NotFound",
    "PluginError",
    "Stopped",
    "TooManyDisruptions",
    "Transient",
    "Unauthorized",
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
    """A plugin's hook raised; ``__cause__`` is what it raised.

    ``where`` is the file and line of the plugin's code, "" where that is not known.
    """

    def __init__(self, plugin: str, hook: str, cause: BaseException, where: str = "") -> None:
        text = f"{type(cause).__name__}: {str(cause) or 'no message'}"
        place = f" ({where})" if where else ""
        super().__init__(f'plugin "{plugin}" failed in {hook}: {text}{place}')
        self.plugin = plugin
        self.hook = hook
        self.where = where
        self.__cause__ = cause


class ClusterError(BayplanError):
    """The cluster refused a request."""


class Conflict(ClusterError):
    """The object changed since it was read."""


class NotFound(ClusterError):
    """There is no object of this kind and key."""


class TooManyDisruptions(ClusterError):
    """An eviction would violate a disruption budget."""


class AlreadyExists(ClusterError):
    """An object of this kind and key exists already."""


class Unauthorized(ClusterError):
    """The API server does not accept the credentials."""


class Forbidden(ClusterError):
    """The credentials do not allow a request; the text names verb and resource."""


class Gone(ClusterError):
    """The API server no longer knows the version that a list or a watch goes on from."""


class Stopped(ClusterError):
    """This process may not write any more: it ends, or another one leads."""


class Transient(ClusterError):
    """A request may work when it is tried again, after ``retry_after`` seconds if given.

    ``sent`` says that the request may have been carried out all the same.
    """

    def __init__(self, message: str, retry_after: float | None = None, sent: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.sent = sent


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
