"""Gangs that nobody wrote: those of the objects that own pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from bayplan.api import (
    KINDS,
    ApiObject,
    DaemonSet,
    Deployment,
    Job,
    Kind,
    OwnerReference,
    Pod,
    ReplicaSet,
    StatefulSet,
    kind_of,
)
from bayplan.api.gang import Gang, Gather, MatchPolicy, Membership, OwnedPart, SubGroup
from bayplan.api.object_key import object_key
from bayplan.api.selectors import Requirement, Selector
from bayplan.dialects import kai
from bayplan.dialects.placement import Placement, placement_of
from bayplan.dialects.queued_job_checks import QUEUE_LABEL
from bayplan.dialects.reading import is_index
from bayplan.gangs.segments import segment_rule, segments_of_group, segments_of_role
from bayplan.kinds import (
    KINDS_OF_WORKLOADS,
    SINGLE_PODS,
    Role,
    SegmentSizes,
    WorkloadKind,
    domain_of,
    lack_of,
    minimum_of,
    part_before,
    role_of,
    roles_of,
    segments_of,
    some_roles_of,
    title_of,
    units_of,
)
from bayplan.snapshot import Snapshot

__all__ = [
    "GANG_ANNOTATION",
    "MINIMUM_ANNOTATION",
    "OwnedGangs",
    "OwnedMember",
    "OwnerChain",
    "asked_of",
    "settings_for_pods",
    "source_of",
]

GANG_ANNOTATION = "bayplan.dev/gang"
"""Of a pod or what owns it: "false" for pods that are placed one by one, "true" for a gang."""
MINIMUM_ANNOTATION = "bayplan.dev/min-member"
"""Of a pod or what owns it: how many pods of the gang have to be placed at once."""
_VOLCANO_MINIMUM = "scheduling.volcano.sh/group-min-member"
_MINIMUMS: Mapping[type[ApiObject], tuple[str, ...]] = {
    Job: ("kai.scheduler/batch-min-member", _VOLCANO_MINIMUM),
    ReplicaSet: (_VOLCANO_MINIMUM,),
    StatefulSet: (_VOLCANO_MINIMUM,),
}
"""What says the same in KAI's and Volcano's words, by the type of what owns the pods."""
_SKIP = "kai.scheduler/skip-podgrouper"
"""Of pods, or what owns them, for which somebody else writes a group."""
_OWNER_LABELS = frozenset((*kai.OWNER_LABELS, QUEUE_LABEL))
_OWNER_ANNOTATIONS = frozenset(kai.OWNER_ANNOTATIONS)
_NO_SETTINGS: Mapping[str, str] = {}
_MOST_LEVELS = 10
_MOST_LEADERS = 65_536
_ENDS = (Deployment, DaemonSet)
"""Nothing above them makes a gang, and a live scheduler does not follow them."""


class OwnerChain(msgspec.Struct, frozen=True):
    """The objects that own a pod, from the pod upwards.

    :param missing: the reference at its end to an object that is not there, or not there yet.
    :param unknown: the reference at its end to an object of a kind that bayplan does not read.
    """

    owners: tuple[ApiObject, ...]
    missing: OwnerReference | None = None
    unknown: OwnerReference | None = None


def asked_of(obj: ApiObject) -> tuple[str | None, str | None]:
    """Return what an object's annotations ask of the gang of its pods.

    KAI's and Volcano's own controllers leave out a number that cannot be read.
    """
    annotations = obj.metadata.annotations
    least = annotations.get(MINIMUM_ANNOTATION)
    for name in _MINIMUMS.get(type(obj), ()) if least is None else ():
        text = annotations.get(name, "")
        if is_index(text) and int(text) > 1:
            least = text
            break
    said = annotations.get(GANG_ANNOTATION)
    if said is None and annotations.get(_SKIP) == "true":
        said = "false"
    return said, least


def settings_for_pods(obj: ApiObject) -> Mapping[str, str]:
    """Return the labels and annotations of an object that count for its pods: KAI's and Kueue's.

    Pods of a kind that is suspended are in the queue of its objects, whatever else they have.
    """
    labels, annotations = obj.metadata.labels, obj.metadata.annotations
    if _OWNER_LABELS.isdisjoint(labels) and _OWNER_ANNOTATIONS.isdisjoint(annotations):
        return _NO_SETTINGS
    found = {name: labels[name] for name in kai.OWNER_LABELS if name in labels}
    found |= {name: annotations[name] for name in kai.OWNER_ANNOTATIONS if name in annotations}
    row = _row(obj)
    if row is not None and not row.suspend and QUEUE_LABEL in labels:
        found[QUEUE_LABEL] = labels[QUEUE_LABEL]
    return found


def source_of(obj: ApiObject) -> str:
    """Return the name of the kind of an object that defines gangs, for messages."""
    kind = kind_of(obj)
    return f"{kind.name} of {kind.group}"


class _Owner(msgspec.Struct):
    """An owner as it was read; its gangs by key, each with one of their pods; places in them.

    Pods of one part and one role have the same place. ``domain`` is the label of nodes of which
    its pods have one value, ``some_roles`` how many of its roles it needs, if not all. ``wanted``
    is the number of its parts, where rolling updates add some. ``versions`` are the gangs of each
    part in several versions, ``before`` those of the object whose place it takes.
    """

    obj: ApiObject
    roles: tuple[Role, ...] = ()
    minimum: int | None = None
    problem: str | None = None
    domain: str = ""
    segments: SegmentSizes | None = None
    some_roles: int | None = None
    wanted: int = 0
    before: tuple[str, ...] = ()
    versions: dict[tuple[str, ...], dict[str, None]] = msgspec.field(default_factory=dict)
    members: dict[str, str] = msgspec.field(default_factory=dict)
    gangs: dict[str, Gang] = msgspec.field(default_factory=dict)
    places: dict[tuple[str | None, str, _Asked | None], OwnedMember] = msgspec.field(
        default_factory=dict
    )


class OwnedMember(msgspec.Struct, frozen=True):
    """A pod's place in the gang of what owns it, and that gang; None where it has none.

    :param source: the kind of that owner.
    :param missing: what owns it, itself or through others, and is not there, or not there yet.
    :param unknown: what owns it and is of a kind that bayplan does not know.
    """

    membership: Membership
    gang: Gang | None = None
    source: str = ""
    missing: OwnerReference | None = None
    unknown: OwnerReference | None = None


_NOBODY = OwnedMember(Membership(None))


class OwnedGangs:
    """Derives a pod's gang from the objects that own it, by the table of workload kinds."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._owners: dict[tuple[type[ApiObject], str], _Owner] = {}
        self._made_by: dict[str, dict[tuple[type[ApiObject], str], str]] = {}
        """Objects that take each other's place, with their gangs, by the UID of what makes them."""
        self._above: dict[tuple[str, OwnerReference], _Above] = {}
        """What is above pods, by their namespace and controller."""
        self._version = -1
        """The version of the snapshot's objects of which that is."""
        self._leaders: dict[str, OwnerReference] = {}
        """What made the pods that own others, by their uids; some are gone."""

    def chain(self, pod: Pod) -> OwnerChain:
        """Follow the controllers of a pod; each has to have the UID by which it is named.

        A pod that leads others may be gone before them: they stay with what made it.
        """
        owners: list[ApiObject] = []
        reference = _controller(pod.metadata.owner_references)
        for _ in range(_MOST_LEVELS):
            if reference is None:
                break
            kind = KINDS.get((reference.api_version.rpartition("/")[0], reference.kind))
            if kind is None:
                return OwnerChain(tuple(owners), unknown=reference)
            if kind.type in _ENDS or not kind.namespaced:
                break
            owner = self._find(kind, f"{pod.metadata.namespace}/{reference.name}")
            if owner is None or owner.metadata.uid != reference.uid:
                maker = self._leaders.get(reference.uid) if kind.type is Pod else None
                if maker is None:
                    return OwnerChain(tuple(owners), missing=reference)
                reference = maker
                continue
            if any(one is owner for one in owners):
                break
            owners.append(owner)
            above = _controller(owner.metadata.owner_references)
            if isinstance(owner, Pod) and above is not None:
                self._remember_leader(owner.metadata.uid, above)
            reference = above
        return OwnerChain(tuple(owners))

    def _remember_leader(self, uid: str, maker: OwnerReference) -> None:
        if len(self._leaders) >= _MOST_LEADERS:
            self._leaders.clear()
        self._leaders[uid] = maker

    def _find(self, kind: Kind, key: str) -> ApiObject | None:
        if kind.type is Pod:
            info = self._snapshot.living.get(key)
            return info.pod if info is not None else None
        return self._snapshot.objects(kind.type).get(key)

    def member(self, pod: Pod, without_missing: bool = False) -> OwnedMember:
        """Return a pod's place in the gang of what owns it.

        The highest owner counts that has a row in the table and a role for the pod.

        :param without_missing: whether those count that are there, where others are not.
        """
        controller = _controller(pod.metadata.owner_references)
        if controller is None:
            return _NOBODY
        above = self._what_is_above(pod, controller)
        found = self._member(pod, above, without_missing)
        if not above.settings:
            return found
        return replace(found, membership=replace(found.membership, owner_settings=above.settings))

    def _member(self, pod: Pod, above: _Above, without_missing: bool) -> OwnedMember:
        if above.chain.missing is not None and not without_missing:
            return OwnedMember(_NOBODY.membership, missing=above.chain.missing)
        asked = above.asked
        if asked_of(pod) != _UNASKED:
            asked = _Asked.of((pod, *above.chain.owners))
        if not above.owners:
            return _of_unknown(pod, above.chain, asked)
        if asked.off:
            return _NOBODY
        for row, read in above.owners:
            if row.asked and not (asked.on or asked.minimum is not None or _queues(row, read.obj)):
                continue
            made = _placed(pod, read, row, asked)
            if made.gang is not None:
                read.members.setdefault(made.gang.key, pod.key)
            if made is not _NOBODY:
                return made
        return _NOBODY

    def _what_is_above(self, pod: Pod, controller: OwnerReference) -> _Above:
        """Return what the pods of one controller have in common, until any object changes."""
        if self._version != self._snapshot.objects_version:
            self._version = self._snapshot.objects_version
            self._above.clear()
        key = pod.metadata.namespace, controller
        known = self._above.get(key)
        if known is not None:
            return known
        chain = self.chain(pod)
        rows = ((one, _row(one)) for one in reversed(chain.owners))
        owners = tuple((row, self._read(one, row)) for one, row in rows if row is not None)
        settings = [settings_for_pods(one) for one in chain.owners]
        # Those of the highest owner count most.
        merged = {key: value for one in settings for key, value in one.items()}
        found = _Above(chain, owners, _Asked.of(chain.owners), merged)
        # Pods change without another version of objects.
        missing = chain.missing.kind if chain.missing is not None else ""
        if missing != "Pod" and not any(isinstance(one, Pod) for one in chain.owners):
            self._above[key] = found
        return found

    def _read(self, owner: ApiObject, row: WorkloadKind) -> _Owner:
        key = type(owner), object_key(owner)
        known = self._owners.get(key)
        if known is None or known.obj is not owner:
            before, known = known, _read(owner, row)
            self._owners[key] = known
            if before is not None:
                known.members, known.versions = before.members, before.versions
            known.before = self._before(owner, row) if before is None else before.before
        return known

    def _before(self, owner: ApiObject, row: WorkloadKind) -> tuple[str, ...]:
        """Return the gangs of the objects that a new one takes the place of, and note it."""
        meta = owner.metadata
        maker = _controller(meta.owner_references) if row.successive else None
        if maker is None:
            return ()
        others = self._made_by.setdefault(maker.uid, {})
        found = tuple(others.values())
        others[type(owner), object_key(owner)] = _gang_key(owner, row)
        return found

    def gangs_of(self, owner: ApiObject) -> dict[str, str]:
        """Return the keys of the gangs of an owner's pods, each with the key of one of the pods."""
        known = self._owners.get((type(owner), object_key(owner)))
        return dict(known.members) if known is not None else {}

    def forget(self, owner: ApiObject) -> None:
        """Forget an owner that was deleted."""
        key = type(owner), object_key(owner)
        self._owners.pop(key, None)
        maker = _controller(owner.metadata.owner_references)
        others = self._made_by.get(maker.uid, {}) if maker is not None else {}
        others.pop(key, None)
        if maker is not None and not others:
            self._made_by.pop(maker.uid, None)


class _Above(msgspec.Struct, frozen=True):
    """What owns some pods: the chain, those in it with rows, the highest first, what they ask.

    ``settings`` are labels and annotations of theirs that count for the pods.
    """

    chain: OwnerChain
    owners: tuple[tuple[WorkloadKind, _Owner], ...]
    asked: _Asked
    settings: Mapping[str, str]


class _Asked(msgspec.Struct, frozen=True):
    """What annotations say of a gang; the pod's own come first, then those of its owners."""

    on: bool = False
    off: bool = False
    minimum: int | None = None
    problem: str | None = None

    @classmethod
    def of(cls, objects: Iterable[ApiObject]) -> _Asked:
        found: dict[str, str] = {}
        for one in objects:
            for name, value in zip(
                (GANG_ANNOTATION, MINIMUM_ANNOTATION), asked_of(one), strict=True
            ):
                if value is not None:
                    found.setdefault(name, value)
        if not found:
            return _NOTHING
        said, least = found.get(GANG_ANNOTATION), found.get(MINIMUM_ANNOTATION)
        problem = None
        if said not in (None, "true", "false"):
            problem = f'annotation {GANG_ANNOTATION}: expected "true" or "false", got "{said[:40]}"'
        if least is not None and not (is_index(least) and int(least) > 0):
            problem = (
                f"annotation {MINIMUM_ANNOTATION}: expected a whole number of 1 or more, "
                f'got "{least[:40]}"'
            )
            least = None
        minimum = int(least) if least is not None else None
        return cls(said == "true" or problem is not None, said == "false", minimum, problem)


_NOTHING = _Asked()
_UNASKED = (None, None)


def _placed(pod: Pod, owner: _Owner, row: WorkloadKind, asked: _Asked) -> OwnedMember:
    labels = pod.metadata.labels
    units = [labels.get(key, "") for key in row.unit.split(",")] if row.unit else []
    unit = ":".join(units) if row.unit else None
    role = role_of(owner.roles, labels)
    if all(units) and not owner.roles and owner.problem is None:
        # Scaled to zero: its last pods are of its workload until they are gone.
        part = _part_of(row, owner.obj, unit)
        return OwnedMember(Membership(None, part=part)) if part is not None else _NOBODY
    if not all(units) or (role is None and owner.problem is None):
        # A pod beside those of its templates, such as one that submits the job.
        return _NOBODY
    # Mostly nobody asks for anything.
    place = unit, role.name if role is not None else "", None if asked is _NOTHING else asked
    known = owner.places.get(place)
    if known is None:
        made = _place(owner, row, unit, role, asked)
        if made.gang is not None:
            made = replace(made, gang=_following(made.gang, owner, row, units))
        known = owner.places[place] = _agreed(owner, made)
    rank = _rank_in_parts(role, labels) if role is not None else None
    if rank is None:
        return known
    return replace(known, membership=replace(known.membership, rank=rank))


def _rank_in_parts(role: Role, labels: Mapping[str, str]) -> int | None:
    """Return the rank of a pod in a role of equal parts, one part after the other.

    None without parts, or where the pod does not say which is its own.
    """
    if role.part is None:
        return None
    part, index = labels.get(role.part.label, ""), labels.get(role.made.index, "")
    return int(part) * role.part.size + int(index) if is_index(part) and is_index(index) else None


def _gang_key(owner: ApiObject, row: WorkloadKind) -> str:
    meta = owner.metadata
    return f"{meta.namespace}/{title_of(row)}:{meta.name}"


def _following(gang: Gang, owner: _Owner, row: WorkloadKind, units: Sequence[str]) -> Gang:
    """Return a gang that knows what makes its pods, and whose place it takes."""
    meta, kind = owner.obj.metadata, kind_of(owner.obj)
    version = "/".join(filter(None, (kind.group, kind.versions[0])))
    made_by = OwnedPart(OwnerReference(kind.name, meta.name, meta.uid, version), ":".join(units))
    found = list(owner.before)
    if row.revision:
        keys = row.unit.split(",")
        stem = tuple(one for key, one in zip(keys, units, strict=True) if key != row.revision)
        versions = owner.versions.setdefault(stem, {})
        found += [key for key in versions if key != gang.key]
        versions[gang.key] = None
    if owner.wanted and (before := part_before(owner.wanted, units[0])):
        head = f"{_gang_key(owner.obj, row)}:{units[0]}"
        found.append(gang.key.replace(head, f"{head.removesuffix(units[0])}{before}", 1))
    return replace(gang, owner=made_by, predecessors=tuple(found))


def _agreed(owner: _Owner, made: OwnedMember) -> OwnedMember:
    """Return a place; pods that ask for different gangs have none until they agree."""
    gang = made.gang
    if gang is None:
        return made
    before = owner.gangs.setdefault(gang.key, gang)
    if before is gang:
        return made
    if before == gang:
        return replace(made, gang=before)
    problem = "its pods, or what owns them, ask for different minimums"
    owner.gangs[gang.key] = replace(gang, problem=problem)
    for place, other in owner.places.items():
        if other.gang is not None and other.gang.key == gang.key:
            owner.places[place] = replace(other, gang=owner.gangs[gang.key])
    return replace(made, gang=owner.gangs[gang.key])


def _of_unknown(pod: Pod, chain: OwnerChain, asked: _Asked) -> OwnedMember:
    """Return a pod's place where no row knows what owns it: in a gang if it says how large."""
    owner = chain.unknown
    if owner is None and (asked.on or asked.minimum is not None):
        # Such as executors of a Spark driver that nobody owns.
        owner = _controller(
            (chain.owners[-2] if len(chain.owners) > 1 else pod).metadata.owner_references
        )
    # Whatever makes ReplicaSets rolls out services, whose pods do not wait for each other.
    if owner is None or asked.off or any(isinstance(one, ReplicaSet) for one in chain.owners):
        return _NOBODY
    group = owner.api_version.rpartition("/")[0]
    if asked.minimum is None and not asked.on:
        if (group, owner.kind) in SINGLE_PODS:
            return _NOBODY
        return OwnedMember(_NOBODY.membership, unknown=owner)
    kind = f"{owner.kind}.{group}"
    name = f"{pod.metadata.namespace}/{kind}:{owner.name}"
    problem = asked.problem
    if asked.minimum is None and problem is None:
        problem = f"how many pods it has is not known; annotation {MINIMUM_ANNOTATION} says it"
    policy: MatchPolicy = "until-all-end"
    gang = Gang(name, asked.minimum or 1, match_policy=policy, problem=problem)
    return OwnedMember(Membership(name, definition=gang))


def _place(
    owner: _Owner, row: WorkloadKind, unit: str | None, role: Role | None, asked: _Asked
) -> OwnedMember:
    """Return the place of the pods of one part and one role of an owner."""
    minimum = owner.minimum
    name = _gang_key(owner.obj, row)
    if unit is not None:
        name += f":{unit}"
    if role is None:
        broken = Gang(name, 1, problem=owner.problem)
        return OwnedMember(Membership(name), broken, source_of(owner.obj))
    roles = tuple(one for one in owner.roles if not one.later)
    if role.later:
        roles, minimum, name = (role,), None, f"{name}:{role.name}"
    least = asked.minimum if asked.minimum is not None else minimum
    if row.asked and not asked.on and least is None:
        # Nobody but its queue asks: it has quota for all of them, and they come one by one.
        least = 1
    problem = asked.problem or owner.problem
    if role.serial and role.count > 1 and least != 1 and problem is None:
        problem = "its pods are created one after the other, so they cannot wait for each other"
    gang, of_each = _gang(name, roles, least)
    if problem is not None:
        gang = replace(gang, problem=problem)
    try:
        gang = _gathered(gang, owner, row, roles, of_each)
        gang = _in_segments(gang, owner, row, roles, of_each)
        gang = _with_some_roles(gang, owner.some_roles if least is None else None, roles, of_each)
    except ValueError as exc:
        gang = replace(gang, problem=gang.problem or str(exc))
    part = _part_of(row, owner.obj, unit)
    member = Membership(name, role=role.name, part=part)
    return OwnedMember(member, gang, source_of(owner.obj))


def _queues(row: WorkloadKind, obj: ApiObject) -> bool:
    """Tell whether an object, or each part of it, is a workload of the queue that it names."""
    return row.queued and QUEUE_LABEL in obj.metadata.labels and not _is_of_part(obj)


def _is_of_part(obj: ApiObject) -> bool:
    """Tell whether an object was made for a part of another that has a workload for each.

    So is the StatefulSet of a LeaderWorkerSet's leader, also while that leader is away.
    """
    maker = _controller(obj.metadata.owner_references)
    if maker is None:
        return False
    row = KINDS_OF_WORKLOADS.get((maker.api_version.rpartition("/")[0], maker.kind))
    return maker.kind == "Pod" or (row is not None and row.queued)


def _part_of(row: WorkloadKind, obj: ApiObject, unit: str | None) -> OwnedPart | None:
    """Return the part of an object that is a workload of a queue; None where none is."""
    if not _queues(row, obj):
        return None
    meta, kind = obj.metadata, kind_of(obj)
    version = "/".join(filter(None, (kind.group, kind.versions[0])))
    return OwnedPart(OwnerReference(kind.name, meta.name, meta.uid, version), unit or "")


def _is_cut(role: Role) -> bool:
    """Tell whether the equal parts of a role are sub-groups, each with what it needs."""
    return role.part is not None and (role.made.whole or role.part.least < role.part.size)


def _gathered(
    gang: Gang,
    owner: _Owner,
    row: WorkloadKind,
    roles: tuple[Role, ...],
    least: Sequence[int],
) -> Gang:
    """Return a gang in the domains that its owner and the templates of its roles ask for.

    :raises ValueError: for annotations that contradict each other.
    """
    whole = placement_of(owner.obj.metadata.annotations)
    if owner.domain and not whole.gather:
        whole = replace(whole, gather=(Gather(owner.domain, required=True),))
    in_parts = any(_is_cut(role) for role in roles)
    of_role = [placement_of(_annotations(role)) for role in roles]
    shared = {one.together for one in of_role if one.gather}
    if (len({role.pointer for role in roles}) == 1 and not in_parts) or (
        len(shared) == 1 and "" not in shared and all(one.gather for one in of_role)
    ):
        # Its only pods, or pod sets that share a domain: the first one says which.
        whole = of_role[0] if of_role[0].gather or of_role[0].slices else whole
        of_role = [Placement()] * len(roles)
    topologies = (one.topology for one in (whole, *of_role) if one.topology)
    chosen = next((one for one in (whole, *of_role) if one.gather or one.slices), None)
    if chosen is None and not in_parts:
        return gang
    chosen = chosen or Placement()
    gang = replace(
        gang,
        gather=whole.gather,
        slices=whole.slices,
        fill=whole.fill,
        domain_order=chosen.domain_order,
        topology=next(topologies, ""),
    )
    if not in_parts and not any(one.gather or one.slices for one in of_role):
        return gang
    return replace(gang, sub_groups=tuple(_sub_groups(roles, least, of_role)), roles=())


def _in_segments(
    gang: Gang, owner: _Owner, row: WorkloadKind, roles: tuple[Role, ...], least: Sequence[int]
) -> Gang:
    """Return a gang cut into segments, where its templates or its owner ask for that.

    :raises ValueError: for sizes that are none.
    """
    inherited, sizes = owner.obj.metadata.annotations, owner.segments
    rules = [segment_rule(_annotations(role), inherited) for role in roles]
    if row.segments is not None and len(roles) > 1 and owner.roles == roles:
        rule = rules[-1]
        if sizes is None and rule.size is not None:
            sizes = SegmentSizes(row.segments.index, rule.size, leader_excluded=False)
        if sizes is None or sizes.size == 1:
            return gang
        groups = tuple(segments_of_group(sizes, sum(role.count for role in roles), rule.gather))
        topology = gang.topology or (rule.topology if rule.gather else "")
        return replace(gang, sub_groups=groups, roles=(), topology=topology)
    cut = [rule.size if role.made.index else None for role, rule in zip(roles, rules, strict=True)]
    if not any(cut):
        return gang
    known = {one.name: one for one in gang.sub_groups}
    found = list(gang.sub_groups)
    for index, (role, rule, size) in enumerate(zip(roles, rules, cut, strict=True)):
        selector = _selector(role, roles[:index])
        if role.name not in known:
            needed = int(least[index] > 0)
            found.append(SubGroup(role.name, selector, size=least[index], min_groups=needed))
        if size is not None:
            segments = segments_of_role(role, least[index], size, rule.gather, selector)
            found += [replace(one, topology=rule.topology) for one in segments]
    topology = next((rule.topology for rule in rules if rule.gather), "")
    return replace(gang, sub_groups=tuple(found), roles=(), topology=gang.topology or topology)


def _with_some_roles(
    gang: Gang, number: int | None, roles: tuple[Role, ...], least: Sequence[int]
) -> Gang:
    """Return a gang that needs only some of its roles, with all that each of these needs."""
    if number is None or number >= len(roles):
        return gang
    minimum = sum(sorted(least)[:number])
    groups = gang.sub_groups or tuple(_sub_groups(roles, least, [Placement()] * len(roles)))
    if any(one.label_keys or one.parent for one in groups):
        raise ValueError("some of its roles may be missing, so none of them is cut into parts")
    some = tuple(replace(one, kind="role", min_groups=number) for one in groups)
    return replace(gang, min_member=minimum, sub_groups=some, roles=())


def _sub_groups(
    roles: tuple[Role, ...], least: Sequence[int], asked: Sequence[Placement]
) -> Iterator[SubGroup]:
    """Yield a sub-group for each role, and one around the roles that share a domain.

    :param least: the number of pods that each role needs; :param asked: where each asks to be.
    :raises ValueError: where no label tells the roles that share a domain from others.
    """
    groups: dict[str, list[int]] = {}
    for index, one in enumerate(asked):
        if one.together:
            groups.setdefault(one.together, []).append(index)
    shared = {at: name for name, found in groups.items() if len(found) > 1 for at in found}
    for name, found in groups.items():
        if len(found) > 1:
            others = [role for at, role in enumerate(roles) if at not in found]
            selector = _common([roles[at] for at in found], others, name)
            size = sum(least[at] for at in found)
            first = asked[found[0]]
            yield SubGroup(
                name,
                selector,
                size=size,
                min_groups=int(size > 0),
                gather=first.gather,
                topology=first.topology,
            )
    for index, (role, one) in enumerate(zip(roles, asked, strict=True)):
        parent = shared.get(index, "")
        part = role.part if _is_cut(role) else None
        yield SubGroup(
            role.name,
            _selector(role, roles[:index]),
            label_keys=(part.label,) if part is not None else (),
            size=part.least if part is not None else least[index],
            # A role of which no pod is needed does not keep the others from starting.
            min_groups=-(-least[index] // part.least)
            if part is not None
            else int(least[index] > 0),
            gather=() if parent else one.gather,
            topology="" if parent else one.topology,
            slices=one.slices,
            parent=parent,
        )


def _common(roles: Sequence[Role], others: Sequence[Role], group: str) -> Selector:
    """Return what selects the pods of some roles, and of no other."""
    for key in roles[0].labels:
        values = frozenset(role.labels.get(key, "") for role in roles)
        if "" not in values and all(one.labels.get(key) not in values for one in others):
            return Selector((Requirement(key, "In", values),))
    raise ValueError(f'no label tells the pods of the pod sets of "{group}" from others')


def _annotations(role: Role) -> Mapping[str, str]:
    meta = role.template.get("metadata") or {}
    found = meta.get("annotations") if isinstance(meta, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _selector(role: Role, before: tuple[Role, ...]) -> Selector:
    """Return what selects a role's pods: by its labels, else by not having those of others."""
    if role.labels:
        return Selector(
            tuple(Requirement(key, "In", frozenset((value,))) for key, value in role.labels.items())
        )
    others = (item for one in before for item in list(one.labels.items())[:1])
    return Selector(tuple(Requirement(key, "NotIn", frozenset((value,))) for key, value in others))


def _gang(name: str, roles: tuple[Role, ...], minimum: int | None) -> tuple[Gang, Sequence[int]]:
    """Return the gang of some roles, and how many pods it needs of each.

    With a minimum of its own, the last role does with fewer pods, as the workers of a training do.
    """
    least = [role.least for role in roles]
    total = sum(role.count for role in roles)
    if minimum is not None:
        minimum = min(max(1, minimum), total)
        others = sum(least[:-1])
        least[-1] = max(0, min(least[-1], minimum - others))
        if others > minimum:
            least = [0] * len(least)
    else:
        minimum = max(1, sum(least))
    several = len(roles) > 1 and sum(least) > 0
    gang = Gang(
        name,
        minimum,
        roles=tuple((role.name, count) for role, count in zip(roles, least, strict=True) if count)
        if several
        else (),
        match_policy="until-all-end",
    )
    return gang, least


def _controller(references: tuple[OwnerReference, ...]) -> OwnerReference | None:
    for one in references:
        if one.controller:
            return one
    return None


def _row(obj: ApiObject) -> WorkloadKind | None:
    """Return the row of an object whose pods may be a gang."""
    kind = kind_of(obj)
    row = KINDS_OF_WORKLOADS.get((kind.group, kind.name))
    return row if row is not None and not row.below else None


def _read(owner: ApiObject, row: WorkloadKind) -> _Owner:
    content = msgspec.to_builtins(owner, enc_hook=lambda quantity: quantity.text)
    try:
        roles, domain = roles_of(row, content), domain_of(row, content)
        segments = segments_of(row, content)
        return _Owner(
            owner,
            roles,
            minimum_of(row, content),
            lack_of(row, content) or None,
            domain,
            segments,
            some_roles_of(row, content),
            units_of(row, content) if row.surge is not None else 0,
        )
    except ValueError as exc:
        return _Owner(owner, problem=str(exc))
