"""The policies of all systems, each active while the cluster has queues of its system."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bayplan import Args, Handle, PodInfo
from bayplan.api import ApiObject
from bayplan.dialects.koordinator.elastic_quota import KoordinatorQueueArgs
from bayplan_plugins.queues.isolation import alone
from bayplan_plugins.queues.kai.args import KaiQueueArgs
from bayplan_plugins.queues.kai.policy import KaiPolicy
from bayplan_plugins.queues.koordinator.policy import KoordinatorPolicy
from bayplan_plugins.queues.kueue.policy import KueueArgs, KueuePolicy
from bayplan_plugins.queues.plain.policy import PlainArgs
from bayplan_plugins.queues.plain.pools import PoolArgs, PoolPolicy
from bayplan_plugins.queues.plain.sources import config_map_queues, namespace_queues
from bayplan_plugins.queues.policy import AssignsNodes, KeepsOffNodes, MayLeaveAdmission, Policy
from bayplan_plugins.queues.volcano.configuration import VolcanoArgs
from bayplan_plugins.queues.volcano.policy import VolcanoPolicy

__all__ = ["Policies", "QueuesArgs"]


class QueuesArgs(Args):
    """Arguments of Queues: those of each system's policy.

    Namespaces with a ResourceQuota are queues only where ``namespaces`` is given. With ``kueue:
    null`` admission is left to Kueue's own controllers.
    """

    volcano: VolcanoArgs = VolcanoArgs()
    kai: KaiQueueArgs = KaiQueueArgs()
    koordinator: KoordinatorQueueArgs = KoordinatorQueueArgs()
    kueue: KueueArgs | None = KueueArgs()
    configmap: PlainArgs = PlainArgs()
    pools: PoolArgs = PoolArgs()
    namespaces: PlainArgs | None = None


class Policies:
    """The policies of all systems, and which of them have any queue now.

    ``actions`` are the ways to preempt of all of them, in order.
    """

    def __init__(self, args: QueuesArgs, handle: Handle) -> None:
        self._handle = handle
        self._snapshot = handle.snapshot
        self._all: Sequence[Policy] = _make_policies(args, handle)
        self.own = [one for one in self._all if not _is_of_another(one, handle)]
        """Those that act for this profile's plugin; admission to a cluster's queues is one."""
        self.actions = tuple(dict.fromkeys(name for one in self._all for name in one.actions))
        self._assigning = [one for one in self._all if isinstance(one, AssignsNodes)]
        self._keeping = [one for one in self._all if isinstance(one, KeepsOffNodes)]
        self._leaving = [one for one in self._all if isinstance(one, MayLeaveAdmission)]
        self._seen = -1
        self._active: Sequence[Policy] = ()
        self.keeping_off_nodes: Sequence[KeepsOffNodes] = ()
        """Those with queues that keep pods off some nodes."""
        self.assigning_nodes: Sequence[AssignsNodes] = ()
        """Those with queues that assign jobs to a part of the nodes."""
        for one in self._leaving:
            one.on_turn(self._forget)
        self._were_any = self.are_any
        for kind in {kind for one in self._all for kind in one.ledger.kinds}:
            handle.snapshot.on_object(kind, self._objects_changed)

    def __iter__(self) -> Iterator[Policy]:
        return iter(self._all)

    def declare_metrics(self) -> None:
        """Create the metrics of the policies that have their own."""
        for one in self.own:
            if isinstance(one, KueuePolicy):
                one.counts.declare()

    def _forget(self) -> None:
        """Find the active ones again: a first queue came, or somebody else decides now."""
        self._seen, self._were_any = -1, self.are_any
        self._active = self.keeping_off_nodes = self.assigning_nodes = ()
        self._handle.concerns_changed()

    def _objects_changed(self, old: ApiObject | None, new: ApiObject | None) -> None:
        """Ask again which pods this concerns, as the first queue came or the last one went."""
        if (old is None or new is None) and self.are_any != self._were_any:
            self._forget()

    @property
    def are_any(self) -> bool:
        """Whether a system may have queues: its objects are there, or it acts without any."""
        return any(one.ledger.is_used or one.active for one in self._all)

    @property
    def active(self) -> Sequence[Policy]:
        """The policies of the systems that have any queue; found again when objects change."""
        if not self._were_any:
            return ()
        version = self._snapshot.objects_version
        if version != self._seen:
            self._seen = version
            self._active = [policy for policy in self._all if policy.active]
            self.keeping_off_nodes = [one for one in self._keeping if one.active]
            self.assigning_nodes = [one for one in self._assigning if one.active]
        return self._active

    def shown(self) -> Iterator[Policy]:
        """Yield the policies of the systems that have any queue, whoever decides on them."""
        yield from self.active
        for policy in self._leaving:
            if policy.has_queues and policy.left_to:
                yield policy

    def look(self) -> bool:
        """Look who decides on queues of systems with own controllers; tell whether that changed."""
        changed = False
        for policy in self._leaving:
            if policy in self.own:
                with alone("a look at who admits"):
                    changed |= policy.look()
        return changed

    def claims(self, pod: PodInfo) -> list[tuple[Policy, str]]:
        """Return the policies whose system gives the pod a queue, with the queue."""
        found = []
        for policy in self.active:
            queue = policy.queue_of(pod)
            if queue is not None:
                found.append((policy, queue))
        return found

    def of(self, pod: PodInfo) -> tuple[Policy, str] | None:
        """Return the pod's policy and queue, None without a queue or with two."""
        if not self._were_any:
            # Asked several times for each pod.
            return None
        claims = self.claims(pod)
        return claims[0] if len(claims) == 1 else None


def _kueue(args: QueuesArgs, handle: Handle) -> KueuePolicy:
    """Return the one admission to Kueue's queues, which all profiles share."""
    found = handle.snapshot.shared(KueuePolicy, lambda _: KueuePolicy(args.kueue, handle))
    found.join(handle)
    return found


def _is_of_another(policy: Policy, handle: Handle) -> bool:
    """Tell whether the plugin of another profile lets a policy act."""
    return isinstance(policy, KueuePolicy) and policy.handle is not handle


def _make_policies(args: QueuesArgs, handle: Handle) -> list[Policy]:
    """Return the policies of all systems."""
    policies: list[Policy] = [
        VolcanoPolicy(args.volcano, handle),
        KaiPolicy(args.kai, handle),
        KoordinatorPolicy(args.koordinator, handle),
        config_map_queues(args.configmap, handle),
        PoolPolicy(args.pools, handle),
        _kueue(args, handle),
    ]
    if args.namespaces is not None:
        policies.append(namespace_queues(args.namespaces, handle))
    return policies
