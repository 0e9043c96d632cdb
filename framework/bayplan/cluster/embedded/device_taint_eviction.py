"""The device taint eviction controller, as pkg/controller/devicetainteviction of Kubernetes.

Pods whose claims hold a device with a NoExecute taint that the claims do not tolerate are deleted;
those that tolerate it for some seconds, that long after the taint was added.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from bayplan.api import DeviceTaintRule, Pod, PodCondition, ResourceClaim, ResourceSlice, Taint
from bayplan.api.dra import AllocatedDevice, DeviceTaint
from bayplan.api.tolerations import tolerated
from bayplan.cluster.embedded.admission import with_condition
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchType

__all__ = ["DeviceTaintEviction"]

_NO_EXECUTE: Final = "NoExecute"
_Pool = tuple[str, str]


class DeviceTaintEviction:
    """Deletes the pods of claims whose devices are tainted with NoExecute."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._tainted: dict[_Pool, dict[str, tuple[DeviceTaint, ...]]] = {}
        """The NoExecute taints of devices, by driver and pool, and by device."""
        self._claims: dict[_Pool, dict[str, None]] = {}
        self._pools: dict[str, set[_Pool]] = {}
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Look at the claims that a change of taints, or of an allocation, concerns."""
        obj, gone = event.obj, event.type is WatchType.DELETED
        if isinstance(obj, ResourceSlice):
            self._slice_changed(obj, gone)
        elif isinstance(obj, ResourceClaim):
            self._claim_changed(obj, gone)
        elif isinstance(obj, DeviceTaintRule) and obj.spec.taint.effect == _NO_EXECUTE:
            for key in list(self._pools):
                self._look_at(key)

    def _slice_changed(self, published: ResourceSlice, gone: bool) -> None:
        pool = published.spec.driver, published.spec.pool.name
        before = self._tainted.pop(pool, {})
        found = {
            device.name: taints
            for device in (() if gone else published.spec.devices)
            if (taints := tuple(one for one in device.taints if one.effect == _NO_EXECUTE))
        }
        own = {device.name for device in published.spec.devices}
        now = {name: taints for name, taints in before.items() if name not in own} | found
        if now:
            self._tainted[pool] = now
        if now != before:
            for key in list(self._claims.get(pool, ())):
                self._look_at(key)

    def _claim_changed(self, claim: ResourceClaim, gone: bool) -> None:
        key = f"{claim.metadata.namespace}/{claim.metadata.name}"
        allocation = None if gone else claim.status.allocation
        results = allocation.devices.results if allocation is not None else ()
        for pool in self._pools.pop(key, ()):
            self._claims[pool].pop(key, None)
        if results:
            pools = self._pools[key] = {(one.driver, one.pool) for one in results}
            for pool in pools:
                self._claims.setdefault(pool, {})[key] = None
            self._look_at(key)

    def _look_at(self, key: str) -> None:
        """Delete the pods of a claim, or plan that."""
        claim = self._cluster.get(ResourceClaim, key)
        if claim is None or claim.status.allocation is None:
            return
        times = [
            at for one in claim.status.allocation.devices.results for at in self._times_of(one)
        ]
        if not times:
            return
        if min(times) > self._cluster.unix_time:
            self._cluster.clock.call_later(
                min(times) - self._cluster.unix_time, partial(self._look_at, key)
            )
            return
        for consumer in claim.status.reserved_for:
            if consumer.resource == "pods":
                self._evict(f"{claim.metadata.namespace}/{consumer.name}", claim.metadata.name)

    def _times_of(self, used: AllocatedDevice) -> Iterator[float]:
        """Yield when the taints of a device drive out its pods, in seconds since 1970."""
        for taint in self._taints_of(used):
            plain = Taint(taint.key, _NO_EXECUTE, taint.value)
            bearing = [one for one in used.tolerations if tolerated(plain, (one,))]
            limits = [one.toleration_seconds for one in bearing]
            if not bearing:
                yield 0.0
            elif None not in limits:
                since = self._cluster.start.timestamp() + self._cluster.seconds_of(taint.time_added)
                yield since + max(0, min(one for one in limits if one is not None))

    def _taints_of(self, used: AllocatedDevice) -> Iterator[DeviceTaint]:
        yield from self._tainted.get((used.driver, used.pool), {}).get(used.device, ())
        for rule in self._cluster.list(DeviceTaintRule):
            selector, taint = rule.spec.device_selector, rule.spec.taint
            if selector is None or taint.effect != _NO_EXECUTE:
                continue
            wanted = selector.driver, selector.pool, selector.device
            have = used.driver, used.pool, used.device
            if all(want in (None, one) for want, one in zip(wanted, have, strict=True)):
                yield taint

    def _evict(self, key: str, claim: str) -> None:
        """Delete a pod, unless another pod of that name does not use the claim any more."""
        pod = self._cluster.get(Pod, key)
        if pod is None or pod.metadata.deletion_timestamp is not None or not _uses(pod, claim):
            return
        condition = PodCondition(
            "DisruptionTarget",
            "True",
            "DeletionByDeviceTaintManager",
            "Device Taint manager: deleting due to NoExecute taint",
            self._cluster.timestamp(),
        )
        self._cluster.update(with_condition(pod, condition))
        self._cluster.delete(Pod, key)


def _uses(pod: Pod, claim: str) -> bool:
    """Tell whether a pod uses a claim of its namespace."""
    made = {one.resource_claim_name for one in pod.status.resource_claim_statuses}
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        made.add(extended.resource_claim_name)
    return claim in made | {one.resource_claim_name for one in pod.spec.resource_claims}
