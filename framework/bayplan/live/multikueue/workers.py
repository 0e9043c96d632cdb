"""The clusters that run jobs of this one: connections, and what is seen there."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import logging
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import msgspec

from bayplan.api import ApiObject, ClusterQueue, Kind, LocalQueue, Pod
from bayplan.api.kueue import KueueWorkload, MultiKueueCluster
from bayplan.api.objects import kind_of
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.object_cache import ObjectCache
from bayplan.cluster.kubernetes.resources import of_snapshots
from bayplan.cluster.kubernetes.transport import JSON, Requests, Transport
from bayplan.dialects.queued_jobs import queued_kinds
from bayplan.errors import BayplanError, ClusterError, InputError, NotFound
from bayplan.inputs.documents import parse_documents
from bayplan.live.multikueue.cluster_profiles import kubeconfig_of, path_of_profile
from bayplan.live.multikueue.jobs import Item, JobReference, belongs_to
from bayplan.live.multikueue.quotas import nominal_quotas, places
from bayplan.live.parts import parts_of
from bayplan.profiles.loading import ProfileSet

__all__ = ["Copy", "Worker", "Workers"]

_log = logging.getLogger("bayplan.multikueue")
_KEY = "kubeconfig"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
"""It becomes a part of a path."""
_LOOK_SECONDS = 2.0
"""How often clusters are asked whether they are there, and Secrets are read."""
_PROBE_SECONDS = 5.0
_LIST_SECONDS = 60.0
"""How long the first lists of a cluster are waited for."""
_NOT_OF_A_SECRET = {
    "user": ("exec", "auth-provider", "tokenFile", "client-certificate", "client-key"),
    "cluster": ("certificate-authority", "insecure-skip-tls-verify"),
}
"""What a kubeconfig of a Secret may not have: programs to run, files of this machine, no trust."""


class Copy(msgspec.Struct, frozen=True):
    """A job, or a pod, of this cluster in another one."""

    kind: Kind
    obj: ApiObject
    of: str


class Worker:
    """One cluster, as it is seen.

    ``lost_since`` is when it first did not answer, by the clock of the loop; None while it does.
    """

    def __init__(
        self, name: str, kubeconfig: Path, profiles: ProfileSet, changed: asyncio.Event
    ) -> None:
        self.name = name
        self.transport = Transport(Credentials(kubeconfig))
        self.lost_since: float | None = None
        self.problem = ""
        self._listed_by = math.inf
        self._cache = ObjectCache(
            self.transport, of_snapshots(), parts=parts_of(profiles), changed=changed
        )

    async def start(self) -> None:
        """Begin to follow the cluster."""
        self._listed_by = asyncio.get_running_loop().time() + _LIST_SECONDS
        await self._cache.start()

    async def stop(self) -> None:
        """End all connections."""
        await self._cache.stop()
        await self.transport.close()

    async def look(self) -> None:
        """Ask whether the cluster is there."""
        try:
            await self.transport.request("GET", "/version", seconds=_PROBE_SECONDS)
            self.lost_since, self.problem = None, ""
        except BayplanError as exc:
            if self.lost_since is None:
                self.lost_since = asyncio.get_running_loop().time()
            self.problem = str(exc)

    @property
    def is_being_listed(self) -> bool:
        """Whether it answers, and will soon be usable: what is known of it would be too little."""
        in_time = asyncio.get_running_loop().time() < self._listed_by
        return self.lost_since is None and not self.is_usable and in_time

    @property
    def is_usable(self) -> bool:
        """Whether it answers, and all that may be read there was."""
        return self.lost_since is None and self._cache.settled_or_refused

    def objects(self) -> list[ApiObject]:
        """Return all that is seen of it."""
        return [one for found in self._cache.objects().values() for one in found.values()]

    def copies(self, origin: str) -> Iterator[Copy]:
        """Yield the jobs and pods there that are copies of a manager's."""
        for type_ in (*queued_kinds(), Pod):
            for obj in self._cache.all(type_):
                uid = belongs_to(obj, origin)
                if uid is not None:
                    yield Copy(kind_of(obj), obj, uid)

    def sees(self, job: JobReference) -> bool:
        """Tell whether all jobs of a job's kind are seen: what is not seen is not there."""
        return self._cache.follows(job.kind.type)

    def get(self, item: Item) -> ApiObject | None:
        """Return the object of the same kind and name."""
        return self._cache.get(item.kind.type, item.key)

    def evictions(self) -> dict[str, str]:
        """Return why Workloads there are evicted, by the uids of what they are of."""
        found: dict[str, str] = {}
        for workload in self._cache.all(KueueWorkload):
            for one in workload.status.conditions:
                if (one.type, one.status) == ("Evicted", "True"):
                    owners = workload.metadata.owner_references
                    found |= dict.fromkeys((owner.uid for owner in owners), one.message)
        return found

    def nominal_quotas(self, local_queues: Set[str]) -> dict[str, float]:
        """Return what its queues have for jobs of some LocalQueues, by resource.

        :param local_queues: ``namespace/name`` of those in the manager.
        """
        of_queues = places(self._cache.all(LocalQueue))
        return nominal_quotas(self._cache.all(ClusterQueue), of_queues, local_queues)

    def path(self, kind: Kind, key: str) -> str:
        """Return where an object is in its API.

        :raises NotFound: when it does not have the kind.
        """
        resource = self._cache.resource_of(kind.type)
        if resource is None:
            raise NotFound(f"{self.name} has no kind {kind.name}")
        return resource.path(key)

    async def create(self, item: Item, content: Mapping[str, Any]) -> None:
        """Create a copy.

        :raises ClusterError: when the cluster refuses it.
        """
        path = self.path(item.kind, item.key).rpartition("/")[0]
        query = {"fieldManager": "bayplan-multikueue"}
        await self.transport.request("POST", path, json.dumps(content).encode(), JSON, query)

    async def delete(self, copy: Copy, unchanged: bool = False) -> None:
        """Delete a copy with its pods.

        :param unchanged: only if it is still as it was seen.
        :raises ClusterError: when the cluster refuses it.
        """
        meta = copy.obj.metadata
        conditions = {"uid": meta.uid}
        if unchanged:
            conditions["resourceVersion"] = meta.resource_version
        body = {"propagationPolicy": "Background", "preconditions": conditions}
        path = self.path(copy.kind, f"{meta.namespace}/{meta.name}")
        await self.transport.request("DELETE", path, json.dumps(body).encode())


class Workers:
    """The clusters that MultiKueueClusters name, each connected as long as it is named.

    :param namespace: where the Secrets with kubeconfigs are.
    """

    def __init__(self, transport: Requests, namespace: str, profiles: ProfileSet) -> None:
        self._transport = transport
        self._namespace = namespace
        self._profiles = profiles
        self._workers: dict[str, tuple[str, Worker]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="bayplan-multikueue-")
        self._looked: tuple[float, Mapping[str, MultiKueueCluster]] = (-math.inf, {})
        self.changed = asyncio.Event()
        """Set when an object of any cluster changes."""
        self.problems: dict[str, str] = {}
        """By name, why clusters cannot be used."""

    def get(self, name: str) -> Worker | None:
        """Return a cluster; None for one that is not named, or whose kubeconfig cannot be used."""
        found = self._workers.get(name)
        return found[1] if found is not None else None

    def all(self) -> Sequence[Worker]:
        """Return all clusters."""
        return [worker for _, worker in self._workers.values()]

    async def follow(self, clusters: Mapping[str, MultiKueueCluster]) -> None:
        """Connect to clusters that are new, and leave those that are gone."""
        now = asyncio.get_running_loop().time()
        if now < self._looked[0] + _LOOK_SECONDS and self._looked[1] == clusters:
            return
        self._looked = (now, clusters)
        for name in [name for name in self._workers if name not in clusters]:
            await self._leave(name)
        self.problems = {name: why for name, why in self.problems.items() if name in clusters}
        for name, cluster in clusters.items():
            try:
                await self._connect(name, await self._kubeconfig(name, cluster))
            except ClusterError as exc:
                # What is connected stays so while the Secret cannot be read.
                self.problems[name] = str(exc)
            except InputError as exc:
                self.problems[name] = str(exc)
                await self._leave(name)
        await asyncio.gather(*(worker.look() for worker in self.all()))
        for worker in self.all():
            if worker.lost_since is not None:
                self.problems[worker.name] = worker.problem
            else:
                self.problems.pop(worker.name, None)

    async def close(self) -> None:
        """End all connections."""
        for name in list(self._workers):
            await self._leave(name)
        self._folder.cleanup()

    async def _connect(self, name: str, kubeconfig: Path) -> None:
        marks = hashlib.sha256(kubeconfig.read_bytes()).hexdigest()
        known = self._workers.get(name)
        if known is not None and known[0] == marks:
            return
        await self._leave(name)
        worker = Worker(name, kubeconfig, self._profiles, self.changed)
        self._workers[name] = (marks, worker)
        await worker.start()
        _log.info("cluster %s: connected", name)

    async def _leave(self, name: str) -> None:
        known = self._workers.pop(name, None)
        if known is not None:
            await known[1].stop()
            _log.info("cluster %s: disconnected", name)

    async def _kubeconfig(self, name: str, cluster: MultiKueueCluster) -> Path:
        """Return the file of a cluster's kubeconfig.

        :raises InputError: when it cannot be used.
        :raises ClusterError: when its Secret, or its ClusterProfile, cannot be read.
        """
        source, profile = cluster.kube_config, cluster.spec.cluster_source.cluster_profile_ref
        if source is not None and source.location_type == "Path":
            path = Path(source.location)
            if not path.is_file():
                raise InputError("is not there", source.location)
            return path
        if source is not None:
            text = await self._secret(source.location, _KEY)
            _check(text, f"Secret {self._namespace}/{source.location}")
        elif profile is not None:
            text = await self._of_profile(profile.name)
        else:
            raise InputError("expected a kubeConfig or a clusterProfileRef", name)
        path = Path(self._folder.name) / hashlib.sha256(name.encode()).hexdigest()
        if not path.exists() or path.read_bytes() != text:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(text)
        return path

    async def _of_profile(self, name: str) -> bytes:
        """Return a kubeconfig for the cluster of a ClusterProfile beside the Secrets."""
        source = f"ClusterProfile {self._namespace}/{name}"
        if not _NAME.fullmatch(name):
            raise InputError("is not a name", source)
        where = path_of_profile(self._namespace, name)
        try:
            profile = json.loads(await self._transport.request("GET", where))
        except NotFound:
            raise InputError("is not there, or its API is not served", source) from None
        return await kubeconfig_of(profile, source, self._namespace, self._secret)

    async def _secret(self, name: str, key: str) -> bytes:
        """Return what a Secret has under a key."""
        if not _NAME.fullmatch(name):
            raise InputError(f'"{name}" is not the name of a Secret', self._namespace)
        secret = f"Secret {self._namespace}/{name}"
        where = f"/api/v1/namespaces/{self._namespace}/secrets/{name}"
        try:
            answer = json.loads(await self._transport.request("GET", where))
        except NotFound:
            raise InputError("is not there", secret) from None
        data = answer.get("data") or {}
        if key not in data:
            raise InputError(f'has no key "{key}"', secret)
        try:
            return base64.b64decode(data[key], validate=True)
        except (binascii.Error, ValueError):
            raise InputError(f'"{key}" is not base64', secret) from None


def _check(text: bytes, source: str) -> None:
    """Refuse what would run programs, or read files, on behalf of whoever wrote a Secret.

    :raises InputError: for that, and for what is no kubeconfig.
    """
    try:
        documents = parse_documents(text.decode(), source)
    except UnicodeDecodeError:
        raise InputError("is not UTF-8", source) from None
    content = documents[0].content if len(documents) == 1 else None
    if not isinstance(content, dict):
        raise InputError("expected a kubeconfig", source)
    for part, names in _NOT_OF_A_SECRET.items():
        for entry in content.get(f"{part}s") or ():
            own = entry.get(part) if isinstance(entry, dict) else None
            for name in names:
                if isinstance(own, dict) and own.get(name):
                    raise InputError(f"{part}s[].{part}.{name} is not allowed in a Secret", source)
