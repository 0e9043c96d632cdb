"""Volcano's plugins that protect pods: conformance, cdp and pdb."""

from __future__ import annotations

from bayplan import PodInfo
from bayplan.dialects.reading import timestamp
from bayplan.inputs.durations import parse_duration
from bayplan_plugins.queues.volcano.plugins.base import VolcanoPlugin
from bayplan_plugins.queues.volcano.session import Claimant, Victim
from bayplan_plugins.shared.victims import Evictable

__all__ = ["Conformance", "CooldownProtection", "DisruptionBudgets"]

_CRITICAL = ("system-cluster-critical", "system-node-critical")
_COOLDOWN = "volcano.sh/cooldown-time"


class Conformance(VolcanoPlugin):
    """Protects the pods of kube-system and critical ones."""

    protects = True

    def preemptable(self, claimant: Claimant, victim: Victim) -> bool:
        """Refuse pods that the cluster itself needs."""
        return not any(
            pod.namespace == "kube-system" or pod.pod.spec.priority_class_name in _CRITICAL
            for pod in victim.pods
        )

    reclaimable = preemptable


class CooldownProtection(VolcanoPlugin):
    """cdp: protects pods for the time that they state from when they got their node."""

    protects = True

    def preemptable(self, claimant: Claimant, victim: Victim) -> bool:
        """Refuse pods that got their node less than their cooldown time ago."""
        return not any(self._protected(pod) for pod in victim.pods)

    reclaimable = preemptable

    def _protected(self, pod: PodInfo) -> bool:
        text = pod.labels.get(_COOLDOWN) or pod.annotations.get(_COOLDOWN)
        if text is None or pod.pod.status.phase != "Running":
            return False
        try:
            seconds = parse_duration(text)
        except ValueError:
            return False
        since = [
            timestamp(one.last_transition_time)
            for one in pod.pod.status.conditions
            if one.type == "PodScheduled" and one.status == "True"
        ]
        return bool(since) and since[0] + seconds > self.session.handle.unix_time


class DisruptionBudgets(VolcanoPlugin):
    """pdb: protects pods whose eviction would violate a disruption budget."""

    protects = True

    def preemptable(self, claimant: Claimant, victim: Victim) -> bool:
        """Refuse pods beyond what their budgets allow."""
        unit = self.session.handle.unit(claimant.pods)
        return not Evictable.by(unit, self.session.handle).violations(victim.pods)

    reclaimable = preemptable
