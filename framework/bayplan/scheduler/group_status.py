"""The status of pod groups and network topologies: phases, conditions, domains.

Each ecosystem gets its own words: Koordinator's and scheduler-plugins' phases, Volcano's and
KAI's phase with an ``Unschedulable`` condition, Kubernetes' ``PodGroupScheduled``; and the
``detailStatus`` of a ClusterNetworkTopology. A status that is up to date is not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

from msgspec.structs import asdict, replace

from bayplan.api import (
    ApiObject,
    ClusterNetworkTopology,
    KaiPodGroup,
    NativePodGroup,
    Pod,
    PodGroup,
    SchedulerPluginsPodGroup,
    VolcanoPodGroup,
    kind_of,
)
from bayplan.api.network import ClusterNetworkTopologyStatus, TopologyDetail, TopologyInfo
from bayplan.api.podgroup import (
    LAST_EVICTION,
    LAST_START,
    ConditionedStatus,
    GroupCondition,
    KaiPodGroupStatus,
    NativePodGroupStatus,
    PodGroupStatus,
    UnschedulableReason,
)
from bayplan.api.times import rfc3339
from bayplan.cluster.conditions import without_times
from bayplan.cluster.protocol import Cluster, Event, PatchAnnotations, PatchStatus
from bayplan.gangs.completeness import has_minimum
from bayplan.gangs.directory import GangMembers
from bayplan.scheduler.kai_groups import (
    GroupEviction,
    eviction_event,
    last_start,
    not_ready,
    scheduling_conditions,
)
from bayplan.snapshot import Snapshot
from bayplan.snapshot.networks import Networks
from bayplan.topology.network.tree import NODE_LAYER, ROOT_LAYER, Domain, NetworkTree

__all__ = ["GroupStatusWriter", "detail_status", "phase_of"]

_GROUPS: tuple[type[Any], ...] = (
    PodGroup,
    SchedulerPluginsPodGroup,
    VolcanoPodGroup,
    KaiPodGroup,
    NativePodGroup,
)

_INQUEUE = "Inqueue"


class GroupStatusWriter:
    """Writes the status of the gangs that changed, and of the networks."""

    def __init__(self, cluster: Cluster, snapshot: Snapshot) -> None:
        self._cluster = cluster
        self._snapshot = snapshot
        self._networks = Networks.of(snapshot)
        self._changed: dict[str, None] = {}
        self._recorded: dict[str, str] = {}
        self._tree_of: dict[str, NetworkTree] = {}
        self._admitted: set[str] = set()
        self._started: set[str] = set()
        self._evicted: dict[str, str] = {}

    def changed(self, gang: str) -> None:
        """Mark a gang, by key, whose status may have changed."""
        self._changed[gang] = None

    def admit(self, gang: str) -> None:
        """Write that a gang, by key, is admitted: its Volcano pod group's phase becomes Inqueue."""
        group = self._snapshot.objects(VolcanoPodGroup).get(gang)
        if group is not None and gang not in self._admitted:
            self._admitted.add(gang)
            status = replace(group.status, phase=_INQUEUE)
            self._cluster.submit(PatchStatus(VolcanoPodGroup, gang, status))

    def _phase_before(self, key: str, group: VolcanoPodGroup | KaiPodGroup) -> str:
        """Return a group's phase, also where the watch does not show its admission yet."""
        phase = group.status.phase
        if phase in ("", "Pending"):
            return _INQUEUE if key in self._admitted else phase
        self._admitted.discard(key)
        return phase

    def marked(self) -> list[str]:
        """Return the keys of the gangs whose status has to be written."""
        return list(self._changed)

    @property
    def pending_reasons(self) -> int:
        """How many gangs have a recorded reason for being pending."""
        return len(self._recorded)

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Drop the marks of gangs that are gone."""
        for key in [key for key in self._changed if gone(key)]:
            del self._changed[key]
        self._admitted = {key for key in self._admitted if not gone(key)}

    def write(
        self,
        members_of: Callable[[str], GangMembers | None],
        why: Callable[[str], str],
        refusal: Callable[[str], UnschedulableReason | None],
        schedules: Callable[[Pod], bool],
    ) -> None:
        """Write the status of the marked gangs, and of networks that changed.

        :param members_of: returns a gang by key, None when it is gone.
        :param why: returns what keeps a gang pending, "" for nothing.
        :param refusal: returns why the queue of a pending gang does not take it.
        :param schedules: returns whether a pod is scheduled here; another scheduler writes the
            status of a gang that has only other pods.
        """
        changed, self._changed = self._changed, {}
        for key in changed:
            members = members_of(key)
            if members is None or members.gang is None:
                self._admitted.discard(key)
                self._started.discard(key)
                self._evicted.pop(key, None)
                self._recorded.pop(key, None)
                continue
            pods = [*members.pending.values(), *(info for info, _ in members.bound.values())]
            if pods and not any(schedules(info.pod) for info in pods):
                continue
            message = members.gang.problem or ("" if not members.pending else why(key))
            for type_ in _GROUPS:
                group: ApiObject | None = self._snapshot.objects(type_).get(key)
                if group is not None:
                    self._write_group(group, members, message, partial(refusal, key))
                if isinstance(group, KaiPodGroup):
                    self._write_start(key, group, members)
        if self._snapshot.objects(ClusterNetworkTopology):
            self._write_networks()

    def _write_group(
        self,
        group: ApiObject,
        members: GangMembers,
        message: str,
        refusal: Callable[[], UnschedulableReason | None],
    ) -> None:
        gang = members.gang
        assert gang is not None, "checked by the caller"
        meta = group.metadata
        key = f"{meta.namespace}/{meta.name}"
        if isinstance(group, PodGroup):
            status: PodGroupStatus | ConditionedStatus | NativePodGroupStatus = PodGroupStatus(
                phase_of(members),
                len(members.bound),
                members.running,
                members.count_ended("Succeeded"),
                members.count_ended("Failed"),
            )
        elif isinstance(group, NativePodGroup):
            status = _native(group, members, message)
        else:
            assert isinstance(group, VolcanoPodGroup | KaiPodGroup)
            status = _conditioned(members, message, self._phase_before(key, group))
            if isinstance(group, KaiPodGroup):
                now = rfc3339(self._cluster.unix_time)
                found = scheduling_conditions(group, members, message, refusal, now)
                status = KaiPodGroupStatus(**asdict(status), scheduling_conditions=found)
        if status != without_times(getattr(group, "status", None)):
            self._cluster.submit(PatchStatus(type(group), key, status))
        self._tell(group, key, members, message)

    def _tell(self, group: ApiObject, key: str, members: GangMembers, message: str) -> None:
        """Record an event of what keeps a group pending, once for each message."""
        waits = not_ready(members) if isinstance(group, KaiPodGroup) else ""
        told = waits or message
        if not told:
            self._recorded.pop(key, None)
        elif self._recorded.get(key) != told:
            self._recorded[key] = told
            gang = members.gang
            wrong = gang is not None and gang.problem is not None
            type_, reason = "Warning", "Invalid" if wrong else "Unschedulable"
            if waits:
                type_, reason = "Normal", "NotReady"
            self._cluster.submit(Event(key, type_, reason, told, about=kind_of(group).name))

    def evicted(self, gang: str, eviction: GroupEviction) -> None:
        """Tell the KAI pod group of a gang, by key, that one of its members was evicted."""
        if gang not in self._snapshot.objects(KaiPodGroup):
            return
        self._cluster.submit(eviction_event(gang, eviction))
        now = rfc3339(self._cluster.unix_time)
        if self._evicted.get(gang) != now:
            self._evicted[gang] = now
            self._cluster.submit(PatchAnnotations(KaiPodGroup, gang, {LAST_EVICTION: now}))

    def _write_start(self, key: str, group: KaiPodGroup, members: GangMembers) -> None:
        """Write when a group started, once for each time that it has."""
        if all(info.terminating for info, _ in members.bound.values()):
            self._started.discard(key)
        elif key not in self._started:
            self._started.add(key)
            since = last_start(group, members, self._cluster.unix_time)
            if since is not None:
                self._cluster.submit(PatchAnnotations(KaiPodGroup, key, {LAST_START: since}))

    def _write_networks(self) -> None:
        trees = self._networks.trees()
        for key, topology in self._snapshot.objects(ClusterNetworkTopology).items():
            tree = trees.get(key)
            if tree is None or self._tree_of.get(key) is tree:
                continue
            self._tree_of[key] = tree
            status = ClusterNetworkTopologyStatus(tuple(detail_status(tree)))
            if status != topology.status:
                self._cluster.submit(PatchStatus(ClusterNetworkTopology, key, status))


def phase_of(members: GangMembers) -> str:
    """Return a gang's phase in Koordinator's terms."""
    gang = members.gang
    if gang is None:
        return "Pending"
    succeeded, failed = members.count_ended("Succeeded"), members.count_ended("Failed")
    if has_minimum(gang, succeeded):
        return "Finished"
    if failed and has_minimum(gang, failed + members.running + succeeded):
        return "Failed"
    if has_minimum(gang, members.running + succeeded):
        return "Running"
    if has_minimum(gang, len(members.bound)):
        return "Scheduled"
    if members.bound:
        return "Scheduling"
    if has_minimum(gang, len(members.pending)):
        return "PreScheduling"
    return "Pending"


def _native(group: NativePodGroup, members: GangMembers, message: str) -> NativePodGroupStatus:
    assert members.gang is not None, "checked by the caller"
    if has_minimum(members.gang, len(members.bound)):
        condition = GroupCondition("PodGroupScheduled", "True", "Scheduled")
    elif message:
        condition = GroupCondition("PodGroupScheduled", "False", "Unschedulable", message)
    else:
        return cast(NativePodGroupStatus, without_times(group.status))
    return NativePodGroupStatus((condition,))


def _conditioned(members: GangMembers, message: str, before: str) -> ConditionedStatus:
    gang = members.gang
    assert gang is not None, "checked by the caller"
    complete = has_minimum(gang, len(members.bound))
    succeeded, failed = members.count_ended("Succeeded"), members.count_ended("Failed")
    if complete or not message:
        condition = GroupCondition("Scheduled", "True" if complete else "False")
    else:
        reason = "NotEnoughResources" if has_minimum(gang, members.present) else "NotEnoughTasks"
        condition = GroupCondition("Unschedulable", "True", reason, message)
    phase = "Running" if complete else _INQUEUE if before == _INQUEUE else "Pending"
    if has_minimum(gang, succeeded):
        phase = "Completed"
    return ConditionedStatus(phase, (condition,), members.running, succeeded, failed)


def detail_status(tree: NetworkTree) -> Iterator[TopologyDetail]:
    """Yield a network's domains as Koordinator lists them: pre-order, children by name."""
    layers = [ROOT_LAYER, *tree.layers, NODE_LAYER]
    yield from _details(tree.root, layers, None)


def _details(
    domain: Domain, layers: list[str], parent: TopologyInfo | None
) -> Iterator[TopologyDetail]:
    own = TopologyInfo(domain.layer or ROOT_LAYER, domain.name)
    below = layers[layers.index(own.topology_layer) + 1]
    names: Iterable[str] = (child.name for child in domain.children)
    yield TopologyDetail(
        own,
        parent,
        domain.children[0].layer if domain.children else below,
        tuple(names),
        len(domain.rows),
    )
    for child in domain.children:
        yield from _details(child, layers, own)
