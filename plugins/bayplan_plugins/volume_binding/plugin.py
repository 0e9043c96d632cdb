"""VolumeBinding: a pod runs where its volumes can be reached, or bound and provisioned.

Filter keeps nodes that reach the bound volumes and have volumes, or can get them, for the other
claims; Reserve decides which, so that no two pods get the same one; PreBind writes the decision and
waits until the claims are bound.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from pydantic import Field

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    Handle,
    NodeRow,
    NodeView,
    Plugin,
    PodInfo,
    Preparation,
    Reads,
    Reject,
    Remedy,
    hookimpl,
)
from bayplan.api.volumes import SELECTED_NODE
from bayplan.cluster.protocol import BindVolume, SelectNode, Write
from bayplan_plugins.volume_binding.advice import advice, wrong_claims
from bayplan_plugins.volume_binding.binding import ClaimBinding
from bayplan_plugins.volume_binding.finder import VolumeFinder
from bayplan_plugins.volume_binding.ledger import VolumeChoice, VolumeLedger

__all__ = ["VolumeBinding", "VolumeBindingArgs"]


class VolumeBindingArgs(Args):
    """Arguments of VolumeBinding: how many seconds claims may take to be bound."""

    bind_timeout_seconds: int = Field(default=600, ge=0)


class VolumeBinding(Plugin[VolumeBindingArgs]):
    """Refuse nodes that cannot reach or get the pod's volumes, and bind its claims."""

    Args = VolumeBindingArgs
    reads = Reads.NODE | Reads.PODS
    requeue_on = (
        ClusterEvent.NODE_ADDED
        | ClusterEvent.NODE_LABELS
        | ClusterEvent.POD_REMOVED
        | ClusterEvent.OBJECT_CHANGED
    )

    def __init__(self, args: VolumeBindingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ledger = handle.snapshot.shared(VolumeLedger, VolumeLedger)
        self._finder = VolumeFinder(handle.snapshot, self._ledger)

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods with volumes that are claims."""
        return pod.facts.uses_claims

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by where the bound volumes are, and by what the other claims need."""
        if not pod.facts.uses_claims:
            return None
        return self._finder.key(self._finder.volumes_of(pod))

    @hookimpl
    def requeue_hint(self, pod: PodInfo, event: ClusterEvent, subject: PodInfo | None) -> bool:
        """Removed pods help if they used claims; objects, unless the claims' problem remains."""
        if event is ClusterEvent.POD_REMOVED and subject is not None:
            return subject.facts.uses_claims
        alone = event is ClusterEvent.OBJECT_CHANGED and pod.gang is None
        return not (alone and self._finder.volumes_of(pod).problem)

    # Which nodes -----------------------------------------------------------------------------

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods without claims; refuse those whose claims no node can serve."""
        if not pod.facts.uses_claims:
            return SKIP
        return self._finder.volumes_of(pod).problem or None

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes that do not reach the volumes, or that have none for the open claims."""
        for reason, mask in self._finder.refused(self._finder.volumes_of(pod)):
            yield Reject(nodes.pick(mask), reason, resolvable=False)

    # On the node -----------------------------------------------------------------------------

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow) -> str | None:
        """Decide which volumes the pod's claims get."""
        if not pod.facts.uses_claims:
            return None
        volumes = self._finder.volumes_of(pod)
        choices = volumes.problem or self._finder.choose(volumes, node.row)
        if isinstance(choices, str):
            return choices
        self._ledger.take(pod, choices)
        return None

    @hookimpl
    def unreserve(self, pod: PodInfo) -> None:
        """Release volumes that are not written yet; as in Kubernetes, the others stay."""
        if pod.facts.uses_claims:
            self._ledger.leave(pod)

    @hookimpl
    def pre_bind(self, pod: PodInfo, node: NodeRow) -> Preparation | None:
        """Write the decision, and wait until all claims are bound."""
        if not pod.facts.uses_claims:
            return None
        choices = self._ledger.choices(pod)
        if not choices:
            return None
        binding = ClaimBinding(self.handle.snapshot, self._finder, node.name, choices)
        writes = [write for choice in choices for write in _writes(choice)]
        return Preparation(
            writes,
            binding.is_complete,
            float(self.args.bind_timeout_seconds),
            follows=binding.follows,
        )

    @hookimpl
    def post_bind(self, pod: PodInfo) -> None:
        """Drop the decision: the API shows it now."""
        if pod.facts.uses_claims:
            self._ledger.leave(pod)

    # Why not ---------------------------------------------------------------------------------

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Suggest the volume that a node would have to reach or get."""
        volumes = self._finder.volumes_of(pod)
        if volumes.problem:
            return wrong_claims(pod, self.handle.snapshot)
        return advice(self._finder, volumes, nodes)


def _writes(choice: VolumeChoice) -> Iterator[Write]:
    claim = choice.claim
    if choice.volume:
        yield BindVolume(choice.volume, claim.key, claim.metadata.uid)
    elif claim.metadata.annotations.get(SELECTED_NODE) != choice.node:
        yield SelectNode(claim.key, claim.metadata.uid, choice.node)
