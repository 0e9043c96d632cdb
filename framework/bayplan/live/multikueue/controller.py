"""Sends the jobs of workloads to other clusters, and brings their statuses back.

It has no state of its own: which cluster has a job stands in its Workload, and a copy names the job
that it is of. So a restart goes on where the last process was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any

import msgspec

from bayplan.api import ApiObject, ClusterQueue, LocalQueue, Pod
from bayplan.api.conditions import set_condition
from bayplan.api.kueue import (
    AdmissionCheck,
    AdmissionCheckState,
    KueueCondition,
    KueueWorkload,
    MultiKueueCluster,
    MultiKueueConfig,
)
from bayplan.api.lease import Lease
from bayplan.api.object_key import object_key
from bayplan.api.objects import decode_object
from bayplan.api.times import rfc3339, seconds_of
from bayplan.cluster.kubernetes.object_cache import ObjectCache
from bayplan.cluster.kubernetes.transport import JSON_PATCH, MERGE_PATCH, Requests
from bayplan.dialects.kueue import MULTI_CLUSTER_CONTROLLER
from bayplan.errors import AlreadyExists, BayplanError, Conflict, NotFound
from bayplan.live.multikueue.forecast import Forecast, forecast
from bayplan.live.multikueue.jobs import (
    ORIGIN,
    ORIGIN_UID,
    Item,
    JobReference,
    has_ended,
    status_of_copy,
    status_without_copy,
)
from bayplan.live.multikueue.quotas import (
    AUTOMATION,
    Automated,
    automated,
    is_automated,
    places,
)
from bayplan.live.multikueue.workers import Copy, Worker, Workers
from bayplan.profiles.loading import ProfileSet

__all__ = ["Controller", "Settings"]

_log = logging.getLogger("bayplan.multikueue")
_MANAGER = {"fieldManager": "bayplan-multikueue"}
_CHOOSING_SECONDS = 5.0
"""Forecasts of one step take no longer: jobs that run elsewhere are looked at meanwhile."""
_LEASE_SECONDS = 60.0
"""After so long without renewal, Kueue's manager is not at work; it renews every two seconds."""


class Settings(msgspec.Struct, frozen=True):
    """How jobs are sent.

    :param origin: the name of this manager, on all copies.
    :param lost_after: after how many seconds without an answer a cluster's jobs go to another one;
        None for never.
    :param again_after: after how many seconds a job that still waits in a cluster may go to another
        one that would start it.
    """

    origin: str = "multikueue"
    lost_after: float | None = 900.0
    again_after: float = 300.0


class _Case(msgspec.Struct, frozen=True):
    """A workload with quota that one of the checks keeps."""

    workload: KueueWorkload
    check: AdmissionCheckState
    config: MultiKueueConfig | None
    job: JobReference | None

    @property
    def chosen(self) -> str:
        """The name of the cluster that has the job, or gets it; "" for none yet."""
        return _chosen(self.workload)

    @property
    def clusters(self) -> Sequence[str]:
        """The names of the clusters that may get it, the preferred first."""
        return self.config.spec.clusters if self.config is not None else ()


class Controller:
    """The controller of ``kueue.x-k8s.io/multikueue`` for one manager cluster.

    :param seen: what is seen of the manager: Workloads, jobs, checks and their parameters.
    :param profiles: those of the schedulers of the other clusters, for forecasts.
    """

    def __init__(
        self,
        transport: Requests,
        seen: ObjectCache,
        workers: Workers,
        profiles: ProfileSet,
        settings: Settings,
    ) -> None:
        self._transport = transport
        self._seen = seen
        self._workers = workers
        self._profiles = profiles
        self._settings = settings
        self._copied: dict[str, str] = {}
        """The version of each copy, by uid of its job, whose status was brought back."""
        self._shown: dict[str, Item] = {}
        """By uid, the pods that have the status of a copy."""
        self._sent: dict[str, dict[str, ApiObject]] = {}
        """By cluster and uid of their originals, copies that are not seen there yet."""
        self._waits_since: dict[str, float] = {}
        """By uids of jobs, since when their copies wait, by the clock of the loop."""
        self._said: dict[str, str] = {}
        self._evictions: dict[str, Mapping[str, str]] = {}
        """By cluster and uid of a copy, why its Workload there was evicted."""

    async def step(self) -> None:
        """Look at everything once, and do what is to be done.

        :raises ClusterError: when the manager cannot be reached.
        """
        if not self._is_in_charge():
            return
        clusters = {one.metadata.name: one for one in self._seen.all(MultiKueueCluster)}
        await self._workers.follow(clusters)
        for cluster in clusters.values():
            await self._state_cluster(cluster)
        checks = await self._checks()
        await self._follow_quotas(checks)
        cases = list(self._cases(checks))
        jobs = [case.job for case in cases if case.job is not None]
        self._forget_seen({item.uid for job in jobs for item in job.items})
        self._evictions = {one.name: one.evictions() for one in self._workers.all()}
        until = asyncio.get_running_loop().time() + _CHOOSING_SECONDS
        for case in sorted(cases, key=lambda case: not case.chosen):
            if case.chosen or asyncio.get_running_loop().time() < until:
                await self._guarded(str(case.job), partial(self._follow, case))
        wanted = set(self._wanted())
        await self._reset_pods({uid for _, uid in wanted})
        for worker in self._workers.all():
            if worker.is_usable:
                await self._remove_others(worker, wanted)

    def _is_in_charge(self) -> bool:
        """Tell whether the manager is seen, and Kueue's own is not at work in it.

        What is not seen would count as gone, and copies of it would be deleted.
        """
        kinds = (KueueWorkload, AdmissionCheck, MultiKueueConfig, MultiKueueCluster)
        unseen = [type_.__name__ for type_ in kinds if not self._seen.follows(type_)]
        why = f"not seen in the manager: {', '.join(unseen)}" if unseen else ""
        now = time.time()
        for lease in self._seen.all(Lease):
            at = lease.spec.renew_time
            if lease.spec.holder_identity and at and seconds_of(at) > now - _LEASE_SECONDS:
                why = "Kueue's manager is at work: it sends its jobs itself"
        if why and self._said.get("") != why:
            _log.warning("%s", why)
        self._said[""] = why
        return not why

    def _wanted(self) -> Iterator[tuple[str, str]]:
        """Yield the cluster and uid of all that is sent, of whatever has quota."""
        for workload in self._seen.all(KueueWorkload):
            job = JobReference.of(workload)
            name = _chosen(workload)
            if job is not None and name and _is_kept(workload):
                yield from ((name, item.uid) for item in job.items)

    def _forget_seen(self, uids: set[str]) -> None:
        """Forget copies that are seen now, and those of jobs that are no longer sent."""
        for name, sent in self._sent.items():
            worker = self._workers.get(name)
            seen = {c.of for c in worker.copies(self._settings.origin)} if worker else set()
            for uid in [uid for uid in sent if uid in seen or uid not in uids]:
                del sent[uid]

    async def _guarded(self, what: str, act: Callable[[], Awaitable[None]]) -> None:
        """Do something about one job; what goes wrong is said once, and concerns no other job."""
        try:
            await act()
            self._said.pop(what, None)
        except Conflict:
            # It has changed: the next step sees how.
            return
        except BayplanError as exc:
            if self._said.get(what) != str(exc):
                self._said[what] = str(exc)
                _log.warning("%s: %s", what, exc)

    # Checks and clusters -----------------------------------------------------------------

    async def _checks(self) -> dict[str, MultiKueueConfig | None]:
        """Return the parameters of this controller's checks; write whether they are active."""
        configs = {one.metadata.name: one for one in self._seen.all(MultiKueueConfig)}
        found = {}
        for check in self._seen.all(AdmissionCheck):
            if check.spec.controller_name != MULTI_CLUSTER_CONTROLLER:
                continue
            name = check.metadata.name
            of = check.spec.parameters
            config = found[name] = configs.get(of.name) if of is not None else None
            usable = [one for one in config.spec.clusters if self._is_usable(one)] if config else []
            new = KueueCondition("Active", "True", "Active", "The admission check is active")
            if config is None:
                text = "its MultiKueueConfig is not there"
                new = KueueCondition("Active", "False", "BadConfig", text)
            elif not usable:
                text = f"no cluster answers: {', '.join(config.spec.clusters)}"
                new = KueueCondition("Active", "False", "NoUsableClusters", text)
            await self._guarded(
                f"AdmissionCheck {name}", partial(self._state, check, check.status.conditions, new)
            )
        return found

    async def _state_cluster(self, cluster: MultiKueueCluster) -> None:
        name = cluster.metadata.name
        problem = self._workers.problems.get(name, "")
        new = KueueCondition(
            "Active",
            "False" if problem else "True",
            "ClientConnectionFailed" if problem else "Active",
            problem or "Connected",
        )
        await self._guarded(
            f"MultiKueueCluster {name}",
            partial(self._state, cluster, cluster.status.conditions, new),
        )

    async def _state(
        self, obj: ApiObject, conditions: Sequence[KueueCondition], new: KueueCondition
    ) -> None:
        """Write a condition, unless the object has it."""
        known = next((one for one in conditions if one.type == new.type), None)
        if known is not None and (known.status, known.message) == (new.status, new.message):
            return
        found = set_condition(conditions, new, time.time(), obj.metadata.generation)
        await self._patch_status(obj, {"conditions": found})

    async def _follow_quotas(self, checks: Mapping[str, MultiKueueConfig | None]) -> None:
        """Give queues the quotas of other clusters where that is configured, and say so."""
        seen = self._seen.follows(ClusterQueue) and self._seen.follows(LocalQueue)
        if not seen or any(worker.is_being_listed for worker in self._workers.all()):
            # What is not known yet would count as none.
            return
        of_queues = places(self._seen.all(LocalQueue))
        for queue in self._seen.all(ClusterQueue):
            named = (one.name for one in queue.spec.admission_checks_strategy.admission_checks)
            check = next((name for name in named if name in checks), None)
            wanted = Automated()
            if check is not None:
                local_queues = of_queues.get(queue.metadata.name, set())
                wanted = self._automated(queue, checks[check], local_queues)
            what = f"quotas of ClusterQueue {queue.metadata.name}"
            await self._guarded(what, partial(self._set_quotas, queue, wanted))

    def _automated(
        self, queue: ClusterQueue, config: MultiKueueConfig | None, local_queues: Set[str]
    ) -> Automated:
        names = config.spec.clusters if config is not None and is_automated(config) else ()
        workers = (worker for name in names if (worker := self._workers.get(name)) is not None)
        quotas = [one.nominal_quotas(local_queues) for one in workers if one.is_usable]
        return automated(queue, config, quotas)

    async def _set_quotas(self, queue: ClusterQueue, wanted: Automated) -> None:
        if wanted.resources is not None:
            where = "/spec/resourceGroups/0/flavors/0/resources"
            # A replaced version is a Conflict where it is another one by now; a test is Invalid.
            version = {"op": "replace", "path": "/metadata/resourceVersion"}
            body = [
                {**version, "value": queue.metadata.resource_version},
                {"op": "replace", "path": where, "value": wanted.resources},
            ]
            plain = msgspec.to_builtins(body, enc_hook=lambda quantity: quantity.text)
            path = self._path_of(queue)
            data = json.dumps(plain).encode()
            await self._transport.request("PATCH", path, data, JSON_PATCH, _MANAGER)
            # It has another version now: the next step says so.
            return
        conditions = queue.status.conditions
        if wanted.condition is not None:
            await self._state(queue, conditions, wanted.condition)
        elif any(one.type == AUTOMATION for one in conditions):
            others = [one for one in conditions if one.type != AUTOMATION]
            await self._patch_status(queue, {"conditions": others})

    def _is_usable(self, name: str) -> bool:
        worker = self._workers.get(name)
        return worker is not None and worker.is_usable

    # Workloads ---------------------------------------------------------------------------

    def _cases(self, checks: Mapping[str, MultiKueueConfig | None]) -> Iterator[_Case]:
        for workload in self._seen.all(KueueWorkload):
            check = next((c for c in workload.status.admission_checks if c.name in checks), None)
            if check is not None and _is_kept(workload):
                yield _Case(workload, check, checks[check.name], JobReference.of(workload))

    async def _follow(self, case: _Case) -> None:
        """Bring one workload a step on."""
        if case.check.state in ("Retry", "Rejected"):
            return
        if case.job is None:
            await self._report(case, "Rejected", "no job of this kind can run in another cluster")
            return
        if not case.chosen:
            await self._choose(case, case.job)
            return
        worker = self._workers.get(case.chosen)
        if worker is None or case.chosen not in case.clusters:
            await self._report(case, "Retry", f'"{case.chosen}" is not of the check any more')
        elif worker.lost_since is not None:
            await self._await(case, worker, worker.lost_since)
        elif worker.is_usable and worker.sees(case.job):
            await self._follow_copy(case, case.job, worker)

    async def _await(self, case: _Case, worker: Worker, since: float) -> None:
        """Wait for a cluster that does not answer, for as long as that is configured."""
        after = self._settings.lost_after
        if after is not None and asyncio.get_running_loop().time() - since >= after:
            text = f'"{worker.name}" has not answered for {after:.0f} s'
            await self._report(case, "Retry", text)
            _log.warning("%s: %s: it goes to another cluster", case.job, text)

    async def _follow_copy(self, case: _Case, job: JobReference, worker: Worker) -> None:
        copies = {item: worker.get(item) for item in job.items}
        for item, copy in copies.items():
            if copy is not None and copy.metadata.annotations.get(ORIGIN_UID) != item.uid:
                if copy.metadata.labels.get(ORIGIN) != self._settings.origin:
                    text = f'"{worker.name}" has another {item}'
                    await self._report(case, "Rejected", text)
                return
        there = {item: copy for item, copy in copies.items() if copy is not None}
        lost = self._why_lost(case, job, worker, there)
        if lost:
            await self._report(case, "Retry", lost)
            _log.info("%s: %s", job, lost)
            return
        missing = [item for item in copies if item not in there]
        if missing and await self._send(job, worker, missing):
            return
        if case.check.state != "Ready" and job.waits_there(map(_plain, there.values())):
            await self._reconsider(case, job, worker, there)
        elif there:
            await self._run(case, job, worker, there)

    def _why_lost(
        self,
        case: _Case,
        job: JobReference,
        worker: Worker,
        there: Mapping[Item, ApiObject],
    ) -> str:
        """Return why a job that was admitted in a cluster has lost its place there; "" if not.

        It waits for quota here again, as in Kueue.
        """
        if case.check.state != "Ready":
            return ""
        if not there:
            return f'the job is gone from "{worker.name}"'
        evictions = self._evictions.get(worker.name, {})
        uids = (copy.metadata.uid for copy in there.values())
        why = next((evictions[uid] for uid in uids if uid in evictions), "")
        stopped = job.row is not None and job.waits_there(map(_plain, there.values()))
        if not why and not stopped:
            return ""
        return f'evicted in "{worker.name}": {why or "it was suspended there"}'

    async def _choose(self, case: _Case, job: JobReference) -> None:
        """Choose the cluster where the job starts first and evicts least."""
        contents = await self._contents(job)
        if not job.is_managed(contents):
            path = job.row.managed_by if job.row is not None else ""
            text = f'set {path} to "{MULTI_CLUSTER_CONTROLLER}"'
            await self._report(case, "Rejected", f"its pods would be made here, too: {text}")
            return
        if job.row is None and any(status_without_copy(one, "") for one in contents):
            # Between two clusters it may be wanted at every step, and a process before this one
            # may have brought the statuses back.
            for item in job.items:
                await self._reset(item)
        workers = [worker for name in case.clusters if (worker := self._workers.get(name))]
        if not job.waits(contents) or any(one.is_being_listed for one in workers):
            return
        found = await self._forecasts(case, job, contents)
        if not found:
            names = ", ".join(case.clusters) or "none"
            await self._report(case, "Pending", f"no cluster answers: {names}")
            return
        await self._nominate(case, job, found, contents)

    async def _nominate(
        self,
        case: _Case,
        job: JobReference,
        found: Sequence[Forecast],
        contents: Sequence[Mapping[str, Any]],
    ) -> None:
        best = min(found, key=lambda one: one.order)
        text = "; ".join(map(str, sorted(found, key=lambda one: one is not best)))
        _log.info("%s: %s", job, text)
        self._waits_since.pop(job.uid, None)
        await self._report(case, "Pending", f"sent to {text}", nominated=(best.cluster,))
        made = self._made(job, contents)
        uids = (one["metadata"]["uid"] for one in contents)
        self._sent.setdefault(best.cluster, {}).update(zip(uids, made, strict=True))

    def _made(self, job: JobReference, contents: Sequence[Mapping[str, Any]]) -> list[ApiObject]:
        """Return the copies of a job, as a forecast needs them."""
        copies = job.copies_of(contents, self._settings.origin)
        return [decode_object(job.kind, one) for one in copies]

    async def _forecasts(
        self, case: _Case, job: JobReference, contents: Sequence[Mapping[str, Any]]
    ) -> list[Forecast]:
        """Return what the usable clusters would do, in the order of the configuration."""
        made = self._made(job, contents)
        own = {item.uid for item in job.items}
        found = []
        for name in case.clusters:
            worker = self._workers.get(name)
            if worker is not None and worker.is_usable:
                objects = [one for one in worker.objects() if not any(_is(one, m) for m in made)]
                objects += [o for uid, o in self._sent.get(name, {}).items() if uid not in own]
                run = partial(forecast, name, objects, made, self._profiles)
                found.append(await asyncio.to_thread(run))
        return found

    async def _reconsider(
        self, case: _Case, job: JobReference, worker: Worker, there: Mapping[Item, ApiObject]
    ) -> None:
        """Let a job that waits in a cluster go to one that would start it now."""
        now = asyncio.get_running_loop().time()
        since = self._waits_since.setdefault(job.uid, now)
        if now - since < self._settings.again_after:
            return
        self._waits_since[job.uid] = now
        contents = await self._contents(job)
        found = await self._forecasts(case, job, contents)
        best = min(found, key=lambda one: one.order, default=None)
        own = next((one for one in found if one.cluster == worker.name), None)
        if best is None or best is own or best.starts is None:
            return
        if own is not None and own.starts is not None:
            return
        # If it has started meanwhile it has changed, and stays.
        for item, copy in there.items():
            await worker.delete(Copy(item.kind, copy, item.uid), unchanged=True)
        await self._nominate(case, job, found, contents)

    async def _send(self, job: JobReference, worker: Worker, items: Sequence[Item]) -> bool:
        """Create the copies that are not there; tell whether there were any to create."""
        contents = [one for one in await self._contents(job) if not has_ended(one)]
        if not job.waits(contents):
            return False
        missing = {item.uid: item for item in items}
        sent = False
        for content in job.copies_of(contents, self._settings.origin):
            item = missing.get(content["metadata"]["annotations"][ORIGIN_UID])
            if item is None:
                continue
            sent = True
            try:
                await worker.create(item, content)
            except AlreadyExists:
                continue
            _log.info("%s: created in %s", item, worker.name)
        return sent

    async def _run(
        self, case: _Case, job: JobReference, worker: Worker, there: Mapping[Item, ApiObject]
    ) -> None:
        """Admit a job that runs in a cluster, and bring its status back."""
        self._waits_since.pop(job.uid, None)
        if case.check.state != "Ready" or not case.workload.status.cluster_name:
            text = f'The workload got reservation on "{worker.name}"'
            await self._report(case, "Ready", text, cluster=worker.name)
            return
        for item, copy in there.items():
            if copy.metadata.deletion_timestamp is not None:
                # What becomes of it while it is deleted is nobody's result.
                continue
            if self._copied.get(item.uid) != copy.metadata.resource_version:
                await self._bring_back(job, item, worker)

    async def _bring_back(self, job: JobReference, item: Item, worker: Worker) -> None:
        """Bring the status of a copy back."""
        here = await self._content(item)
        if here is None or (job.row is not None and job.waits([here])):
            return
        answer = await worker.transport.request("GET", worker.path(item.kind, item.key))
        there = json.loads(answer)
        status = status_of_copy(there, here)
        if status is not None:
            await self._set_status(item, status)
        if job.row is None:
            self._shown[item.uid] = item
        self._copied[item.uid] = there["metadata"]["resourceVersion"]

    async def _reset_pods(self, wanted: Set[str]) -> None:
        """Have pods say that they wait again, whose workload has lost its cluster or its quota.

        :param wanted: the uids of all that is sent.
        """
        for uid, item in list(self._shown.items()):
            if uid not in wanted:
                await self._guarded(f"status of {item}", partial(self._reset, item))
                self._shown.pop(uid, None)
                self._copied.pop(uid, None)

    async def _reset(self, item: Item) -> None:
        here = await self._content(item)
        status = status_without_copy(here, rfc3339(time.time())) if here is not None else None
        if status is not None:
            await self._set_status(item, status)

    async def _set_status(self, item: Item, status: Mapping[str, Any]) -> None:
        body = json.dumps([{"op": "add", "path": "/status", "value": status}]).encode()
        path = f"{self._path(item)}/status"
        await self._transport.request("PATCH", path, body, JSON_PATCH, _MANAGER)

    async def _remove_others(self, worker: Worker, wanted: set[tuple[str, str]]) -> None:
        """Delete copies that their jobs no longer need."""
        for copy in worker.copies(self._settings.origin):
            deleted = copy.obj.metadata.deletion_timestamp is not None
            if (worker.name, copy.of) not in wanted and not deleted:
                key = f"{copy.obj.metadata.namespace}/{copy.obj.metadata.name}"
                _log.info("%s/%s: deleted in %s", copy.kind.name.lower(), key, worker.name)
                await self._guarded(f"{worker.name} {key}", partial(worker.delete, copy))
                self._copied.pop(copy.of, None)

    # Requests ----------------------------------------------------------------------------

    async def _report(
        self,
        case: _Case,
        state: Any,
        message: str,
        nominated: Sequence[str] = (),
        cluster: str = "",
    ) -> None:
        """Write the state of a check, and where the job is.

        :param nominated: the cluster that gets the job; :param cluster: the one that runs it.
        """
        workload, known = case.workload, case.check
        same = (known.state, known.message) == (state, message)
        if same and not nominated and not cluster:
            return
        new = msgspec.structs.replace(
            known, state=state, message=message, last_transition_time=rfc3339(time.time())
        )
        checks = [new if one.name == new.name else one for one in workload.status.admission_checks]
        fields: dict[str, Any] = {"admissionChecks": checks}
        if cluster:
            fields |= {"clusterName": cluster, "nominatedClusterNames": None}
        elif nominated:
            fields |= {"nominatedClusterNames": list(nominated)}
        await self._patch_status(workload, fields)

    async def _patch_status(self, obj: ApiObject, fields: Mapping[str, Any]) -> None:
        """Write fields of a status, if the object is still as it was seen."""
        meta = obj.metadata
        plain = msgspec.to_builtins(
            {"metadata": {"resourceVersion": meta.resource_version}, "status": fields},
            enc_hook=lambda quantity: quantity.text,
        )
        body = json.dumps(plain).encode()
        path = f"{self._path_of(obj)}/status"
        await self._transport.request("PATCH", path, body, MERGE_PATCH, _MANAGER)

    def _path_of(self, obj: ApiObject) -> str:
        resource = self._seen.resource_of(type(obj))
        if resource is None:
            raise NotFound(f"the manager has no kind {type(obj).__name__}")
        return resource.path(object_key(obj))

    def _path(self, item: Item) -> str:
        if item.kind.type is Pod:
            # There are many, of which few are sent: they are not followed.
            namespace, _, name = item.key.partition("/")
            return f"/api/v1/namespaces/{namespace}/pods/{name}"
        resource = self._seen.resource_of(item.kind.type)
        if resource is None:
            raise NotFound(f"the manager has no kind {item.kind.name}")
        return resource.path(item.key)

    async def _contents(self, job: JobReference) -> list[dict[str, Any]]:
        """Return all that is sent of a job as JSON.

        :raises NotFound: when nothing of it is there.
        """
        found = [one for item in job.items if (one := await self._content(item)) is not None]
        if not found:
            raise NotFound(f"{job} is gone")
        return found

    async def _content(self, item: Item) -> dict[str, Any] | None:
        """Return an object as JSON; None where it is gone, or another one has its name."""
        try:
            answer = await self._transport.request("GET", self._path(item))
        except NotFound:
            return None
        content: dict[str, Any] = json.loads(answer)
        return content if content["metadata"]["uid"] == item.uid else None


def _chosen(workload: KueueWorkload) -> str:
    """Return the name of the cluster that has a workload's job, or gets it; "" for none yet."""
    status = workload.status
    return status.cluster_name or next(iter(status.nominated_cluster_names), "")


def _is_kept(workload: KueueWorkload) -> bool:
    """Tell whether a workload has quota, and goes on."""
    stated = {one.type for one in workload.status.conditions if one.status == "True"}
    return "QuotaReserved" in stated and stated.isdisjoint(("Evicted", "Finished"))


def _is(obj: ApiObject, other: ApiObject) -> bool:
    """Tell whether two objects have one kind and name."""
    mine, its = obj.metadata, other.metadata
    return type(obj) is type(other) and (mine.namespace, mine.name) == (its.namespace, its.name)


def _plain(obj: ApiObject) -> Mapping[str, Any]:
    """Return an object as JSON."""
    found: Mapping[str, Any] = msgspec.to_builtins(obj, enc_hook=str)
    return found
