"""Following pods only once there is a queue: a cluster without Kueue's pays nothing for it."""

from __future__ import annotations

from collections.abc import Callable

from bayplan import PodInfo
from bayplan.api.kueue import ClusterQueue
from bayplan.snapshot import Snapshot, Subscription

__all__ = ["follow_from_first_queue"]


def follow_from_first_queue(
    snapshot: Snapshot, listener: Callable[[PodInfo, bool], None]
) -> Subscription:
    """Call ``listener(pod, added)`` as ``Snapshot.on_living`` does, from the first ClusterQueue on.

    The pods that live then are reported at once. Until then the answer does not listen.
    """
    subscription = snapshot.on_living(listener)
    subscription.listens = bool(snapshot.objects(ClusterQueue))

    def begin(old: ClusterQueue | None, new: ClusterQueue | None) -> None:
        if subscription.listens:
            return
        subscription.listens = True
        for pod in list(snapshot.living.values()):
            listener(pod, True)

    snapshot.on_object(ClusterQueue, begin)
    return subscription
