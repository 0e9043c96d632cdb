"""ConfigMap: bayplan writes some, but ignores those in manifests."""

from __future__ import annotations

from bayplan.api.meta import ApiStruct, ObjectMeta

__all__ = ["ConfigMap"]


class ConfigMap(ApiStruct, frozen=True):
    """v1 ConfigMap."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"
