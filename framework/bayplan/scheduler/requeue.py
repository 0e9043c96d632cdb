"""What the queue asks the plugins: gates, the order of units, and which events help which units."""

from __future__ import annotations

from bayplan.errors import PluginError
from bayplan.gangs.directory import GangDirectory
from bayplan.plugin.base import Unit
from bayplan.plugin.events import ClusterEvent
from bayplan.profiles.runtime import HookCall
from bayplan.scheduler.active_profiles import ActiveProfiles
from bayplan.scheduler.nominator import Nominator
from bayplan.scheduler.queue import QueuedUnit
from bayplan.scheduler.recorder import Recorder
from bayplan.snapshot import PodInfo

__all__ = ["RequeueRules"]


class RequeueRules:
    """The rules of one scheduler's queue (``bayplan.scheduler.queue.QueueRules``)."""

    def __init__(
        self,
        profiles: ActiveProfiles,
        gangs: GangDirectory,
        nominator: Nominator,
        recorder: Recorder,
    ) -> None:
        self._profiles = profiles
        self._gangs = gangs
        self._nominator = nominator
        self._recorder = recorder

    def gate(self, pod: PodInfo) -> str | None:
        """Return why ``pre_enqueue`` of a plugin holds a pod back, or None."""
        profile = self._profiles.of(pod.pod)
        assert profile is not None, "only pods of a profile are queued"
        for call in profile.runtime["pre_enqueue"]:
            try:
                refusal: str | None = call(pod)
            except PluginError as exc:
                self._recorder.log_failure(exc)
                refusal = str(exc)
            if refusal is not None:
                return refusal
        return None

    def sort_key(self, queued: QueuedUnit) -> tuple[float, ...]:
        """Return the key that ``queue_sort`` gives a unit; the smallest is tried first."""
        call = self._profiles.first.runtime["queue_sort"][0]
        pods = list(queued.ready.values()) or list(queued.pods.values())
        gang = self._gangs[pods[0].gang].gang if pods[0].gang is not None else None
        # The order follows from the pods; the parts of a unit matter to a cycle only.
        unit = Unit(queued.key, pods, gang)
        try:
            key: tuple[float, ...] = call(unit, queued.added)
        except PluginError as exc:
            self._recorder.plugin_failed(pods[0], exc)
            return (-float(unit.priority), queued.added)
        return key

    def listens(self, plugins: frozenset[str], event: ClusterEvent) -> bool:
        """Tell whether an event can undo a refusal by any of these plugins, in any profile."""
        if not plugins:
            return True
        return any(
            event & found.requeue_on
            for profile in self._profiles.by_name.values()
            for name in plugins
            if (found := profile.runtime.plugins.get(name)) is not None
        )

    def helps(self, queued: QueuedUnit, event: ClusterEvent, subject: PodInfo | None) -> bool:
        """Tell whether an event can help a refused unit: ``requeue_on``, then ``requeue_hint``.

        :param subject: the pod that was placed, changed or removed, None for any other event.
        """
        nomination = self._nominator.get(queued.key)
        if nomination is not None and nomination.victims and subject is not None:
            # It waits for its victims to end, not for other pods.
            return False
        pod = next(iter(queued.pods.values()), None)
        profile = self._profiles.of(pod.pod) if pod is not None else None
        if pod is None or profile is None or not queued.refused_by:
            return True
        hints = profile.runtime.by_plugin("requeue_hint")
        for name in queued.refused_by:
            plugin = profile.runtime.plugins.get(name)
            if plugin is not None and event & plugin.requeue_on:
                if self._hints(hints.get(name), pod, event, subject):
                    return True
        return False

    def _hints(
        self, hint: HookCall | None, pod: PodInfo, event: ClusterEvent, subject: PodInfo | None
    ) -> bool:
        try:
            return hint is None or bool(hint(pod, event, subject))
        except PluginError as exc:
            self._recorder.plugin_failed(pod, exc)
            return True
