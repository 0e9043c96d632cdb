"""ProvisioningRequests: what is asked of a cluster autoscaler for whole sets of pods.

Each attempt is an object of its own, ``NAME-1``, ``NAME-2`` and so on, as in Kueue. All that is
known of attempts is in these objects, so a restart asks for nothing twice.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from bayplan import Handle
from bayplan.api import ObjectMeta, OwnerReference, Pod
from bayplan.api.provisioning import (
    PodTemplateReference,
    ProvisioningPodSet,
    ProvisioningRequest,
    ProvisioningRequestSpec,
)
from bayplan.api.workloads import StoredPodTemplate
from bayplan.cluster.protocol import CreateObject, DeleteObject
from bayplan.errors import ClusterError, NotFound

__all__ = [
    "MOST_POD_SETS",
    "RETRY_SECONDS",
    "Attempt",
    "AttemptState",
    "Capacity",
    "CapacityOf",
    "ProvisioningAttempts",
    "limited_name",
    "merged_sets",
    "owner_of_pods",
]

_LONGEST = 247
"""Characters of a name before the number of the attempt."""
_CODE = 5
_LONGEST_PREFIX = 200
MOST_POD_SETS = 32
RETRY_SECONDS = 60.0
"""After which what could not be made is tried again."""
_UNSERVED_SECONDS = 3600.0
"""After which a kind that the cluster did not have is tried again."""
_OWN = "bayplan.dev/provisioning"
_LABELS = {"kueue.x-k8s.io/managed": "true", _OWN: "true"}
"""The first is that by which Kueue's informers find PodTemplates, the second tells who made it."""


class CapacityOf(msgspec.Struct, frozen=True):
    """So many equal pods that capacity is asked for; ``template`` is a PodTemplateSpec."""

    names: tuple[str, ...]
    """The pod sets that they belong to."""
    template: Mapping[str, Any]
    count: int


class Capacity(msgspec.Struct, frozen=True):
    """What is asked for: ``name`` without its attempt, in the namespace of its pods.

    The objects go with their ``owner``.
    """

    namespace: str
    name: str
    pod_sets: Sequence[CapacityOf]
    class_name: str
    parameters: Mapping[str, str]
    owner: OwnerReference
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def key(self) -> str:
        """``namespace/name``, which all attempts share."""
        return f"{self.namespace}/{self.name}"


class AttemptState(Enum):
    """How far an attempt is; the first that is true."""

    FAILED = "failed"
    REVOKED = "revoked"
    EXPIRED = "expired"
    PROVISIONED = "provisioned"
    ACCEPTED = "accepted"
    NEW = "new"


_CONDITIONS = (
    ("Failed", AttemptState.FAILED),
    ("CapacityRevoked", AttemptState.REVOKED),
    ("BookingExpired", AttemptState.EXPIRED),
    ("Provisioned", AttemptState.PROVISIONED),
    ("Accepted", AttemptState.ACCEPTED),
)
_SAYS = {AttemptState.ACCEPTED: "Provisioned"}
"""The condition that has the message, where another one decides: the expected time, for one."""


class Attempt(msgspec.Struct, frozen=True):
    """One attempt to get capacity."""

    number: int
    request: ProvisioningRequest

    @property
    def name(self) -> str:
        """The name of its ProvisioningRequest."""
        return self.request.metadata.name

    @property
    def state(self) -> AttemptState:
        """How far it is."""
        found = (state for type_, state in _CONDITIONS if self.request.is_true(type_))
        return next(found, AttemptState.NEW)

    @property
    def message(self) -> str:
        """What the autoscaler says of it, "" for nothing."""
        type_ = next((type_ for type_, state in _CONDITIONS if state is self.state), "Provisioned")
        condition = self.request.condition(_SAYS.get(self.state, type_))
        return condition.message if condition is not None else ""

    @property
    def since(self) -> str | None:
        """When it got into its state, as in its condition."""
        type_ = next((type_ for type_, state in _CONDITIONS if state is self.state), "")
        condition = self.request.condition(type_)
        return condition.last_transition_time if condition is not None else None


class ProvisioningAttempts:
    """Follows the ProvisioningRequests of a cluster, and makes them."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._of: dict[str, dict[int, ProvisioningRequest]] = {}
        self._asked: dict[str, ProvisioningRequest] = {}
        """What was submitted and is not seen yet, by key."""
        self._unserved_until = -math.inf
        self._refused: dict[str, tuple[str, float]] = {}
        """Why a capacity could not be asked for, and until when it is not tried again."""
        handle.snapshot.on_object(ProvisioningRequest, self._changed)

    def _changed(self, old: ProvisioningRequest | None, new: ProvisioningRequest | None) -> None:
        one = new if new is not None else old
        assert one is not None, "a change is of something"
        self._asked.pop(one.key, None)
        base, _, number = one.key.rpartition("-")
        if not number.isdecimal() or not _is_own(one):
            return
        attempts = self._of.setdefault(base, {})
        attempts.pop(int(number), None)
        if new is not None:
            attempts[int(number)] = new
        if not attempts:
            del self._of[base]

    def latest(self, key: str) -> Attempt | None:
        """Return the last attempt to get a capacity, by its key; None before the first."""
        attempts = self._of.get(key)
        if not attempts:
            return None
        number = max(attempts)
        return Attempt(number, attempts[number])

    def all(self, key: str) -> Iterator[Attempt]:
        """Yield the attempts to get a capacity, the first one first."""
        for number, request in sorted(self._of.get(key, {}).items()):
            yield Attempt(number, request)

    def ask(self, capacity: Capacity, number: int) -> None:
        """Ask for a capacity; its templates come first, as an autoscaler looks only once."""
        name = f"{capacity.name}-{number}"
        if f"{capacity.namespace}/{name}" in self._asked or self.problem(capacity.key):
            return
        sets = []
        for one in capacity.pod_sets:
            template = limited_name("ppt", name, one.names[0])
            meta = self._meta(capacity, template)
            self._handle.submit(CreateObject(StoredPodTemplate(meta, dict(one.template))))
            sets.append(ProvisioningPodSet(PodTemplateReference(template), one.count))
        spec = ProvisioningRequestSpec(tuple(sets), capacity.class_name, dict(capacity.parameters))
        request = ProvisioningRequest(self._meta(capacity, name), spec)
        self._asked[request.key] = request
        self._refused.pop(capacity.key, None)

        def answered(error: ClusterError | None) -> None:
            if error is not None:
                self._asked.pop(request.key, None)
                until = self._handle.now + RETRY_SECONDS
                self._refused[capacity.key] = str(error), until
                if isinstance(error, NotFound):
                    # The namespace of its pods is there, so it is the kind that is not.
                    self._unserved_until = self._handle.now + _UNSERVED_SECONDS

        self._handle.submit(CreateObject(request), answered)

    @property
    def is_served(self) -> bool:
        """Whether the cluster has ProvisioningRequests, as far as is known."""
        return self._handle.now >= self._unserved_until

    def problem(self, key: str) -> str:
        """Return why a capacity could not be asked for a short while ago, "" if it could."""
        text, until = self._refused.get(key, ("", 0.0))
        return text if self._handle.now < until else ""

    @staticmethod
    def _meta(capacity: Capacity, name: str) -> ObjectMeta:
        return ObjectMeta(
            name=name,
            namespace=capacity.namespace,
            labels=dict(_LABELS),
            annotations=dict(capacity.annotations),
            owner_references=(capacity.owner,),
        )

    def withdraw(self, attempt: Attempt) -> None:
        """Delete an attempt with its templates."""
        request = attempt.request
        meta = request.metadata
        if meta.deletion_timestamp is not None:
            return
        self._handle.submit(DeleteObject(ProvisioningRequest, request.key, meta.uid))
        for one in request.spec.pod_sets:
            # Those of its own name only: what a request names may be anybody's.
            template = one.pod_template_ref.name
            if template.startswith(f"ppt-{meta.name[:_LONGEST_PREFIX]}"):
                key = f"{meta.namespace}/{template}"
                self._handle.submit(DeleteObject(StoredPodTemplate, key))

    @staticmethod
    def is_for(attempt: Attempt, capacity: Capacity) -> bool:
        """Tell whether an attempt asks for this in the same class, with the same parameters."""
        spec = attempt.request.spec
        return spec.provisioning_class_name == capacity.class_name and (
            dict(spec.parameters) == dict(capacity.parameters)
        )


def _is_own(request: ProvisioningRequest) -> bool:
    """Tell whether bayplan, or Kueue's manager before it, made a request."""
    meta = request.metadata
    return _OWN in meta.labels or any(one.kind == "Workload" for one in meta.owner_references)


def owner_of_pods(pod: Pod) -> OwnerReference:
    """Return what the requests for a pod go with: what owns the pod, or else the pod."""
    owner = next((one for one in pod.metadata.owner_references if one.controller), None)
    if owner is not None:
        return msgspec.structs.replace(owner, controller=False)
    return OwnerReference("Pod", pod.metadata.name, pod.metadata.uid, "v1")


def limited_name(*parts: str) -> str:
    """Return a name of some parts, short enough for a number to follow, as Kueue cuts it."""
    name = "-".join(parts)
    if len(name) <= _LONGEST:
        return name
    code = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()[:_CODE]
    return f"{name[: _LONGEST - _CODE - 1].rstrip('.-')}-{code}"


def merged_sets(sets: Sequence[CapacityOf], same: Sequence[str] | None) -> list[CapacityOf]:
    """Return pod sets with those of equal templates as one.

    :param same: the fields of a pod's spec, and of its containers, that have to be equal; None for
        the whole template.
    """
    found: dict[str, CapacityOf] = {}
    for one in sets:
        what = one.template if same is None else _part(one.template, same)
        key = json.dumps(what, sort_keys=True, default=str)
        known = found.get(key)
        if known is None:
            found[key] = one
        else:
            names = (*known.names, *one.names)
            found[key] = CapacityOf(names, known.template, known.count + one.count)
    return list(found.values())


def _part(template: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    spec = template.get("spec") or {}
    part = {name: spec[name] for name in names if name in spec}
    for kind in ("containers", "initContainers"):
        part[kind] = [one.get("resources") for one in spec.get(kind) or ()]
    return part
