"""One tree of quotas: what is asked for, used and divided, updated pod by pod.

Requests and usage are added along the path to the root. What a quota may have is divided again when
somebody asks for it and anything in its parent's group, or above, has changed. All siblings are
divided at once, so the result does not depend on who asked before (in Koordinator it does: a quota
keeps its unscaled min until it is asked about, and its siblings lose units by that).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from bayplan.api import Pod, pod_requests
from bayplan.dialects.koordinator.elastic_quota import (
    DEFAULT_QUOTA,
    ROOT_QUOTA,
    SYSTEM_QUOTA,
    QuotaDefinition,
    ResourceList,
    is_preemptible,
)
from bayplan.queues.forest import MOST_LEVELS, cycle_text
from bayplan_plugins.queues.koordinator.division import Siblings, divide, scaled_min
from bayplan_plugins.queues.koordinator.quota import CountedPod, Quota
from bayplan_plugins.queues.koordinator.resource_lists import (
    added,
    at_least,
    masked,
    subtracted,
    without_negatives,
)

__all__ = ["QuotaManager", "parents_first"]

Amounts = Mapping[str, int]
_NOTHING: Amounts = {}
_OUTSIDE = (SYSTEM_QUOTA, DEFAULT_QUOTA)
"""Quotas whose usage is taken off the total before it is divided; they have no share of it."""


class QuotaManager:
    """The quotas of one tree, by name, below the root quota.

    The default tree, "", also has the system and the default quota.

    :param scale_min: reduce mins in proportion where they exceed what there is.
    :param guarantee: what pods have is guaranteed to their quota, and no quota lends.
    """

    def __init__(
        self,
        tree: str = "",
        system_max: Amounts = _NOTHING,
        default_max: Amounts = _NOTHING,
        scale_min: bool = True,
        guarantee: bool = False,
    ) -> None:
        self.tree = tree
        self.scale_min = scale_min
        self.total: ResourceList = {}
        self._guarantee = guarantee
        outside = [] if tree else [(SYSTEM_QUOTA, system_max), (DEFAULT_QUOTA, default_max)]
        self._builtin = [QuotaDefinition(ROOT_QUOTA, parent="", is_parent=True, lends=False)]
        self._builtin += [QuotaDefinition(name, maximum=dict(most)) for name, most in outside]
        self.quotas: dict[str, Quota] = {}
        self._children: dict[str, set[str]] = {}
        self._divided: dict[str, ResourceList] = {}
        """What was divided among the children, by parent, where it is still valid."""
        self._resources: frozenset[str] | None = None
        for definition in self._builtin:
            self._insert(definition)

    # Definitions -------------------------------------------------------------------------

    def set_quota(self, definition: QuotaDefinition) -> None:
        """Add a quota, or take over what has changed in its definition; its pods stay."""
        if self._guarantee:
            definition = replace(definition, lends=False)
        known = self.quotas.get(definition.name)
        if known is None and not self._children.get(definition.name):
            self._insert(definition)
        elif known is None or known.parent != definition.parent:
            self._rebuild(definition)
        else:
            self._change(known, definition)

    def delete_quota(self, name: str) -> list[Pod]:
        """Remove a quota with all that it counts; return the pods that it counted.

        :raises KeyError: for a quota that is not there.
        """
        quota = self.quotas[name]
        above = self.path(name)[1:]
        every = subtracted(_NOTHING, quota.limited_request)
        self._ask(above, every, subtracted(_NOTHING, quota.asked.non_preemptible))
        every = subtracted(_NOTHING, quota.used.every)
        self._use(above, every, subtracted(_NOTHING, quota.used.non_preemptible))
        self._allocate(above, subtracted(_NOTHING, quota.guaranteed))
        del self.quotas[name]
        self._children[quota.parent].discard(name)
        self._redefined()
        return [counted.pod for counted in quota.pods.values()]

    def _insert(self, definition: QuotaDefinition) -> None:
        name = definition.name
        blank = Quota(replace(definition, minimum={}, lends=True))
        self.quotas[name] = blank
        if name not in _OUTSIDE and name != ROOT_QUOTA:
            self._children.setdefault(definition.parent, set()).add(name)
        self._change(blank, definition)

    def _change(self, quota: Quota, definition: QuotaDefinition) -> None:
        asked, guaranteed = quota.limited_request, quota.guaranteed
        counted = quota.definition.maximum.keys()
        quota.definition = definition
        if quota.name in _OUTSIDE:
            quota.runtime = dict(definition.maximum)
        elif quota.name != ROOT_QUOTA and self._guarantee:
            quota.guaranteed = at_least(quota.allocated, definition.minimum)
            self._allocate(self.path(quota.name)[1:], subtracted(quota.guaranteed, guaranteed))
        self._redefined()
        more = subtracted(quota.limited_request, asked)
        if more:
            self._ask(self.path(quota.name)[1:], more, _NOTHING)
        if counted != definition.maximum.keys():
            self._recount(quota)

    def _recount(self, quota: Quota) -> None:
        """Count the pods of a quota whose max names other resources than before."""
        for counted in list(quota.pods.values()):
            pod, assigned = counted.pod, counted.assigned
            self.remove_pod(quota.name, pod)
            requests = masked(pod_requests(pod.spec).effective, quota.definition.maximum)
            self._count(quota, CountedPod(pod, requests, counted.preemptible), assigned)

    def _rebuild(self, definition: QuotaDefinition) -> None:
        """Recompute every sum, with a quota that came or moved."""
        before = self.quotas
        wanted = {name: quota.definition for name, quota in before.items()}
        wanted[definition.name] = definition
        self.quotas, self._children = {}, {}
        for one in parents_first(wanted):
            self._insert(one)
        for name, quota in before.items():
            self.quotas[name].pods = quota.pods
            self.ask(name, quota.own_asked.every, quota.own_asked.non_preemptible)
            self.use(name, quota.own_used.every, quota.own_used.non_preemptible)

    def _redefined(self) -> None:
        self._divided.clear()
        self._resources = None

    # Sums --------------------------------------------------------------------------------

    def path(self, name: str) -> list[Quota]:
        """Return a quota and its ancestors, up to the root unless it does not hang on it.

        That is where an ancestor is missing, in a cycle, or too far up.
        """
        found: list[Quota] = []
        quotas = self.quotas
        while (quota := quotas.get(name)) is not None and len(found) <= MOST_LEVELS:
            found.append(quota)
            name = quota.definition.parent
        if len(found) <= MOST_LEVELS:
            return found
        # A cycle is walked more than once.
        return list({one.name: one for one in found}.values())

    def problem(self, name: str) -> str | None:
        """Return why a quota may have nothing: its object, or that it does not hang on the root."""
        path = self.path(name)
        if not path:
            return f'quota "{name}" does not exist'
        if path[0].definition.problem:
            return f'quota "{name}": {path[0].definition.problem}'
        last = path[-1]
        if last.name == ROOT_QUOTA:
            return None
        if last.parent in self.quotas:
            names = [quota.name for quota in path]
            if last.parent not in names:
                return f'quota "{name}" lies below more than {MOST_LEVELS - 1} others'
            cycle = cycle_text(names[names.index(last.parent) :])
            return f"quotas are their own ancestors: {cycle}"
        return f'quota "{last.name}" has the parent "{last.parent}", which does not exist'

    def ask(self, name: str, every: Amounts, non_preemptible: Amounts = _NOTHING) -> None:
        """Count amounts as asked for by pods of a quota, below 0 to take them back."""
        path = self.path(name)
        if path:
            path[0].own_asked.add(every, non_preemptible)
            self._ask(path, every, non_preemptible)

    def use(self, name: str, every: Amounts, non_preemptible: Amounts = _NOTHING) -> None:
        """Count amounts as used by pods of a quota, below 0 to take them back."""
        path = self.path(name)
        if path:
            path[0].own_used.add(every, non_preemptible)
            self._use(path, every, non_preemptible)
            self._allocate(path, masked(every, self.resources))

    def _ask(self, path: Iterable[Quota], every: Amounts, non_preemptible: Amounts) -> None:
        for quota in path:
            before = quota.limited_request
            quota.asked.add(every, non_preemptible)
            if quota.name == ROOT_QUOTA:
                return
            every = subtracted(quota.limited_request, before)
            if any(every.values()):
                self._divided.pop(quota.parent, None)
            elif not any(non_preemptible.values()):
                return

    def _use(self, path: Iterable[Quota], every: Amounts, non_preemptible: Amounts) -> None:
        for quota in path:
            quota.used.add(every, non_preemptible)

    def _allocate(self, path: Iterable[Quota], delta: Amounts) -> None:
        if not self._guarantee:
            return
        for quota in path:
            before = quota.guaranteed
            quota.allocated = without_negatives(added(quota.allocated, delta))
            if quota.name == ROOT_QUOTA:
                return
            quota.guaranteed = at_least(quota.allocated, quota.definition.minimum)
            delta = subtracted(quota.guaranteed, before)
            self._divided.pop(quota.parent, None)

    # Division ----------------------------------------------------------------------------

    @property
    def resources(self) -> frozenset[str]:
        """The resources that some quota's max names; only these are divided."""
        if self._resources is None:
            named: set[str] = set()
            for name, quota in self.quotas.items():
                if name not in _OUTSIDE:
                    named.update(quota.definition.maximum)
            self._resources = frozenset(named)
        return self._resources

    @property
    def available(self) -> ResourceList:
        """The total without what the system and the default quota use."""
        left = self.total
        for name in _OUTSIDE:
            if name in self.quotas:
                left = subtracted(left, self.quotas[name].used.every)
        return left

    def runtime(self, name: str) -> ResourceList | None:
        """Return what a quota may have now, of the resources that its max names.

        Nothing for a quota that does not hang on the root; None for one that does not exist.
        """
        path = self.path(name)
        if not path:
            return None
        if name == ROOT_QUOTA:
            return self.available
        quota = path[0]
        if name in _OUTSIDE:
            return quota.runtime
        if path[-1].name != ROOT_QUOTA:
            return dict.fromkeys(quota.definition.maximum, 0)
        total = self.available
        for ancestor in reversed(path[1:]):
            above = ancestor.definition.name
            if above != ROOT_QUOTA:
                total = ancestor.runtime
            if self._divided.get(above) != total:
                self._divide(above, total)
        return masked(quota.runtime, quota.definition.maximum)

    def children(self, name: str) -> list[Quota]:
        """Return the children of a quota, by name."""
        return [self.quotas[child] for child in sorted(self._children.get(name, ()))]

    def _divide(self, parent: str, total: ResourceList) -> None:
        children = self.children(parent)
        mins: ResourceList = {}
        for child in children:
            mins = added(mins, child.definition.minimum)
        if self.scale_min and any(total.get(name, most) < most for name, most in mins.items()):
            scaled = [scaled_min(one.definition.minimum, total, mins, {}) for one in children]
        else:
            scaled = [child.definition.minimum for child in children]
        for child, minimum in zip(children, scaled, strict=True):
            child.scaled_min, child.runtime = minimum, {}
        if self._guarantee:
            scaled = [at_least(child.scaled_min, child.guaranteed) for child in children]
        names = [child.definition.name for child in children]
        lends = [child.definition.lends for child in children]
        weights = [child.definition.weight for child in children]
        requests = [child.limited_request for child in children]
        for resource in self.resources:
            siblings = Siblings(
                names,
                [one.get(resource, 0) for one in weights],
                [one.get(resource, 0) for one in requests],
                [one.get(resource, 0) for one in scaled],
                lends,
            )
            for child, part in zip(children, divide(siblings, total.get(resource, 0)), strict=True):
                child.runtime[resource] = part
        self._divided[parent] = total

    # Pods --------------------------------------------------------------------------------

    def set_pod(self, name: str, pod: Pod, requests: Amounts | None = None) -> None:
        """Count a pod, or what has changed of it; a pod that has a node uses what it asks for.

        :param requests: its effective requests, if they are known.
        """
        quota = self.quotas.get(name)
        if quota is None:
            return
        known = quota.pods.get(pod.key)
        assigned = bool(pod.spec.node_name) or (known is not None and known.assigned)
        if requests is None:
            requests = pod_requests(pod.spec).effective
        requests = masked(requests, quota.definition.maximum)
        if known is not None:
            same = known.requests == requests
            if same and known.assigned == assigned and known.preemptible == is_preemptible(pod):
                known.pod = pod
                return
            self.remove_pod(name, pod)
        self._count(quota, CountedPod(pod, requests, is_preemptible(pod)), assigned)

    def remove_pod(self, name: str, pod: Pod) -> None:
        """No longer count a pod, if the quota counts it."""
        quota = self.quotas.get(name)
        if quota is None or pod.key not in quota.pods:
            return
        self.assign(name, pod, assigned=False)
        counted = quota.pods.pop(pod.key)
        self.ask(name, *_signed(counted, -1))

    def assign(self, name: str, pod: Pod, assigned: bool = True) -> None:
        """Count a pod as one that has a node, or no longer; nothing for a pod of another quota."""
        quota = self.quotas.get(name)
        counted = quota.pods.get(pod.key) if quota is not None else None
        if counted is not None and counted.assigned != assigned:
            counted.assigned = assigned
            self.use(name, *_signed(counted, 1 if assigned else -1))

    def suppose(self, name: str, pod: Pod, times: int) -> None:
        """Count what a pod of a quota requests so many times more as used, or fewer below 0."""
        quota = self.quotas.get(name)
        counted = quota.pods.get(pod.key) if quota is not None else None
        if counted is not None:
            self.use(name, *_signed(counted, times))

    def _count(self, quota: Quota, counted: CountedPod, assigned: bool) -> None:
        quota.pods[counted.pod.key] = counted
        self.ask(quota.name, *_signed(counted, 1))
        if assigned:
            self.assign(quota.name, counted.pod)


def _signed(counted: CountedPod, sign: int) -> tuple[ResourceList, ResourceList]:
    every = {name: sign * amount for name, amount in counted.requests.items()}
    return every, {} if counted.preemptible else every


def parents_first(definitions: Mapping[str, QuotaDefinition]) -> Sequence[QuotaDefinition]:
    """Return definitions so that each comes after its parent, as far as they are in no cycle."""
    ordered: dict[str, QuotaDefinition] = {}
    for definition in definitions.values():
        chain: dict[str, QuotaDefinition] = {}
        current: QuotaDefinition | None = definition
        while current is not None and current.name not in chain and current.name not in ordered:
            chain[current.name] = current
            current = definitions.get(current.parent)
        ordered |= dict(reversed(chain.items()))
    return list(ordered.values())
