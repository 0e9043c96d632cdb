"""Faults in virtual time: what fails, what becomes of jobs, and what it costs."""

from __future__ import annotations

from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.scheduler.scheduler import Scheduler
from bayplan.simulation.broken_parts import BrokenParts
from bayplan.simulation.fault_injector import FaultInjector
from bayplan.simulation.faults import Faults
from bayplan.simulation.goodput import Goodput, GoodputReport
from bayplan.simulation.job_progress import JobProgress
from bayplan.snapshot.kept_nodes import KeptNodes

__all__ = ["FaultPlay"]

_FLUSH_AFTER = 6 * 3600.0


class FaultPlay:
    """Lets parts of a cluster fail, and follows what becomes of its jobs.

    :param seed: what the times of faults follow from.
    """

    def __init__(
        self,
        cluster: MemoryCluster,
        scheduler: Scheduler,
        kubelet: VirtualKubelet,
        faults: Faults,
        seed: int,
    ) -> None:
        # A job ends when all of its work is done, not so long after each pod started.
        kubelet.ends_pods = False
        # Virtual time loses no event: over weeks, tries without one would only cost time.
        scheduler.queue.flush_after = _FLUSH_AFTER
        progress = JobProgress(cluster, scheduler, faults, kubelet.finish)
        kept = KeptNodes.of(scheduler.snapshot)
        self._goodput = Goodput(cluster, progress, lambda: kept.now().keys())
        parts = BrokenParts(cluster, scheduler.snapshot, progress.hit)
        self._injector = FaultInjector(cluster, scheduler.snapshot, faults, seed, parts)

    def check(self) -> None:
        """Check that there is what the rules name, once the cluster is there.

        :raises InputError: naming the rule.
        """
        self._injector.check()

    def idle_rules(self) -> list[str]:
        """Return, in words, the rules by which nothing could fail up to now."""
        return self._injector.idle_rules()

    def look(self) -> None:
        """Take in an instant, when nothing is left to do at it."""
        self._goodput.look()
        self._injector.look()

    @property
    def is_busy(self) -> bool:
        """Whether any job holds GPUs."""
        return self._goodput.is_busy

    def report(self) -> GoodputReport:
        """Return what became of all GPU hours up to now."""
        return self._goodput.report(dict(sorted(self._injector.counts.items())))
