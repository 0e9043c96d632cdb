"""Which resources the plugins of this package score, and with which weight."""

from __future__ import annotations

from pydantic import Field

from bayplan import Args

__all__ = ["NATIVE", "ResourceSpec"]

NATIVE = ("cpu", "memory", "ephemeral-storage")
"""Resources that every node has; they are scored even for pods that request none."""


class ResourceSpec(Args):
    """A resource and its weight in a score, 1 to 100."""

    name: str = Field(min_length=1)
    weight: int = Field(default=1, ge=1, le=100)
