"""Volcano's plugins that admit jobs: overcommit, resourcequota and sla."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bayplan import Overdue, PodInfo
from bayplan.api import Quantity, ResourceQuota
from bayplan.dialects.reading import share
from bayplan.inputs.durations import parse_duration
from bayplan.queues.tree import EPSILON, AmountRows
from bayplan_plugins.queues.volcano.admitted_amounts import Inqueue
from bayplan_plugins.queues.volcano.jobs import Job
from bayplan_plugins.queues.volcano.plugins.base import Enqueue, VolcanoPlugin
from bayplan_plugins.queues.volcano.session import Session
from bayplan_plugins.queues.volcano.waiting_groups import waits

__all__ = ["Overcommit", "ServiceLevel"]

_FACTOR = 1.2
_REQUESTS = "requests."
_WAITING_TIME = "sla-waiting-time"
_ANNOTATIONS = (f"volcano.sh/{_WAITING_TIME}", _WAITING_TIME)


class Overcommit(VolcanoPlugin):
    """Admits jobs while the cluster, overcommitted by a factor, has room for them."""

    admits_kinds = True

    def __init__(self, session: Session, arguments: Mapping[str, Any], hierarchical: bool) -> None:
        super().__init__(session, arguments, hierarchical)
        factor = float(arguments.get("overcommit-factor", _FACTOR))
        self._factor = factor if factor >= 1.0 else _FACTOR

    def enqueueable(
        self, job: Job, row: int, least: AmountRows | None, inqueue: Inqueue
    ) -> Enqueue:
        """Admit what fits the cluster, and what the queue may reclaim from others.

        Volcano admits only what fits, so that a full cluster hides jobs from reclaim.
        """
        if least is None:
            return True
        session = self.session
        request = session.wide(least)
        idle = session.total() * self._factor - session.used()
        beyond = session.wide(inqueue.owed) + request > idle + EPSILON
        lacking = session.counts(request) & beyond
        if not lacking.any() or self._is_owed(row, request):
            return True
        names = [session.tree.resources[column] for column in lacking.nonzero()[0].tolist()]
        return f"the cluster is overcommitted: no more {', '.join(names)}"

    def _is_owed(self, row: int, request: AmountRows) -> bool:
        """Tell whether the queue deserves all that a job asks for."""
        tree = self.session.tree
        asked = self.session.counts(request)
        future = tree.used[row] + request
        deserved = self.session.deserved()[row]
        return bool((future[asked] <= deserved[asked] + EPSILON).all())


class NamespaceQuota(VolcanoPlugin):
    """resourcequota: admits jobs that fit the ResourceQuotas of their namespace."""

    admits_kinds = True
    _known: tuple[object, dict[tuple[str, str], float]] = (None, {})

    def enqueueable(
        self, job: Job, row: int, least: AmountRows | None, inqueue: Inqueue
    ) -> Enqueue:
        """Reject a job whose minimum exceeds a quota beside what its namespace has."""
        if least is None:
            return True
        namespace = job.key.partition("/")[0]
        group = self.session.jobs.group(job.key)
        asked = dict(_plain(group.spec.min_resources)) if group is not None else {}
        for quota in self.session.handle.snapshot.objects(ResourceQuota).values():
            spec = quota.spec
            if quota.metadata.namespace != namespace or spec.scopes or spec.scope_selector:
                continue
            for resource, most in _plain(spec.hard):
                amount = asked.get(resource)
                if amount is not None and self._used(namespace, resource) + amount > most + EPSILON:
                    name = quota.metadata.name
                    return f'ResourceQuota "{name}": {resource} is exceeded'
        return True

    def _used(self, namespace: str, resource: str) -> float:
        nodes = self.session.handle.snapshot.nodes
        stamp = (nodes.epoch, nodes.position)
        if self._known[0] != stamp:
            self._known = (stamp, {})
        known = self._known[1]
        if (namespace, resource) not in known:
            known[namespace, resource] = self._summed(namespace, resource)
        return known[namespace, resource]

    def _summed(self, namespace: str, resource: str) -> float:
        placed = self.session.handle.snapshot.placed.values()
        own = (pod for pod, _ in placed if pod.namespace == namespace)
        if resource in ("pods", "count/pods"):
            return float(sum(1 for _ in own))
        return float(sum(pod.requests.get(resource, 0) for pod in own))


def _plain(amounts: Mapping[str, Quantity]) -> Iterator[tuple[str, float]]:
    """Yield amounts by the names that pods use: a quota's ``requests.cpu`` is ``cpu``."""
    for name, quantity in amounts.items():
        plain = name.removeprefix(_REQUESTS)
        yield plain, share({plain: quantity}).of(plain)


class ServiceLevel(VolcanoPlugin):
    """sla: jobs that state how long they wait at most come first, and are admitted by then."""

    def __init__(self, session: Session, arguments: Mapping[str, Any], hierarchical: bool) -> None:
        super().__init__(session, arguments, hierarchical)
        self._waiting_time = _seconds(arguments.get(_WAITING_TIME))
        self._asked = -math.inf

    def victims(self) -> Overdue | None:
        """Evict nobody, but tell when jobs that wait for admission have waited for long enough."""
        handle, jobs = self.session.handle, self.session.jobs
        waiting = (key for key, one in jobs.groups().items() if waits(one))
        found = [self._deadline(jobs.named(key)) for key in waiting]
        before, self._asked = self._asked, handle.unix_time
        times = [at for at in found if at is not None and at > before]
        later = min((at for at in times if at > self._asked), default=None)
        over = any(at <= self._asked for at in times)
        if later is None and not over:
            return None
        again = None if later is None else later - self._asked + handle.now
        return Overdue(again=again, waited=over)

    def job_order(self, job: Job, pods: Iterable[PodInfo]) -> tuple[float, ...]:
        """Order by when a job should have started, jobs without such a time last."""
        deadline = self._deadline(job)
        return (1.0, 0.0) if deadline is None else (0.0, deadline)

    def _deadline(self, job: Job) -> float | None:
        """Return when a job should have started, in seconds since 1970."""
        group = self.session.jobs.group(job.key)
        stated = group.metadata.annotations if group is not None else {}
        own = next((stated[name] for name in _ANNOTATIONS if name in stated), None)
        seconds = _seconds(own) or self._waiting_time
        return None if seconds is None else self.session.jobs.created(job.key) + seconds

    def enqueueable(
        self, job: Job, row: int, least: AmountRows | None, inqueue: Inqueue
    ) -> Enqueue:
        """Admit a job that has waited for long enough."""
        deadline = self._deadline(job)
        if deadline is None or self.session.handle.unix_time < deadline:
            return None
        return True


def _seconds(text: Any) -> float | None:
    """Return a duration above zero, None for none or one that cannot be read."""
    try:
        seconds = parse_duration(str(text)) if text else 0.0
    except ValueError:
        return None
    return seconds if seconds > 0 else None
