"""Devices as resources of tenants: what pods and their claims take of a pool.

A device counts for its driver, as in the pool's capacity, partitions as parts of it. Devices of a
class that serves an extended resource count for that resource, too; so do those of a class that a
quota names (``deviceclass/NAME``, or its implicit extended resource). What has no devices yet
counts as the most that it may get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from bayplan import PodInfo
from bayplan.api import ComputePool, DeviceClass, ResourceClaim, ResourceClaimTemplate
from bayplan.api.dra import (
    EXTENDED_RESOURCE_CLAIM,
    IMPLICIT_RESOURCE_PREFIX,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from bayplan.api.node_state import NodeState, state_of
from bayplan.api.pools import reserved_part
from bayplan.api.queue import Amounts
from bayplan.queues.amounts import total_of
from bayplan.queues.device_selection import DeviceSelector, selector_of
from bayplan.queues.devices import WHOLE, is_device
from bayplan.queues.pools import PoolAccount, PoolDevices, usable
from bayplan.snapshot import Snapshot
from bayplan_dra.allocator import Features
from bayplan_plugins.device_ledger.device_classes import DeviceClasses
from bayplan_plugins.queues.class_devices import CLASS_PREFIX
from bayplan_plugins.queues.plain.device_requests import DeviceRequests, Most, Wanted, wanted_of

__all__ = ["ClaimedDevices"]

_MANY = 4096
"""Requests of all pools that are looked at again when devices change."""


class _PoolNodes(msgspec.Struct, frozen=True):
    """The nodes of a pool, those in service, and what selects its devices.

    ``named`` are the resources that its quotas name, ``offered`` those that its nodes offer without
    devices of slices.
    """

    nodes: Mapping[str, None]
    in_service: Sequence[str]
    selector: DeviceSelector | None
    kept: float
    named: frozenset[str]
    offered: frozenset[str]


class ClaimedDevices:
    """Counts the devices of pods and claims for the queues of pools.

    ``state`` changes with what ``follow`` has to look at again, ``basis`` with what requests
    without devices count.

    :param pool_of: returns a pod's pool, None for none.
    """

    def __init__(self, snapshot: Snapshot, pool_of: Callable[[PodInfo], ComputePool | None]):
        self._snapshot = snapshot
        self._pool_of = pool_of
        self._devices = snapshot.shared(PoolDevices, PoolDevices)
        self._requests = DeviceRequests(self._devices)
        self._classes = DeviceClasses(snapshot, Features())
        snapshot.on_object(DeviceClass, self._classes.on_class)
        self._pools: dict[str, _PoolNodes] = {}
        self._counted_by: object = None
        self._most: dict[tuple[str, Wanted], Most] = {}
        self.basis = 0

    @property
    def state(self) -> tuple[int, int]:
        """What changes with devices and their classes."""
        return self._devices.version, self._classes.version

    # Capacity ----------------------------------------------------------------------------

    def follow(self, accounts: Mapping[str, tuple[ComputePool, PoolAccount]]) -> None:
        """Take in the pools and their nodes; look again at what requests may get."""
        before = self._counted_by
        self._pools = {name: self._nodes_of(*found) for name, found in accounts.items()}
        named = {name: (one.named, one.offered) for name, one in self._pools.items()}
        self._counted_by = self._classes.version, named
        known, self._most = self._most, {}
        unchanged = all(
            name in self._pools and self._most_of(name, wanted) == most
            for (name, wanted), most in known.items()
        )
        if not unchanged or before != self._counted_by or len(known) > _MANY:
            self._most.clear()
            self.basis += 1

    def _nodes_of(self, pool: ComputePool, account: PoolAccount) -> _PoolNodes:
        quotas = (amounts for one in pool.spec.quotas for amounts in (one.limit, one.guaranteed))
        view = self._snapshot.view()
        nodes = dict.fromkeys(account.nodes)
        states = {row.name: state_of(row.node) for row in view if row.name in nodes}
        return _PoolNodes(
            nodes,
            [name for name, state in states.items() if state is NodeState.IN_SERVICE],
            selector_of(pool),
            reserved_part(pool.spec.capacity) or 0.0,
            frozenset(name for amounts in quotas for name in amounts),
            frozenset(name for name in account.amounts if not is_device(name)),
        )

    @property
    def implicit(self) -> Iterable[str]:
        """The implicit extended resources of all classes: what their devices bound."""
        return (f"{IMPLICIT_RESOURCE_PREFIX}{n}" for n in self._snapshot.objects(DeviceClass))

    def usable(self, pool: str) -> dict[str, float]:
        """Return how many devices pods may have of the classes that count in a pool."""
        own = self._pools[pool]
        found: dict[str, int] = {}
        for name, obj in sorted(self._snapshot.objects(DeviceClass).items()):
            resources = self._resources_of(name, own)
            if resources:
                wanted = wanted_of(ExactDeviceRequest(device_class_name=name), obj)
                most = self._requests.most(wanted, own.in_service, own.selector)
                for resource in resources:
                    found[resource] = found.get(resource, 0) + most.in_service
        return {name: usable(count, own.kept) for name, count in found.items()}

    def _resources_of(self, name: str, pool: _PoolNodes) -> set[str]:
        """Return the resources that devices of a class count for, beside their driver."""
        counted = {f"{CLASS_PREFIX}{name}", f"{IMPLICIT_RESOURCE_PREFIX}{name}"} & pool.named
        found = self._classes.get(name)
        extended = found.spec.extended_resource_name if found is not None else None
        return counted if extended is None else {*counted, extended}

    # What pods take ----------------------------------------------------------------------

    def of_pod(self, pod: PodInfo) -> Amounts:
        """Return what a pod takes of its queue by itself: what its claims take comes on top.

        Claims that are still to be made for it are a part of this.
        """
        amounts: Mapping[str, float] = {**pod.requests, "pods": 1.0}
        extended = any("/" in name for name in pod.requests)
        if not (pod.spec.resource_claims or extended) or not self._snapshot.objects(DeviceClass):
            return amounts
        own = self._own_pool(pod)
        if own is None:
            return amounts
        to_come = [self._of_spec(spec, *own) for spec in self._to_come(pod)]
        return total_of(amounts, *to_come, self._of_extended(pod, *own))

    def _own_pool(self, pod: PodInfo) -> tuple[str, _PoolNodes] | None:
        pool = self._pool_of(pod)
        name = pool.metadata.name if pool is not None else ""
        own = self._pools.get(name)
        return None if own is None else (name, own)

    def _to_come(self, pod: PodInfo) -> Iterable[ResourceClaimSpec]:
        """Yield what the claims ask for that are still to be made for a pod."""
        made = {one.name for one in pod.pod.status.resource_claim_statuses}
        templates = self._snapshot.objects(ResourceClaimTemplate)
        for one in pod.spec.resource_claims:
            if one.resource_claim_template_name is not None and one.name not in made:
                template = templates.get(f"{pod.namespace}/{one.resource_claim_template_name}")
                if template is not None:
                    yield template.spec.spec

    def _of_extended(self, pod: PodInfo, name: str, own: _PoolNodes) -> Amounts:
        """Return the devices that classes will give a pod for extended resources.

        Resources that nodes of the pool offer themselves may come from there.
        """
        if pod.pod.spec.node_name or pod.pod.status.extended_resource_claim_status is not None:
            return {}
        found = []
        for resource, count in pod.requests.items():
            serving = self._classes.serving(resource) if "/" in resource else None
            if serving is not None and resource not in own.offered:
                request = ExactDeviceRequest(device_class_name=serving, count=count)
                found.append(self._of_request(request, name, own, {resource}))
        return total_of(*found)

    def of_claim(self, claim: ResourceClaim, pod: PodInfo) -> Amounts:
        """Return what a claim takes of the queue of a pod that uses it."""
        found = self._own_pool(pod)
        if found is None:
            return {}
        allocation = claim.status.allocation
        if allocation is None:
            return self._of_spec(claim.spec, *found)
        return self._of_allocation(claim, pod, found[1])

    def _of_allocation(self, claim: ResourceClaim, pod: PodInfo, own: _PoolNodes) -> Amounts:
        status = pod.pod.status.extended_resource_claim_status
        counted: set[str] = set()
        if EXTENDED_RESOURCE_CLAIM in claim.metadata.annotations and status is not None:
            counted = {one.resource_name for one in status.request_mappings}
        classes = dict(_classes_of(claim.spec.devices.requests))
        found: list[Amounts] = []
        assert claim.status.allocation is not None, "asked for it"
        for result in claim.status.allocation.devices.results:
            held = self._devices.held(result, own.nodes, own.selector)
            if held is not None and not result.admin_access:
                names = self._resources_of(classes.get(result.request, ""), own) - counted
                found.append({held[0]: held[1] / WHOLE, **dict.fromkeys(names, 1.0)})
        return total_of(*found)

    def _of_spec(self, spec: ResourceClaimSpec, name: str, own: _PoolNodes) -> Amounts:
        found = []
        for request in spec.devices.requests:
            several: dict[str, float] = {}
            for one in request.first_available or filter(None, (request.exactly,)):
                for resource, amount in self._of_request(one, name, own, set()).items():
                    several[resource] = max(several.get(resource, 0.0), amount)
            found.append(several)
        return total_of(*found)

    def _of_request(
        self, request: ExactDeviceRequest, pool: str, own: _PoolNodes, counted: set[str]
    ) -> dict[str, float]:
        found = self._classes.get(request.device_class_name)
        if found is None or request.admin_access:
            return {}
        most = self._most_of(pool, wanted_of(request, found))
        resources = self._resources_of(request.device_class_name, own) - counted
        return dict(most.amounts) | dict.fromkeys(resources, float(most.devices))

    def _most_of(self, pool: str, wanted: Wanted) -> Most:
        found = self._most.get((pool, wanted))
        if found is None:
            own = self._pools[pool]
            found = self._requests.most(wanted, own.nodes, own.selector)
            self._most[pool, wanted] = found
        return found


def _classes_of(requests: Iterable[DeviceRequest]) -> Iterable[tuple[str, str]]:
    """Yield what results call a request or an alternative of it, with its class."""
    for request in requests:
        if request.exactly is not None:
            yield request.name, request.exactly.device_class_name
        for one in request.first_available:
            yield f"{request.name}/{one.name}", one.device_class_name
