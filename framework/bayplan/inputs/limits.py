"""How large a text may be, by where it comes from. They hold before or while a parser reads it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ANNOTATION",
    "BODY",
    "CONFIGURATION",
    "FILE",
    "LimitExceeded",
    "Limits",
]

_MIB = 2**20


class LimitExceeded(ValueError):
    """A text is larger than it may be; the message says in which respect."""


@dataclass(frozen=True)
class Limits:
    """What a text may amount to.

    :param size: characters.
    :param depth: mappings and lists inside each other.
    :param values: mappings, lists and scalars in all; keys count.
    :param repeated: values that YAML aliases stand for, in all.
    """

    size: int
    depth: int
    values: int
    repeated: int = 100_000

    def check_size(self, text: str | bytes) -> None:
        """Refuse a text that is too long.

        :raises LimitExceeded: naming the limit.
        """
        if len(text) > self.size:
            raise LimitExceeded(f"is larger than {_readable(self.size)}")


def _readable(size: int) -> str:
    return f"{size // _MIB} MiB" if size >= _MIB else f"{size // 1024} KiB"


FILE = Limits(size=512 * _MIB, depth=100, values=100_000_000)
"""A file that the user named: manifests of a whole cluster."""

CONFIGURATION = Limits(size=_MIB, depth=50, values=50_000, repeated=10_000)
"""A profile, a machine, a kubeconfig."""

BODY = Limits(size=3 * _MIB, depth=100, values=1_000_000)
"""The body of a request: the API server's own limit of the size."""

ANNOTATION = Limits(size=256 * 1024, depth=20, values=20_000, repeated=1_000)
"""One annotation or label: Kubernetes allows all of an object's together 256 KiB."""
