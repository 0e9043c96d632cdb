"""Which units have pods behind the gates of which plugins."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["GateIndex"]


class GateIndex:
    """Units, by key, under each plugin whose ``pre_enqueue`` holds back any of their pods.

    So a change that can open the gates of one plugin costs nothing for pods behind other gates.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, str]] = {}
        """The plugin that holds a pod back, and the pod's unit, by the pod's key."""
        self._pods: dict[str, dict[str, int]] = {}
        """How many pods of a unit each plugin holds back, by plugin and unit."""

    def hold(self, unit_key: str, pod_key: str, plugin: str) -> None:
        """Record that a plugin holds back a pod of a unit, in place of any other."""
        if self._held.get(pod_key) == (plugin, unit_key):
            return
        self.free(pod_key)
        self._held[pod_key] = plugin, unit_key
        units = self._pods.setdefault(plugin, {})
        units[unit_key] = units.get(unit_key, 0) + 1

    def free(self, pod_key: str) -> None:
        """Record that nothing holds back a pod."""
        held = self._held.pop(pod_key, None)
        if held is None:
            return
        plugin, unit_key = held
        units = self._pods[plugin]
        units[unit_key] -= 1
        if not units[unit_key]:
            del units[unit_key]

    @property
    def plugins(self) -> Iterable[str]:
        """The plugins that hold back any pod."""
        return [plugin for plugin, units in self._pods.items() if units]

    def units(self, plugin: str) -> Iterable[str]:
        """Return the units with pods that a plugin holds back."""
        return list(self._pods.get(plugin, ()))
