"""Limits on texts, by origin. They are checked before or while a parser reads the text."""

from __future__ import annotations

import msgspec

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
    """A text is beyond its limits; the message says which one."""


class Limits(msgspec.Struct, frozen=True):
    """The limits of a text.

    :param size: characters.
    :param depth: mappings and lists nested in each other.
    :param values: mappings, lists and scalars in total; keys count.
    :param repeated: values that YAML aliases stand for, in total.
    """

    size: int
    depth: int
    values: int
    repeated: int = 100_000

    def check_size(self, text: str | bytes) -> None:
        """Check the length of a text.

        :raises LimitExceeded: when it is too long, naming the limit.
        """
        if len(text) > self.size:
            raise LimitExceeded(f"is larger than {_readable(self.size)}")


def _readable(size: int) -> str:
    return f"{size // _MIB} MiB" if size >= _MIB else f"{size // 1024} KiB"


FILE = Limits(size=512 * _MIB, depth=100, values=100_000_000)
"""A file that the user names: the manifests of a whole cluster."""

CONFIGURATION = Limits(size=_MIB, depth=50, values=50_000, repeated=10_000)
"""A profile, a machine, a kubeconfig."""

BODY = Limits(size=3 * _MIB, depth=100, values=200_000)
"""The body of a request; its size limit is the API server's. A value takes up to 200 bytes."""

ANNOTATION = Limits(size=256 * 1024, depth=20, values=20_000, repeated=1_000)
"""One annotation or label. Kubernetes allows 256 KiB for all annotations of an object together."""
