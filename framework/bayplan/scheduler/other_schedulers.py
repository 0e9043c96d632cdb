"""The names of other schedulers that may give out what this one does, for the locks of nodes.

Who keeps a GPU that two of them gave out is decided by the ledger of GPUs.
"""

from __future__ import annotations

from bayplan.api import Pod
from bayplan.scheduler.active_profiles import ActiveProfiles
from bayplan.snapshot import PodInfo

__all__ = ["OtherSchedulers"]


class OtherSchedulers:
    """The schedulers whose pods ask for what this one gives out under locks, by name.

    Their pods tell of them, before any of these has a node: a lock of bayplan's own is not needed
    until there are some.
    """

    def __init__(self, profiles: ActiveProfiles) -> None:
        self._profiles = profiles
        self.names: set[str] = set()

    def see(self, pod: Pod) -> None:
        """Take note of a pod that no profile schedules.

        :raises PluginError: when a plugin fails in ``concerns``.
        """
        name = pod.spec.scheduler_name
        if name not in self.names and self._asks_for_the_same(PodInfo(pod)):
            self.names.add(name)

    def _asks_for_the_same(self, pod: PodInfo) -> bool:
        for profile in self._profiles.by_name.values():
            left_out = profile.runtime.of(pod).unconcerned
            for name, plugin in profile.runtime.plugins.items():
                if plugin.locks_nodes and name not in left_out:
                    return True
        return False
