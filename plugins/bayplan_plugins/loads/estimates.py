"""What pods will use, by what they state, until they are measured."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import msgspec

from bayplan import PodInfo
from bayplan.api import PodSpec
from bayplan.api.resources import amount_of
from bayplan.api.times import seconds_of
from bayplan.dialects.koordinator.load_aware import CustomEstimate, custom_estimate_of
from bayplan.dialects.koordinator.qos import PRIORITY_LABEL, QOS_LABEL, priority_class
from bayplan_plugins.loads.formulas import estimate

__all__ = ["EstimateSettings", "Estimates", "PodEstimate", "limits_of"]

_MOST_KEPT = 20_000
_OF_CLASS = {
    "koord-batch": {"cpu": "kubernetes.io/batch-cpu", "memory": "kubernetes.io/batch-memory"},
    "koord-mid": {"cpu": "kubernetes.io/mid-cpu", "memory": "kubernetes.io/mid-memory"},
}
"""In which resources pods of a priority class state what they use of a node's."""


class EstimateSettings(msgspec.Struct, frozen=True):
    """How pods are estimated.

    :param resources: the resources of estimates, in order.
    :param factors: percent of what pods state, for each resource; 0 for resources never estimated.
    :param after_scheduled: for how many seconds a measured pod's estimate counts if it is higher,
        since it got its node, or ``after_initialized`` since its init containers ended; 0 for none.
    :param customizable: whether annotations of pods may say otherwise.
    """

    resources: tuple[str, ...]
    factors: tuple[int, ...]
    after_scheduled: int = 0
    after_initialized: int = 0
    customizable: bool = False


class PodEstimate(msgspec.Struct, frozen=True):
    """What a pod will use of each resource, and whether it is of ``koord-prod``."""

    amounts: tuple[int, ...]
    prod: bool
    after_scheduled: int
    after_initialized: int

    @property
    def may_count(self) -> bool:
        """Whether it may count though the pod is measured."""
        return self.after_scheduled > 0 or self.after_initialized > 0

    def until(self, pod: PodInfo, since: float) -> float:
        """Return until when it counts though the pod is measured; 0 for not at all.

        :param since: when the pod got its node, in seconds since 1970.
        """
        if self.after_initialized > 0:
            for condition in pod.pod.status.conditions:
                at = seconds_of(condition.last_transition_time)
                if condition.type == "Initialized" and condition.status == "True" and at:
                    return at + self.after_initialized
        return since + self.after_scheduled if self.after_scheduled > 0 else 0.0


class Estimates:
    """The estimates of pods; those that state the same share one."""

    def __init__(self, settings: EstimateSettings) -> None:
        self._settings = settings
        self._known: dict[Hashable, PodEstimate] = {}

    def of(self, pod: PodInfo) -> PodEstimate:
        """Return what a pod will use."""
        labels = pod.labels
        key: Hashable = (pod.facts, labels.get(QOS_LABEL), labels.get(PRIORITY_LABEL))
        if self._settings.customizable:
            custom = custom_estimate_of(pod.pod.metadata.annotations)
            key = (key, custom)
        else:
            custom = CustomEstimate()
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            found = self._known[key] = self._make(pod, custom)
        return found

    def _make(self, pod: PodInfo, custom: CustomEstimate) -> PodEstimate:
        own = self._settings
        factors = dict(zip(own.resources, own.factors, strict=True))
        factors |= {name: factor for name, factor in custom.factors if name in factors}
        after = (
            own.after_scheduled if custom.after_scheduled is None else custom.after_scheduled,
            own.after_initialized if custom.after_initialized is None else custom.after_initialized,
        )
        kind = priority_class(pod.pod)
        names = _OF_CLASS.get(kind, {})
        limits = limits_of(pod.spec)
        requests = pod.facts.requests
        amounts = tuple(
            estimate(name, requests.get(name, 0), limits.get(name, 0), factors[stated])
            if factors[stated]
            else 0
            for stated in own.resources
            for name in (names.get(stated, stated),)
        )
        return PodEstimate(amounts, kind == "koord-prod", *after)


def limits_of(spec: PodSpec) -> Mapping[str, int]:
    """Return a pod's limits: the sum of its containers, or what an init container may use."""
    total: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in (*spec.containers, *spec.init_containers):
        stays = container.restart_policy == "Always" or container in spec.containers
        for name, quantity in container.resources.limits.items():
            amount = amount_of(name, quantity)
            if stays:
                total[name] = total.get(name, 0) + amount
            else:
                peak[name] = max(peak.get(name, 0), amount)
    return {name: max(total.get(name, 0), peak.get(name, 0)) for name in {*total, *peak}}
