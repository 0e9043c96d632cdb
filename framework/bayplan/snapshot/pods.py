"""A pod with everything that scheduling derives from it, computed once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from bayplan.api import Pod, PodSpec, pod_requests
from bayplan.api.gang import Gang, Membership, OwnedPart
from bayplan.dialects import membership_of
from bayplan.dialects.gangs import may_be_member
from bayplan.dialects.progress import GOING_AT
from bayplan.snapshot.affinity import HeldTerms, held_terms

__all__ = ["HostPort", "PodInfo", "SpecFacts"]


_NOTHING: Mapping[str, str] = {}
_serials = itertools.count()


class HostPort(msgspec.Struct, frozen=True):
    """A port that a pod takes on its host."""

    protocol: str
    ip: str
    port: int


class SpecFacts(msgspec.Struct, frozen=True, eq=False):
    """What follows from a pod's spec alone; pods with equal specs share one object.

    The shared object is hashed and compared by identity. ``signature`` is also equal for specs that
    only name other ResourceClaims: a claim's name says nothing without the claim. Amounts
    are in milli-CPU, and in units of any other resource, as in PodRequests. ``wants_devices`` says
    that the pod has resource claims or requests extended resources, ``uses_claims`` that some of
    its volumes are PersistentVolumeClaims.
    """

    requests: Mapping[str, int]
    scoring_requests: Mapping[str, int]
    requests_by_containers: Mapping[str, int]
    host_ports: tuple[HostPort, ...]
    wants_devices: bool = False
    uses_claims: bool = False
    signature: int = msgspec.field(default_factory=itertools.count().__next__)


class PodInfo:
    """A pod, its identity, and what scheduling derives from it."""

    __slots__ = (
        "definition",
        "facts",
        "gang",
        "inherited",
        "key",
        "kind",
        "labels",
        "labels_id",
        "name",
        "namespace",
        "owner_settings",
        "part",
        "pod",
        "priority",
        "problem",
        "rank",
        "role",
        "serial",
        "terms",
        "uid",
    )

    pod: Pod
    """The API object."""
    key: str
    """The namespace and the name, as in ``team-a/web-0``."""
    name: str
    """The pod's name."""
    namespace: str
    """The pod's namespace."""
    uid: str
    """The pod's UID; the key where it has none."""
    labels: Mapping[str, str]
    """The pod's labels."""
    priority: int
    """The pod's priority, 0 without one."""
    gang: str | None
    """The key of the pod's gang, None without one."""
    rank: int | None
    """The pod's stated rank in its gang, None without one."""
    role: str
    """The pod's role in its gang, empty without one."""
    definition: Gang | None
    """The gang, where the pod's own annotations define it."""
    problem: str | None
    """What is wrong with the pod's annotations and keeps it pending, None if nothing is."""
    inherited: Mapping[str, str]
    """Annotations of the pod's controller that apply to it."""
    owner_settings: Mapping[str, str]
    """Labels and annotations of what owns the pod that count for it, such as its queue."""
    part: OwnedPart | None
    """The part of what owns the pod that waits in a queue by itself, None without one."""
    facts: SpecFacts
    """What follows from the spec alone; pods of equal spec share one object."""
    terms: HeldTerms
    """The pod's affinity terms, compiled."""
    labels_id: tuple[str, frozenset[tuple[str, str]]]
    """The namespace and the labels, hashable: for ``sign``."""
    kind: int
    """A number of pods whose specs are equal, and whose labels and annotations have equal names."""
    serial: int
    """A number in the order in which this version of each pod was seen."""

    def __init__(
        self,
        pod: Pod,
        inherited: Mapping[str, str] = _NOTHING,
        owned: Callable[[Pod], Membership] | None = None,
    ) -> None:
        """Read a pod.

        :param inherited: the annotations that it takes over from its Job.
        :param owned: returns its place in the gang of what owns it; asked where nobody has put it
            into a gang.
        """
        meta = pod.metadata
        self.serial = next(_serials)
        self.pod = pod
        self.inherited = inherited
        self.name = meta.name
        self.namespace = meta.namespace
        self.key = f"{meta.namespace}/{meta.name}"
        self.uid = meta.uid or self.key
        self.labels = MappingProxyType(meta.labels)
        self.labels_id = (meta.namespace, frozenset(meta.labels.items()))
        self.priority = pod.spec.priority or 0
        self.facts = _facts(pod.spec)
        names = (self.facts, *meta.labels, None, *meta.annotations, None, *inherited)
        self.kind, grouped = _kinds.get(names) or _new_kind(names, pod, inherited)
        self.terms = held_terms(pod)
        member = membership_of(pod, inherited) if grouped else _UNGROUPED
        self.owner_settings = _NOTHING
        if owned is not None and member.gang is None and member.problem is None:
            of_owner = owned(pod)
            self.owner_settings = of_owner.owner_settings
            if not (of_owner.gang is None and of_owner.problem is None and of_owner.part is None):
                rank = member.rank if of_owner.rank is None else of_owner.rank
                member = of_owner if rank == of_owner.rank else replace(of_owner, rank=rank)
        self.gang = member.gang
        self.rank = member.rank
        self.role = member.role
        self.part = member.part
        self.definition = member.definition
        self.problem = member.problem

    def changed(self, pod: Pod) -> PodInfo:
        """Return what another version of the pod would be: also a member of its owner's gang."""
        member = Membership(
            self.gang,
            self.rank,
            self.role,
            self.definition,
            self.problem,
            self.owner_settings,
            self.part,
        )
        return PodInfo(pod, self.inherited, lambda _: member)

    @property
    def annotations(self) -> Mapping[str, str]:
        """The pod's annotations; its own override those that it inherits."""
        own = self.pod.metadata.annotations
        return {**self.inherited, **own} if self.inherited else MappingProxyType(own)

    @property
    def spec(self) -> PodSpec:
        """The pod's spec."""
        return self.pod.spec

    @property
    def requests(self) -> Mapping[str, int]:
        """Effective requests in milli-CPU or units; no zeros."""
        return self.facts.requests

    @property
    def terminating(self) -> bool:
        """Whether the pod is being deleted, or has been given a time to go."""
        meta = self.pod.metadata
        return meta.deletion_timestamp is not None or GOING_AT in meta.annotations

    def __repr__(self) -> str:
        return f"PodInfo({self.key})"


_Names = tuple[SpecFacts | str | None, ...]

_kinds: dict[_Names, tuple[int, bool]] = {}
"""The number of each kind, and whether such pods say anything of gangs."""
_kind_numbers = itertools.count()
_UNGROUPED = Membership(None)


def _new_kind(key: _Names, pod: Pod, inherited: Mapping[str, str]) -> tuple[int, bool]:
    if len(_kinds) >= _SHARED_LIMIT:
        _kinds.clear()
    made = _kinds[key] = next(_kind_numbers), may_be_member(pod, inherited)
    return made


_encode = msgspec.json.Encoder(enc_hook=lambda quantity: quantity.text).encode
_shared: dict[bytes, SpecFacts] = {}
_SHARED_LIMIT = 20_000


def _facts(spec: PodSpec) -> SpecFacts:
    # A pod's node does not change what it needs.
    content = _encode(msgspec.structs.replace(spec, node_name="") if spec.node_name else spec)
    facts = _shared.get(content)
    if facts is None:
        if len(_shared) >= _SHARED_LIMIT:
            _shared.clear()
        if any(claim.resource_claim_name for claim in spec.resource_claims):
            return _shared.setdefault(content, replace(_facts(_without_claim_names(spec))))
        requests = pod_requests(spec)
        extended = any("/" in name for name in requests.effective)
        facts = SpecFacts(
            MappingProxyType(dict(requests.effective)),
            MappingProxyType(dict(requests.scoring)),
            MappingProxyType(dict(requests.by_containers)),
            _host_ports(spec),
            wants_devices=extended or bool(spec.resource_claims),
            uses_claims=any(v.persistent_volume_claim or v.ephemeral for v in spec.volumes),
        )
        _shared[content] = facts
    return facts


def _without_claim_names(spec: PodSpec) -> PodSpec:
    claims = (
        claim
        if claim.resource_claim_name is None
        else msgspec.structs.replace(claim, resource_claim_name="")
        for claim in spec.resource_claims
    )
    return msgspec.structs.replace(spec, resource_claims=tuple(claims))


def _host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    found: dict[HostPort, None] = {}
    sidecars = [c for c in spec.init_containers if c.restart_policy == "Always"]
    for container in (*spec.containers, *sidecars):
        for port in container.ports:
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if number:
                ip = port.host_ip or "0.0.0.0"  # noqa: S104 - the wildcard's name, not a bind
                found[HostPort(port.protocol or "TCP", ip, number)] = None
    return tuple(found)
