"""Schedulers that die: from then on they hear of nothing."""

from __future__ import annotations

from functools import partial

from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchHandler
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["silence"]


def silence(cluster: MemoryCluster, scheduler: Scheduler) -> None:
    """Let a scheduler hear of nothing any more; one that does not already stays as it is."""

    def is_its_own(watcher: WatchHandler) -> bool:
        handler = watcher.args[0] if isinstance(watcher, partial) else watcher
        return getattr(handler, "__self__", None) is scheduler

    watchers = cluster._watchers
    watchers[:] = [one for one in watchers if not is_its_own(one)]
