"""All exceptions that bayplan raises on purpose.

BayplanError
├── InputError        user input cannot be used (exit status 2)
├── PluginError       a plugin raised; it names the plugin and the hook
└── ClusterError      the cluster refused a request
    ├── Conflict      the object has changed (HTTP 409)
    ├── NotFound      the object does not exist (HTTP 404)
    │   └── Terminating  the namespace is being deleted (HTTP 403 on create)
    ├── AlreadyExists an object of this name exists (HTTP 409 on create)
    ├── TooManyDisruptions  a disruption budget forbids an eviction (HTTP 429 on evictions)
    ├── Unauthorized  the credentials are not accepted (HTTP 401)
    ├── Forbidden     the credentials do not allow the request (HTTP 403)
    ├── Gone          a resource version is too old (HTTP 410)
    ├── Stopped       this process must not write anymore
    └── Transient     a retry may work (HTTP 429 and 5xx, connections, timeouts)
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
    "Invalid",
    "Locked",
    "NotFound",
    "PluginError",
    "Stopped",
    "Terminating",
    "TooManyDisruptions",
    "Transient",
    "Unauthorized",
    "did_you_mean",
    "nearest",
]


class BayplanError(Exception):
    """The base of all bayplan errors; its text is written for users."""


class InputError(BayplanError):
    """User input cannot be used.

    ``where`` names the file, the document and the path inside it, as far as they are known.
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.where = where


class PluginError(BayplanError):
    """A plugin's hook raised ``__cause__``.

    ``where`` is the file and line of the plugin's code, "" if unknown.
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
    """The object has changed since it was read."""


class NotFound(ClusterError):
    """No object of this kind and key exists."""


class Terminating(NotFound):
    """The namespace is being deleted in which something would be created."""


class TooManyDisruptions(ClusterError):
    """An eviction would violate a disruption budget."""


class AlreadyExists(ClusterError):
    """An object of this kind and key already exists."""


class Invalid(ClusterError):
    """The cluster refuses the content of a write."""


class Unauthorized(ClusterError):
    """The API server does not accept the credentials."""


class Forbidden(ClusterError):
    """The credentials do not allow the request; the text names verb and resource."""


class Gone(ClusterError):
    """The API server no longer has the resource version from which a list or a watch continues."""


class Stopped(ClusterError):
    """This process must not write anymore: it shuts down, or another one leads."""


class Transient(ClusterError):
    """A request may work on retry, after ``retry_after`` seconds if given.

    ``sent`` says that the server may have executed the request.
    """

    def __init__(self, message: str, retry_after: float | None = None, sent: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.sent = sent


class Locked(Transient):
    """A node is kept for another pod that is just being started there."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``'; did you mean "X"?'`` for the known word nearest to ``word``, else ""."""
    near = nearest(word, known)
    return f'; did you mean "{near}"?' if near else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word nearest to ``word``, "" if none is similar."""
    candidates = sorted(known)
    near = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    if not near:
        lowered = {name.lower(): name for name in candidates}
        near = [
            lowered[match]
            for match in difflib.get_close_matches(word.lower(), sorted(lowered), n=1, cutoff=0.6)
        ]
    return near[0] if near else ""
