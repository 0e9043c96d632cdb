"""A kubelet, as far as a DRA driver can see it: over the real sockets, in a time of its own.

It does what Kubernetes 1.36's does (pkg/kubelet/cm/dra, and measured on a real one): a pod whose
claims cannot be prepared waits for the next resync, a restart deletes the node's slices, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.dra.driver.cdi_runtime import CannotCreate, Container, create
from tests.dra.driver.kubelet_health import HealthCache
from tests.dra.driver.kubelet_plugins import CallFailed, Plugins

from bayplan.api import Pod, ResourceClaim
from bayplan.api import pod as pods
from bayplan.errors import ClusterError
from bayplan_dra.driver.proto import dra_pb2 as dra
from bayplan_dra.driver.proto import health_pb2 as health

RESYNC_SECONDS = 90.0
"""When a pod whose preparing failed is tried again; the real one takes 60 to 90 s."""
RECONCILE_SECONDS = 60.0
WIPE_SECONDS = 30.0
KILL_SECONDS = 1.0
"""How long containers live on that are to end."""
_ORPHAN_SECONDS = 3.0
_RETRY_SECONDS = 10.0


class KubeletApi(Protocol):
    """The kubelet's requests to the API server; errors are ``ClusterError``."""

    def pods(self) -> Sequence[Pod]:
        """Return the pods of the node."""

    def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim, None if it does not exist."""

    def wipe(self) -> None:
        """Delete all slices of the node."""

    def remove(self, pod: Pod) -> None:
        """Delete a terminated pod; a missing one is fine."""


@dataclass
class ClaimInfo:
    """A claim in the kubelet's checkpoint, with the pods that use it.

    :ivar prepared: lost in a restart, but running pods are not prepared again.
    """

    namespace: str
    name: str
    uid: str
    pods: dict[str, None] = field(default_factory=dict)
    devices: list[dra.Device] = field(default_factory=list)
    prepared: bool = False

    @property
    def message(self) -> dra.Claim:
        """The claim in a call."""
        return dra.Claim(namespace=self.namespace, uid=self.uid, name=self.name)

    def matching(self, request: str) -> list[dra.Device]:
        """Return the devices that a container gets that names a request; "" for the claim."""
        return [one for one in self.devices if not request or request in one.request_names]


@dataclass
class PodWork:
    """What is to be done for a pod.

    :ivar due: when it is done, or tried again.
    :ivar error: why it is not done.
    """

    pod: Pod
    due: float
    terminating: bool = False
    error: str = ""


class Kubelet:
    """A kubelet with a container runtime, for one driver.

    :param root: has the folders ``registry`` and ``cdi``.
    :param api: None for a kubelet that has no pods and deletes no slices.
    :ivar services: the services of drivers that it knows; a change counts from its next start.
    :ivar now: its time in seconds, which only ``advance`` moves.
    :ivar claims: its checkpoint, by namespace and name.
    :ivar running: the runtime's containers, by the UID of their pod, by name; they outlive it.
    """

    def __init__(self, root: Path, api: KubeletApi | None = None) -> None:
        self.now = 0.0
        self.claims: dict[tuple[str, str], ClaimInfo] = {}
        self.running: dict[str, dict[str, Container]] = {}
        self.health = HealthCache(lambda: self.now)
        self._root = root
        self._api = api
        self.services = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        self.start()

    # Its life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start: a second later it registers drivers, and looks what is to be done for pods."""
        self.plugins = Plugins(
            self._root / "registry",
            self.services,
            lambda: self.now,
            self.health.report,
            self.health.clear,
        )
        self.up = True
        self._work: dict[str, PodWork] = {}
        self._started = self.now
        self._listed = False
        self._has_wiped = False
        self._wipe_at: float | None = None
        self._wipe()

    def stop(self) -> None:
        """End; containers go on."""
        self.up = False
        self._work = {}
        self.plugins.close()
        for info in self.claims.values():
            info.prepared = False

    def restart(self) -> None:
        """End and start again."""
        self.stop()
        self.start()

    def advance(self, seconds: float = 1.0) -> None:
        """Let time pass, and do what is due, second by second."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + 1.0, until)
            if self.up:
                self._tick()

    def _tick(self) -> None:
        self.plugins.look()
        self._wipe()
        if not self._listed:
            self._list_pods()
        for uid, work in list(self._work.items()):
            if work.due <= self.now:
                self._sync(uid, work)
        age = self.now - self._started
        if self._listed and age >= _ORPHAN_SECONDS:
            for uid in self.running.keys() - self._work.keys():
                del self.running[uid]
        if self._listed and age % RECONCILE_SECONDS < 1.0:
            self._reconcile()

    def _wipe(self) -> None:
        """Delete the slices at the start, however late that works, and of a driver that is gone."""
        if self.plugins.usable:
            self._wipe_at = None
        elif self._wipe_at is None and self.plugins.took_part:
            self._wipe_at = self.now + WIPE_SECONDS
        gone = self._wipe_at is not None and self.now >= self._wipe_at
        if self._api is None or (self._has_wiped and not gone):
            return
        try:
            self._api.wipe()
        except ClusterError:
            return
        self._has_wiped = True
        if gone:
            self._wipe_at, self.plugins.took_part = None, False

    # Pods ------------------------------------------------------------------------------------

    def add_pod(self, pod: Pod) -> None:
        """Run a pod that was bound to the node; a kubelet that is away sees it when it starts."""
        if self.up and self._listed:
            work = self._work.setdefault(pod.metadata.uid, PodWork(pod, self.now))
            self._sync(pod.metadata.uid, work)

    def remove_pod(self, pod: Pod) -> None:
        """Begin to terminate a pod that is being deleted, or was deleted by force."""
        work = self._work.get(pod.metadata.uid)
        if self.up and work is not None:
            work.terminating = True
            work.due = self.now + KILL_SECONDS

    def why_not(self, pod: Pod) -> str:
        """Return why a pod does not run, or is not terminated; "" for no reason."""
        work = self._work.get(pod.metadata.uid)
        return work.error if work is not None else ""

    def _list_pods(self) -> None:
        try:
            found = self._api.pods() if self._api is not None else ()
        except ClusterError:
            return
        self._listed = True
        for pod in found:
            leaving = pod.metadata.deletion_timestamp is not None
            self._work[pod.metadata.uid] = PodWork(pod, self.now, leaving)

    def _sync(self, uid: str, work: PodWork) -> None:
        """Run or terminate a pod; a failed one is tried again later."""
        delay = RESYNC_SECONDS
        work.error = ""
        try:
            if work.terminating:
                delay = _RETRY_SECONDS
                self.running.pop(uid, None)
                self._unprepare(uid, self._claims_of(uid))
                assert self._api is not None
                self._api.remove(work.pod)
                del self._work[uid]
            elif uid not in self.running:
                self._prepare(work.pod)
                self.running[uid] = {
                    one.name: self._made(work.pod, one) for one in work.pod.spec.containers
                }
        except (CallFailed, CannotCreate, ClusterError) as exc:
            work.error = str(exc)
        work.due = self.now + delay

    def restart_containers(self, pod: Pod) -> None:
        """Create the containers of a running pod again, as after a crash.

        :raises CannotCreate: when the runtime cannot.
        """
        for container in pod.spec.containers:
            self.running[pod.metadata.uid][container.name] = self._made(pod, container)

    # Claims ----------------------------------------------------------------------------------

    def _prepare(self, pod: Pod) -> None:
        """Prepare the claims of a pod that are not yet prepared, all in one call.

        :raises CallFailed: when any of them cannot be prepared.
        """
        wanted = [self._checked(pod, name) for name in claim_names(pod).values()]
        if wanted:
            self.plugins.chosen()
        calls = []
        for claim in wanted:
            meta = claim.metadata
            info = self.claims.setdefault(
                (meta.namespace, meta.name), ClaimInfo(meta.namespace, meta.name, meta.uid)
            )
            if info.uid != meta.uid:
                raise CallFailed(f"old ResourceClaim with same name {meta.name} still exists")
            info.pods[pod.metadata.uid] = None
            if not info.prepared:
                calls.append(info)
        if not calls:
            return
        request = dra.NodePrepareResourcesRequest(claims=[one.message for one in calls])
        answer = self.plugins.call(
            "NodePrepareResources", request, dra.NodePrepareResourcesResponse
        )
        for info in calls:
            found = answer.claims[info.uid]
            if found.error:
                raise CallFailed(f"NodePrepareResources failed for {info.name}: {found.error}")
            info.devices = list(found.devices)
        for info in calls:
            info.prepared = True

    def _checked(self, pod: Pod, name: str) -> ResourceClaim:
        assert self._api is not None
        claim = self._api.claim(pod.metadata.namespace, name)
        if claim is None or claim.status.allocation is None:
            raise CallFailed(f"ResourceClaim {name} does not exist, or is not allocated")
        if all(one.uid != pod.metadata.uid for one in claim.status.reserved_for):
            raise CallFailed(f"pod {pod.metadata.name} is not allowed to use ResourceClaim {name}")
        return claim

    def _claims_of(self, uid: str) -> list[ClaimInfo]:
        return [one for one in self.claims.values() if uid in one.pods]

    def _unprepare(self, uid: str, claims: Sequence[ClaimInfo]) -> None:
        """Unprepare the claims of a pod that no other pod uses.

        :raises CallFailed: when any of them cannot be unprepared.
        """
        calls = []
        for info in claims:
            if len(info.pods) > 1:
                del info.pods[uid]
            else:
                calls.append(info)
        if not calls:
            return
        request = dra.NodeUnprepareResourcesRequest(claims=[one.message for one in calls])
        answer = self.plugins.call(
            "NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse
        )
        for info in calls:
            error = answer.claims[info.uid].error
            if error:
                raise CallFailed(f"NodeUnprepareResources failed for {info.name}: {error}")
        for info in calls:
            del self.claims[info.namespace, info.name]

    def _reconcile(self) -> None:
        """Unprepare what belongs to pods that the kubelet does not know."""
        gone = {uid for one in self.claims.values() for uid in one.pods} - self._work.keys()
        for uid in sorted(gone):
            try:
                self._unprepare(uid, self._claims_of(uid))
            except CallFailed:
                continue

    # Containers ------------------------------------------------------------------------------

    def _made(self, pod: Pod, container: pods.Container) -> Container:
        names = [
            name
            for info, request in self._given(pod, container)
            for device in info.matching(request)
            for name in device.cdi_device_ids
        ]
        return create(self._root / "cdi", names)

    def _given(self, pod: Pod, container: pods.Container) -> Iterator[tuple[ClaimInfo, str]]:
        """Yield the claims and requests that a container names, in the order of the pod's."""
        for own, name in claim_names(pod).items():
            for one in container.resources.claims:
                if one.name == own:
                    yield self.claims[pod.metadata.namespace, name], one.request

    def allocated_status(self, pod: Pod, container: str) -> dict[str, dict[str, str]]:
        """Return the container's allocatedResourcesStatus: health by resource id, by resource."""
        found: dict[str, dict[str, str]] = {}
        (spec,) = [one for one in pod.spec.containers if one.name == container]
        own_names = {name: own for own, name in claim_names(pod).items()}
        for info, request in self._given(pod, spec):
            resource = f"claim:{own_names[info.name]}{request and f'/{request}'}"
            resources: dict[str, str] = {}
            for device in info.matching(request):
                first = device.cdi_device_ids[0]
                resources.setdefault(first, self.health.of(device.pool_name, device.device_name))
            found[resource] = resources
        return found

    # Single calls ----------------------------------------------------------------------------

    def prepare(self, *claims: ResourceClaim) -> dict[str, dra.NodePrepareResourceResponse]:
        """Only call the driver to prepare claims; return the answers by claim name.

        :raises CallFailed: when there is no answer.
        """
        request = dra.NodePrepareResourcesRequest(claims=[_message(one) for one in claims])
        answer = self.plugins.call(
            "NodePrepareResources", request, dra.NodePrepareResourcesResponse
        )
        return {one.metadata.name: answer.claims[one.metadata.uid] for one in claims}

    def unprepare(self, *claims: ResourceClaim) -> dict[str, str]:
        """Only call the driver to unprepare claims; return the errors by claim name.

        :raises CallFailed: when there is no answer.
        """
        request = dra.NodeUnprepareResourcesRequest(claims=[_message(one) for one in claims])
        answer = self.plugins.call(
            "NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse
        )
        return {one.metadata.name: answer.claims[one.metadata.uid].error for one in claims}

    @contextmanager
    def one_more_stream(self) -> Iterator[Iterator[dict[str, health.DeviceHealth]]]:
        """Watch the devices' health once more: the whole list, by name, at every change."""
        stream = self.plugins.chosen().connection.watch_health()
        yield ({one.device.device_name: one for one in answer.devices} for answer in stream)
        stream.cancel()


def claim_names(pod: Pod) -> dict[str, str]:
    """Return the names of a pod's claims, by its own names of them."""
    generated = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses}
    found = {
        one.name: one.resource_claim_name or generated.get(one.name)
        for one in pod.spec.resource_claims
    }
    return {own: name for own, name in found.items() if name}


def _message(claim: ResourceClaim) -> dra.Claim:
    meta = claim.metadata
    return dra.Claim(namespace=meta.namespace, uid=meta.uid, name=meta.name)
