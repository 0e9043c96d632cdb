"""Device classes, and the extended resources that they serve."""

from __future__ import annotations

from contextlib import suppress

from bayplan.api import DeviceClass
from bayplan.api.dra import IMPLICIT_RESOURCE_PREFIX, DeviceSelector
from bayplan.snapshot import Snapshot
from bayplan_dra.allocator import Features
from bayplan_dra.cel import CompileError, compile_selector

__all__ = ["DeviceClasses"]


class DeviceClasses:
    """The device classes of a cluster; ``version`` changes with every change of a class."""

    def __init__(self, snapshot: Snapshot, features: Features) -> None:
        self._snapshot = snapshot
        self._features = features
        self._by_resource: dict[str, DeviceClass] | None = None
        self.version = 0

    def on_class(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        """Record that a class changed."""
        self.version += 1
        self._by_resource = None
        for selector in new.spec.selectors if new is not None else ():
            # Errors are reported by the pods that use the class.
            with suppress(CompileError):
                self._compile(selector)

    def _compile(self, selector: DeviceSelector) -> None:
        """Compile a selector before the first pod waits for it."""
        if selector.cel is not None:
            lists, shared = self._features.list_attributes, self._features.consumable_capacity
            compile_selector(selector.cel.expression, shared, lists)

    def get(self, name: str) -> DeviceClass | None:
        """Return a class by name."""
        return self._snapshot.objects(DeviceClass).get(name)

    def serving(self, resource: str) -> str | None:
        """Return the name of the class that serves an extended resource, None for none."""
        if resource.startswith(IMPLICIT_RESOURCE_PREFIX):
            name = resource.removeprefix(IMPLICIT_RESOURCE_PREFIX)
            return name if self.get(name) is not None else None
        found = self._extended().get(resource)
        return found.metadata.name if found is not None else None

    def serve_extended_resources(self) -> bool:
        """Tell whether any class serves an extended resource by a name of its own."""
        return bool(self._extended())

    def _extended(self) -> dict[str, DeviceClass]:
        """Return the class of each extended resource: the newest, then the first by name."""
        if self._by_resource is None:
            self._by_resource = {}
            for obj in sorted(
                self._snapshot.objects(DeviceClass).values(),
                key=lambda obj: obj.metadata.name,
                reverse=True,
            ):
                name = obj.spec.extended_resource_name
                known = self._by_resource.get(name) if name is not None else None
                if name is not None and (known is None or _created(obj) >= _created(known)):
                    self._by_resource[name] = obj
        return self._by_resource


def _created(obj: DeviceClass) -> str:
    return obj.metadata.creation_timestamp or ""
