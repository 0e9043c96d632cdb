"""A cluster behind an API server, real or embedded, and schedulers that run on it."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from tests.cluster.apiserver.faces import STRATEGIC, Client
from tests.controlplane.installation import path_of
from tests.controlplane.plane import SECONDS, wait_until
from tests.scenarios.expected import Outcome

from bayplan.api import KINDS
from bayplan.api.gpus import named_gpus
from bayplan.api.times import rfc3339
from bayplan.live.address import Address
from bayplan.live.app import LiveApp, Options
from bayplan.profiles.loading import ProfileSet, default_profiles

Content = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
ALL_PODS = "/api/v1/pods"
EVENTS = "/api/v1/namespaces/default/events"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
VOLUME_CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"

_STARTED = "2026-01-01T00:00:00Z"
_WORKLOADS = ("Deployment", "Job", "ReplicaSet", "StatefulSet")


@dataclass
class LiveCluster:
    """An API server, an administrator's client of it, and the kubeconfig of schedulers."""

    client: Client
    kubeconfig: Path
    _used: dict[str, None] = field(default_factory=dict)
    _applied: set[str] = field(default_factory=set)

    # Objects -----------------------------------------------------------------------------

    def apply(self, contents: Iterable[Content]) -> None:
        """Create objects, those that others need first; statuses are written, too.

        Unknown fields are refused.
        """
        for content in sorted(_flat(contents), key=_order):
            named = _priority_class(content)
            if named is not None:
                self.used(named)
                self.client.post(path_of(named, name=False), named)
            path = path_of(content, name=False)
            answer = self.client.post(path, content, fieldValidation="Strict")
            if answer.code == 403 and "no PriorityClass" in str(answer):
                # Admission learns of a class a moment after it was made.
                wait_until(partial(self._created, content), "admission knows the class")
            else:
                assert answer.code == 201, answer
            self.used(content)
            if content["kind"] == "Pod":
                self._applied.add(content["metadata"]["name"])
            if "status" in content and content["kind"] != "Node":
                self.client.patch(f"{path_of(content)}/status", {"status": content["status"]})

    def _created(self, content: Content) -> bool:
        path = path_of(content, name=False)
        return self.client.post(path, content, fieldValidation="Strict").code == 201

    def start_together(self) -> None:
        """Wait until bound pods run, and let all have started in one second, as in memory.

        Preemption prefers who started last: a second that ends between two pods decides it.
        """
        wait_until(lambda: all(map(_runs, self._bound())), "bound pods run")
        for pod in self._bound():
            path = f"{PODS}/{pod['metadata']['name']}/status"
            answer = self.client.patch(path, {"status": {"startTime": _STARTED}})
            assert answer.code == 200, answer

    def _bound(self) -> list[Content]:
        return [pod for pod in self.items(PODS) if "nodeName" in pod["spec"]]

    def used(self, content: Content) -> None:
        """Remember that there are such objects, to delete them in the end."""
        self._used[path_of(content, name=False)] = None

    def items(self, path: str) -> list[Content]:
        """Return the objects of a collection, once its storage is there: a CRD may have changed."""
        answer = self.client.get(path)
        for _ in range(_TRIES):
            if answer.code != HTTPStatus.TOO_MANY_REQUESTS:
                break
            time.sleep(1.0)
            answer = self.client.get(path)
        assert answer.code == 200, answer
        return list(answer.json["items"])

    def placements(self) -> dict[str, str]:
        """Return the node of every pod that has one, by the pod's name."""
        return _placements(self.items(PODS))

    def outcome(self) -> Outcome:
        """Return what a user sees."""
        pods = [pod for pod in self.items(PODS) if "deletionTimestamp" not in pod["metadata"]]
        named = {pod["metadata"]["name"]: pod for pod in pods}
        told: dict[str, str] = {}
        for event in self.items(EVENTS):
            pod = event["involvedObject"]["name"]
            told[pod] = f"{told.get(pod, '')} {event['message']}"
        annotations = {n: p["metadata"].get("annotations", {}) for n, p in named.items()}
        return Outcome(
            placements=_placements(pods),
            pending={n: _message(p) for n, p in named.items() if "nodeName" not in p["spec"]},
            gpus={n: gpus for n, found in annotations.items() if (gpus := [*named_gpus(found)])},
            annotations=annotations,
            told=told,
            evicted=[name for name in self._applied if name not in named],
        )

    def clear(self) -> None:
        """Delete everything that a story made."""
        used = [*self._used, CLAIMS, VOLUME_CLAIMS, PODS, EVENTS]
        self._used.clear()
        self._applied.clear()
        for path in used:
            self._delete_all(path)
        for path in used:
            wait_until(lambda path=path: self._is_empty(path), f"{path} is empty")

    def _delete_all(self, path: str) -> None:
        self.client.delete(path, gracePeriodSeconds=0, propagationPolicy="Background")

    def _is_empty(self, path: str) -> bool:
        """Return whether nothing is left; controllers may still have made something."""
        left = self.items(path)
        for one in left:
            if one["metadata"].get("finalizers"):
                name = one["metadata"]["name"]
                self.client.patch(f"{path}/{name}", {"metadata": {"finalizers": None}})
        if left:
            self._delete_all(path)
        return not left

    # Schedulers --------------------------------------------------------------------------

    @asynccontextmanager
    async def scheduler(
        self, profiles: ProfileSet | None = None, **options: Any
    ) -> AsyncIterator[LiveApp]:
        """Run a scheduler for the time of a story."""
        given: dict[str, Any] = {
            "kubeconfig": self.kubeconfig,
            "leader_elect": False,
            "address": Address(port=0),
            "registry": CollectorRegistry(),
            "load": lambda: profiles or default_profiles(),
            "hold": 0.0,
            **options,
        }
        app = LiveApp(Options(**given))
        running = asyncio.create_task(app.run())
        try:
            async with asyncio.timeout(SECONDS):
                while app.live is None and not running.done():
                    await asyncio.sleep(0.005)
            yield app
        finally:
            app.stop()
            await running

    async def ends(self, app: LiveApp, check: Callable[[Outcome], None]) -> None:
        """Wait until nothing is left to happen, and it ended as it should.

        :raises AssertionError: the last one of ``check``.
        """
        until = time.monotonic() + SECONDS
        while True:
            try:
                await self._settled(app)
                return check(self.outcome())
            except AssertionError:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(0.05)

    async def _settled(self, app: LiveApp) -> None:
        """Wait until a scheduler has seen all pods and has nothing more to do soon."""
        calm = 0
        async with asyncio.timeout(SECONDS):
            while calm < 3:
                await asyncio.sleep(0.01)
                calm = calm + 1 if self._is_calm(app) else 0

    def _is_calm(self, app: LiveApp) -> bool:
        live = app.live
        assert live is not None, "started"
        assert app.writer is not None, "no dry run"
        if not live.idle or app.cache.undelivered or not app.writer.is_idle:
            return False
        at = live.scheduler.next_time()
        if at is not None and at < app.cluster.now + 1.5:
            return False
        seen = app.cache.objects()[KINDS["", "Pod"]]
        versions = {pod.metadata.name: pod.metadata.resource_version for pod in seen.values()}
        pods = [pod["metadata"] for pod in self.items(PODS)]
        return versions == {meta["name"]: meta["resourceVersion"] for meta in pods}


_TRIES = 30
_POD = {"apiVersion": "v1", "kind": "Pod"}
"""A listed pod does not say what it is."""
_TRACKED = "batch.kubernetes.io/job-tracking"
"""The finalizer of the pods of Jobs."""


class Kubelet:
    """Does for bound pods what kubelets do, as far as schedulers notice: runs and ends them.

    :param pods: those of which namespaces.
    """

    def __init__(self, client: Client, pods: str = PODS) -> None:
        self._client = client
        self._pods = pods
        self.silent: set[str] = set()
        """The nodes whose kubelet does nothing."""
        self._ending = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending = True

    def _run(self) -> None:
        while not self._ending:
            try:
                self._follow()
            except (OSError, EOFError, http.client.HTTPException, ValueError, KeyError):
                time.sleep(0.1)

    def _follow(self) -> None:
        """List the pods and watch them, until the watch ends or the server gives it up."""
        listed = self._client.get(self._pods).json
        for pod in listed["items"]:
            self._sync("ADDED", pod)
        with self._client.watch(
            self._pods, resourceVersion=listed["metadata"]["resourceVersion"], timeoutSeconds=10
        ) as events:
            while not self._ending:
                event, pod = events.next()
                if event == "ERROR":
                    return
                self._sync(event, pod)

    def _sync(self, event: str, pod: Content) -> None:
        meta = pod["metadata"]
        if event not in ("ADDED", "MODIFIED") or "nodeName" not in pod["spec"]:
            return
        if pod["spec"]["nodeName"] in self.silent:
            return
        path = path_of(_POD | {"metadata": meta})
        if "deletionTimestamp" in meta:
            # The Job controller waits for a phase before it lets its pod go.
            phase = {"phase": "Failed"} if _TRACKED in meta.get("finalizers", ()) else {}
            self.end_containers(pod, **phase)
            # Another pod of that name may be there by now.
            same = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
            self._client.delete(path, {**same, "preconditions": {"uid": meta["uid"]}})
        elif pod["status"].get("phase") == "Pending":
            began = _now()
            running = {
                "phase": "Running",
                "startTime": began,
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": _containers(pod, {"running": {"startedAt": began}}),
            }
            self._patch(pod, running)

    def end_containers(self, pod: Content, **status: Any) -> None:
        """End what runs in a pod, unless it has ended; ``status`` is written with it."""
        states = [one["state"] for one in pod["status"].get("containerStatuses", [])]
        if all("terminated" in one for one in states) and states:
            return
        ended = {"terminated": {"exitCode": 0, "finishedAt": _now()}}
        self._patch(pod, {**status, "containerStatuses": _containers(pod, ended)})

    def _patch(self, pod: Content, status: Content) -> None:
        meta = pod["metadata"]
        body = {"metadata": {"uid": meta["uid"]}, "status": status}
        self._client.patch(f"{path_of(_POD | {'metadata': meta})}/status", body, STRATEGIC)


def _now() -> str:
    return rfc3339(time.time())


def _containers(pod: Content, state: Content) -> list[Content]:
    """Return the statuses of a pod's containers, all in one state."""
    rest = {"ready": "running" in state, "restartCount": 0, "image": "i", "imageID": "i"}
    return [{"name": one["name"], "state": state, **rest} for one in pod["spec"]["containers"]]


def _runs(pod: Content) -> bool:
    return bool(pod["status"].get("phase") != "Pending")


def _flat(contents: Iterable[Content]) -> Iterator[Content]:
    """Yield objects, those of lists one by one."""
    for content in contents:
        yield from content["items"] if content["kind"] == "List" else (content,)


def _order(content: Content) -> tuple[bool, bool]:
    """Sort key: what admission looks at first, pods and their owners last."""
    pods = content["kind"] == "Pod" or content["kind"] in _WORKLOADS
    return pods, content["kind"] != "PriorityClass"


def _priority_class(content: Content) -> Content | None:
    """Name a class in a pod instead of the priority, which only admission may write there."""
    spec = content["spec"] if content["kind"] == "Pod" else {}
    if "priority" not in spec or "priorityClassName" in spec:
        return None
    given = {"value": spec.pop("priority")}
    if "preemptionPolicy" in spec:
        given["preemptionPolicy"] = spec.pop("preemptionPolicy")
    name = spec["priorityClassName"] = "-".join(["class", *map(str, given.values())]).lower()
    meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return {**meta, "metadata": {"name": name}, **given}


def _placements(pods: list[Content]) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod["spec"]["nodeName"]
        for pod in pods
        if "nodeName" in pod["spec"]
    }


def _message(pod: Content) -> str:
    conditions = pod["status"].get("conditions", [])
    return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")
