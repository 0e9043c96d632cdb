"""Autoscaling: a cluster that grows for the jobs that will run, and for no others.

Pods that plainly lack nodes ask for them themselves, by the reason Unschedulable. Where autoscalers
would buy the wrong nodes, or none, this plugin asks in their place: by stand-ins for shares of
GPUs, required network domains and whatever else autoscalers cannot see, by a ProvisioningRequest
for gangs that need all of their nodes at once. A gang that gets none gives up after a while.

While nodes go, it keeps pods off those that an autoscaler is about to remove, and marks the running
members of gangs, so that no autoscaler tears a gang apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial

import msgspec
import numpy as np
from pydantic import Field

from bayplan import (
    Args,
    ClusterEvent,
    Handle,
    NodeRequest,
    NodeView,
    Overdue,
    Plugin,
    PodInfo,
    Preparation,
    Reads,
    Reject,
    Unit,
    hookimpl,
)
from bayplan.api import Pod
from bayplan.api.owners import belongs_to_node
from bayplan.cluster.protocol import PatchFields, pointer
from bayplan.dialects.autoscaling import (
    CLASS_ANNOTATION,
    DO_NOT_DISRUPT,
    LEAVING_TAINTS,
    SAFE_TO_EVICT,
    consumed_request,
)
from bayplan.plugin.decision import Decision
from bayplan_plugins.autoscaling.arrivals import LOOK_SECONDS, Arrivals
from bayplan_plugins.autoscaling.requests import GangRequests
from bayplan_plugins.autoscaling.stand_ins import StandIns
from bayplan_plugins.autoscaling.visible import VisiblePod, VisiblePods

__all__ = ["Autoscaling", "AutoscalingArgs"]

_LONGEST = 30 * 86_400.0
_RESOURCE = r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$"
_CLASS = r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"
_LEAVING = "node(s) are being removed by an autoscaler"
_KEPT = "node(s) are kept for a gang until all of its nodes are there"
_PROTECTED = "bayplan.dev/protected-from-autoscalers"
"""On a pod whose other annotations of this kind are bayplan's."""
_YOUNG = 120.0
"""Seconds in which a node that came may still get its labels and devices."""
_MOST_USELESS = 2
"""So many nodes may come that do not serve a unit before it asks for no more."""
_MOST_DOUBLED = 6
_ANSWERED, _RETRY = 5.0, 60.0
"""Seconds until a write is answered, and until one that was refused is tried again."""


class AutoscalingArgs(Args):
    """Arguments of Autoscaling; times are in seconds.

    ``standIns`` makes stand-ins for pods whose needs autoscalers cannot see; ``gpuResource`` is the
    resource by which they ask for whole GPUs. ``provisioningClass`` is the class of the
    ProvisioningRequests that gangs get, "" for none; a pod's annotation
    ``autoscaling.x-k8s.io/provisioning-class-name`` comes first. ``parameters`` are those of the
    requests. What gets none within ``giveUpAfter`` asks again ``retryAfter`` later, and each time
    after twice as long.
    ``protectGangs`` keeps autoscalers from removing the nodes of running gangs.
    """

    stand_ins: bool = True
    gpu_resource: str = Field(default="nvidia.com/gpu", pattern=_RESOURCE)
    provisioning_class: str = Field(default="", pattern=_CLASS)
    parameters: dict[str, str] = Field(default_factory=dict)
    give_up_after: float = Field(default=900.0, gt=0, le=_LONGEST)
    retry_after: float = Field(default=1800.0, gt=0, le=_LONGEST)
    protect_gangs: bool = True


class _Asking(msgspec.Struct):
    """Since when a unit lacks nodes (in seconds), and the pods that asked."""

    since: float
    pods: tuple[str, ...] = ()
    paused: float | None = None
    """Until when it asks for nothing, after that was of no use."""
    pauses: int = 0
    why: str = ""


class Autoscaling(Plugin[AutoscalingArgs]):
    """Ask autoscalers for the nodes that jobs need, and keep them off those that run."""

    Args = AutoscalingArgs
    reads = Reads.CLUSTER
    requeue_on = (
        ClusterEvent.NODE_TAINTS
        | ClusterEvent.NODE_ADDED
        | ClusterEvent.POD_PLACED
        | ClusterEvent.OBJECT_CHANGED
    )

    def __init__(self, args: AutoscalingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._visible = VisiblePods(handle, args.gpu_resource)
        # All profiles have the same ones: what one makes is no leftover for another.
        self._stand_ins = handle.snapshot.shared(StandIns, lambda _: StandIns(handle))
        self._requests = handle.snapshot.shared(GangRequests, lambda _: GangRequests(handle))
        self._arrivals = handle.snapshot.shared(Arrivals, lambda _: Arrivals(handle))
        self._asking: dict[str, _Asking] = {}
        self._unprotected = args.protect_gangs
        self._released = False
        """Whether nodes that were kept for a gang may be had by others since the last look."""

    # Nodes that come -----------------------------------------------------------------------------

    @hookimpl
    def request_nodes(self, unit: Unit, decision: Decision | None) -> NodeRequest | None:
        """Ask for the nodes of a unit where its pods would ask for the wrong ones."""
        if decision is None:
            self._drop(unit.key)
            return None
        used = consumed_request(unit.pods[0].annotations)
        if used and self._requests.is_of_another(used, unit.pods[0].namespace):
            return NodeRequest(f"Its nodes are those of ProvisioningRequest {used}.")
        class_name = self._class(unit)
        if class_name and self._requests.is_served:
            self._keep(unit, self._asking_of(unit))
            pods = partial(self._seen, unit)
            return self._requests.ask(unit, pods, class_name, self.args.parameters)
        if unit.gang is None and not self.args.stand_ins:
            return None
        # What names a request that is gone is overlooked by autoscalers.
        young = self._arrivals.since(self.handle.now - _YOUNG)
        visible = self._seen(unit) if used else self._visible.of(unit, frozenset(young))
        if visible is None and unit.gang is None:
            self._drop(unit.key)
            return None
        asking = self._asking_of(unit)
        self._forget_pods(asking, unit)
        given_up = self._given_up(unit, asking)
        if given_up is not None:
            return given_up
        useless = self._useless(unit, asking, visible or [])
        if useless is not None:
            return useless
        self._keep(unit, asking)
        return self._asked(unit, asking, visible if self.args.stand_ins else None)

    def _asking_of(self, unit: Unit) -> _Asking:
        """Return what is known of a unit that asks, which begins to where it is new."""
        if unit.key not in self._asking:
            self._asking[unit.key] = _Asking(self.handle.now)
            self._arrivals.begin()
        return self._asking[unit.key]

    def _keep(self, unit: Unit, asking: _Asking) -> None:
        """Keep the nodes that come for a gang until the others are there, too."""
        if unit.gang is not None:
            until = asking.since + self.args.give_up_after
            if self.handle.now < until:
                self._released |= self._arrivals.keep(unit, asking.since, until)

    def _seen(self, unit: Unit) -> list[VisiblePod]:
        """Return all pods of a unit as autoscalers have to see them."""
        return self._visible.of(unit) or self._visible.as_they_are(unit.pods)

    def _asked(self, unit: Unit, asking: _Asking, visible: list[VisiblePod] | None) -> NodeRequest:
        """Ask by stand-ins; without any the condition of the pods asks."""
        again = asking.since + self.args.give_up_after
        if self._arrivals.since(self.handle.now - _YOUNG):
            # Whether what came serves it is known by then.
            again = min(again, self.handle.now + _YOUNG)
        if visible is None:
            self._stand_ins.drop(asking.pods)
            promised = self._arrivals.promised(unit.key)
            if promised:
                # What is more important may have taken one of them by then.
                again = min(again, self.handle.now + LOOK_SECONDS)
            return NodeRequest("", again, promised=promised)
        if unit.gang is not None and self._queue_of(unit):
            # A queue counts the least that a gang needs, so no more of its pods may ask.
            visible = visible[: unit.min_placed]
        asked = self._stand_ins.ask(visible)
        soon = self.handle.now + (_RETRY if asked.problem else _ANSWERED)
        if asked.problem or asked.is_new:
            # Whether they could be made is known a moment later.
            again = min(again, soon)
        if asked.problem:
            return NodeRequest(f"No stand-in can be made: {asked.problem}.", again)
        ask = "1 stand-in asks" if asked.count == 1 else f"{asked.count} stand-ins ask"
        return NodeRequest(f"{ask} autoscalers for its nodes.", again)

    def _queue_of(self, unit: Unit) -> str:
        """Return the queue of a unit, "" without one."""
        queueing = self.handle.queueing
        return (queueing.queue_of(unit) or "") if queueing is not None else ""

    def _class(self, unit: Unit) -> str:
        """Return the class of the request that a unit gets; "" for none."""
        own = unit.pods[0].annotations.get(CLASS_ANNOTATION, "")
        return own or (self.args.provisioning_class if unit.gang is not None else "")

    def _given_up(self, unit: Unit, asking: _Asking) -> NodeRequest | None:
        """Ask for nothing for a while after a unit got none: what came is of better use."""
        now = self.handle.now
        if asking.paused is not None:
            if now < asking.paused:
                return NodeRequest(asking.why, asking.paused, gave_up=True)
            asking.paused, asking.since = None, now
        if now < asking.since + self.args.give_up_after:
            return None
        minutes = self.args.give_up_after / 60
        return self._pause(unit, asking, f"Its nodes did not come within {minutes:g} minutes")

    def _useless(self, unit: Unit, asking: _Asking, pods: list[VisiblePod]) -> NodeRequest | None:
        """Stop once several nodes came that do not serve a unit: more of them would not either."""
        came = self._arrivals.since(asking.since)
        refused = [name for name in came if any(name in one.apart for one in pods)]
        if len(refused) < _MOST_USELESS:
            return None
        what = f"The nodes that came do not serve it ({', '.join(sorted(refused))})"
        return self._pause(unit, asking, what)

    def _pause(self, unit: Unit, asking: _Asking, why: str) -> NodeRequest:
        """Ask for nothing for a while, and for longer each time."""
        wait = self.args.retry_after * 2 ** min(asking.pauses, _MOST_DOUBLED)
        asking.pauses += 1
        asking.paused = self.handle.now + wait
        asking.why = f"{why}; it asks for them again after {wait / 60:g} minutes."
        self._stand_ins.drop(asking.pods)
        self._released |= self._arrivals.release(unit.key)
        return NodeRequest(asking.why, asking.paused, gave_up=True)

    def _forget_pods(self, asking: _Asking, unit: Unit) -> None:
        """Note which pods of a unit ask, and drop those that do no more."""
        keys = tuple(pod.key for pod in unit.pods)
        self._stand_ins.drop(set(asking.pods).difference(keys))
        asking.pods = keys

    def _drop(self, unit: str) -> None:
        asking = self._asking.pop(unit, None)
        if asking is not None:
            self._stand_ins.drop(asking.pods)
            self._arrivals.end()
        self._requests.drop(unit)
        self._released |= self._arrivals.release(unit)

    @hookimpl
    def overdue(self) -> Overdue | None:
        """Remove what an earlier process left; evict nobody."""
        if not self._unprotected:
            self._unprotected = True
            self._unprotect()
        released, self._released = self._released or self._arrivals.expire(), False
        found = (self._stand_ins.sweep(), self._requests.sweep(), self._arrivals.next_time())
        times = [at for at in found if at is not None]
        # What was kept from others is worth another attempt.
        return Overdue(again=min(times, default=None), waited=released)

    @hookimpl
    def pre_bind(self, pod: PodInfo) -> Preparation | None:
        """Remove the stand-in of a pod before the pod takes its place."""
        gone = self._stand_ins.leave(pod.key)
        return Preparation((gone,)) if gone is not None else None

    # Nodes that go -------------------------------------------------------------------------------

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by whether the pod belongs to its node, and by the nodes that are kept from it."""
        if belongs_to_node(pod.pod.metadata):
            return None
        return "kept", self._arrivals.kept_from(pod)

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Keep pods off nodes that an autoscaler removes, and off those that came for a gang."""
        if belongs_to_node(pod.pod.metadata):
            return
        leaving = [
            any(taint.key in LEAVING_TAINTS for taint in taints) for taints in nodes.taint_sets
        ]
        if any(leaving):
            yield Reject(np.array(leaving)[nodes.taint_codes], _LEAVING, resolvable=False)
        kept = self._arrivals.kept_from(pod)
        if kept:
            mask = np.array([name in kept for name in nodes.names], dtype=np.bool_)
            yield Reject(mask, _KEPT, resolvable=False)

    @hookimpl
    def bind(self, pod: PodInfo) -> dict[str, str] | None:
        """Mark the members of gangs, so that their nodes are not removed."""
        if pod.gang is None or not self.args.protect_gangs:
            return None
        wanted = {SAFE_TO_EVICT: "false", DO_NOT_DISRUPT: "true"}
        if not wanted.keys().isdisjoint(pod.annotations):
            # What its owner says of it counts.
            return None
        return {**wanted, _PROTECTED: "true"}

    def _unprotect(self) -> None:
        """Remove the marks of an earlier process that protected gangs."""
        names = (SAFE_TO_EVICT, DO_NOT_DISRUPT, _PROTECTED)
        for pod, _ in list(self.handle.snapshot.placed.values()):
            if _PROTECTED in pod.annotations:
                fields = {
                    pointer("metadata", "annotations", name): None
                    for name in names
                    if name in pod.annotations
                }
                self.handle.submit(PatchFields(Pod, pod.key, pod.uid, fields))
