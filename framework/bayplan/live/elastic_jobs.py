"""Runs ElasticJobs on a cluster: an indexed Job of the same name makes the pods of each.

The Job controller replaces what fails, and adds or removes the last indexes when the number of
replicas changes. A headless service gives the replicas their names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from bayplan.api import AiElasticJob, ApiObject, ElasticJob, Job, PriorityClass
from bayplan.api.meta import Condition
from bayplan.api.object_key import object_key
from bayplan.api.pools import ElasticJobStatus
from bayplan.cluster.kubernetes.resources import WatchedResource
from bayplan.cluster.kubernetes.transport import MERGE_PATCH, Requests
from bayplan.cluster.protocol import Event
from bayplan.dialects.elastic_job import (
    job_content,
    priority_class,
    priority_without_class,
    service_content,
    wanted,
)
from bayplan.errors import AlreadyExists, ClusterError, NotFound
from bayplan.snapshot import Snapshot

__all__ = ["ElasticJobs"]

_log = logging.getLogger("bayplan.live")
_RETRY_SECONDS = 5.0
_STANDBY_SECONDS = 1.0
_KINDS: tuple[type[ElasticJob], ...] = (ElasticJob, AiElasticJob)
_JOB_MADE = "JobMade"
"""The condition of elastic jobs whose pods a Job makes."""
_Place = tuple[type[ElasticJob], str]


class SeenObjects(Protocol):
    """The objects as they were last seen."""

    def get(self, type_: type[Any], key: str) -> Any:
        """Return an object, None when there is none."""

    def all(self, type_: type[Any]) -> Iterable[Any]:
        """Return all objects of a type."""

    def resource_of(self, type_: type[ApiObject]) -> WatchedResource | None:
        """Return where objects of a type are in the API, None for a type that is not watched."""


class ElasticJobs:
    """Keeps the Job of each elastic job, and the status of the latter, in step.

    :param leads: whether this process may write.
    :param tell: records an event.
    """

    def __init__(
        self,
        transport: Requests,
        seen: SeenObjects,
        leads: Callable[[], bool],
        tell: Callable[[Event], None],
    ) -> None:
        self._transport = transport
        self._seen = seen
        self._leads = leads
        self._record = tell
        self._dirty: dict[_Place, None] = {}
        self._work = asyncio.Event()
        self._refused = ""

    def follow(self, snapshot: Snapshot) -> None:
        """Look at the elastic jobs of a scheduler's snapshot, and at what changes of them."""
        for kind in _KINDS:
            snapshot.on_object(kind, self._elastic_changed)
            for obj in snapshot.objects(kind).values():
                self._elastic_changed(None, obj)
        snapshot.on_object(Job, self._job_changed)

    def _elastic_changed(self, old: ElasticJob | None, new: ElasticJob | None) -> None:
        if new is not None:
            self._note(type(new), object_key(new))

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        obj = new if new is not None else old
        assert obj is not None, "a change is of something"
        for owner in obj.metadata.owner_references:
            if owner.controller and owner.kind == "ElasticJob":
                group = owner.api_version.partition("/")[0]
                type_ = AiElasticJob if group == "ai.example.com" else ElasticJob
                self._note(type_, f"{obj.metadata.namespace}/{owner.name}")

    def _note(self, type_: type[ElasticJob], key: str) -> None:
        self._dirty[type_, key] = None
        self._work.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._work.wait()
            if not self._leads():
                await asyncio.sleep(_STANDBY_SECONDS)
                continue
            self._work.clear()
            dirty, self._dirty = self._dirty, {}
            for place in dirty:
                try:
                    await self.reconcile(*place)
                except ClusterError as exc:
                    self._failed(place, exc)

    def _failed(self, place: _Place, exc: ClusterError) -> None:
        if str(exc) != self._refused:
            self._refused = str(exc)
            _log.warning("ElasticJob %s: %s", place[1], exc)
        again = asyncio.get_running_loop().call_later
        again(_RETRY_SECONDS, lambda: self._note(*place))

    async def reconcile(self, type_: type[ElasticJob], key: str) -> None:
        """Bring the Job of one elastic job in step with it, and its status with the Job.

        :raises ClusterError: when the API server refuses or does not answer.
        """
        elastic = self._seen.get(type_, key)
        resource = self._seen.resource_of(type_)
        if elastic is None or resource is None or elastic.metadata.deletion_timestamp is not None:
            # What it owns goes with it.
            return
        job = self._seen.get(Job, key)
        if job is None:
            await self._create(elastic, resource, key)
        elif any(one.uid == elastic.metadata.uid for one in job.metadata.owner_references):
            await self._resize(elastic, job, key)
            await self._tell(elastic, job, resource, key)
        else:
            _log.warning("ElasticJob %s: there is another Job of that name", key)

    async def _create(self, elastic: ElasticJob, resource: WatchedResource, key: str) -> None:
        with suppress(NotFound):
            answer = await self._transport.request("GET", resource.path(key))
            content = msgspec.json.decode(answer)
            if content.get("status", {}).get("phase") and not _is_ours(elastic):
                # The cluster has a controller of its own for them, as the embedded one does.
                return
            space = elastic.metadata.namespace
            job = job_content(elastic, content, self._class_of(elastic))
            for collection, made in (
                (f"/api/v1/namespaces/{space}/services", service_content(elastic, content)),
                (f"/apis/batch/v1/namespaces/{space}/jobs", job),
            ):
                with suppress(AlreadyExists):
                    await self._transport.request("POST", collection, msgspec.json.encode(made))

    def _class_of(self, elastic: ElasticJob) -> str | None:
        """Return the PriorityClass of a job that states its priority as a number.

        An event says so where there is none: its pods then have the cluster's default priority.
        """
        value = priority_without_class(elastic)
        if not value:
            return None
        found = priority_class(value, self._seen.all(PriorityClass))
        if found is None:
            text = (
                f"expected a PriorityClass with the value {value}, which spec.priority asks for; "
                "its pods get the default priority"
            )
            key = object_key(elastic)
            self._record(Event(key, "Warning", "NoPriorityClass", text, about="ElasticJob"))
        return found

    async def _resize(self, elastic: ElasticJob, job: Job, key: str) -> None:
        count = wanted(elastic)
        ended = any(
            one.type in ("Complete", "Failed") and one.status == "True"
            for one in job.status.conditions
        )
        if job.spec.parallelism == count == job.spec.completions or ended:
            return
        body = msgspec.json.encode({"spec": {"parallelism": count, "completions": count}})
        path = f"/apis/batch/v1/namespaces/{elastic.metadata.namespace}/jobs/{job.metadata.name}"
        await self._transport.request("PATCH", path, body, MERGE_PATCH)

    async def _tell(
        self, elastic: ElasticJob, job: Job, resource: WatchedResource, key: str
    ) -> None:
        status = _status_of(elastic, job)
        if status != elastic.status:
            body = msgspec.json.encode({"status": _all_fields(status)})
            path = f"{resource.path(key)}/status"
            await self._transport.request("PATCH", path, body, MERGE_PATCH)


def _is_ours(elastic: ElasticJob) -> bool:
    return any(one.type == _JOB_MADE for one in elastic.status.conditions)


def _all_fields(status: ElasticJobStatus) -> dict[str, Any]:
    """Return a status with all fields, so that a merge patch leaves nothing of the one before."""
    plain = msgspec.to_builtins(status)
    names = (info.encode_name for info in msgspec.structs.fields(status))
    return {**dict.fromkeys(names), "ready": 0, "replicas": 0, "succeeded": 0, "failed": 0, **plain}


def _status_of(elastic: ElasticJob, job: Job) -> ElasticJobStatus:
    found, old = job.status, elastic.status
    made = job.metadata.creation_timestamp
    ready = found.ready or 0
    true = {one.type for one in found.conditions if one.status == "True"}
    phase = "Running" if ready >= elastic.spec.scaling.min_replicas else old.phase or "Pending"
    if "Failed" in true or "Complete" in true:
        phase = "Failed" if "Failed" in true else "Succeeded"
    return ElasticJobStatus(
        phase=phase,
        replicas=job.spec.parallelism,
        ready=ready,
        succeeded=found.succeeded or 0,
        failed=found.failed or 0,
        start_time=found.start_time or old.start_time,
        completion_time=found.completion_time,
        conditions=(Condition(_JOB_MADE, "True", "Created", f"Job {job.metadata.name}", made),),
    )
