"""One module per ecosystem; each turns its labels, annotations and objects into bayplan's words."""

from __future__ import annotations

from bayplan.api import Pod, PodGroup
from bayplan.api.gang import Gang, Membership
from bayplan.dialects import koordinator, kubernetes

__all__ = ["gang_of", "membership_of"]


def membership_of(pod: Pod) -> Membership:
    """Return the pod's gang and rank, as whichever ecosystem's manifest states them."""
    member = koordinator.membership_of(pod)
    if member.rank is None and member.problem is None:
        rank = kubernetes.rank_of(pod)
        if rank is not None:
            return Membership(member.gang, rank)
    return member


def gang_of(group: PodGroup) -> Gang:
    """Return the gang that a PodGroup of scheduling.sigs.k8s.io describes."""
    return koordinator.gang_of(group)
