"""Gangs in bayplan's own terms; the dialects translate every ecosystem's spelling into these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from bayplan.api.meta import OwnerReference
from bayplan.api.selectors import EVERYTHING, Selector

__all__ = [
    "DomainOrder",
    "Fill",
    "Gang",
    "Gather",
    "MatchPolicy",
    "Membership",
    "OwnedPart",
    "Slice",
    "SubGroup",
]

MatchPolicy = Literal[
    "once-satisfied",
    "until-all-end",
    "waiting-and-running",
    "staying-and-succeeded",
    "only-waiting",
]
"""What counts towards the minimum: pending and running pods, only pending pods, or, once the gang
was complete, no minimum at all; ``until-all-end`` begins again when no member is left. With
``staying-and-succeeded`` those that have succeeded count beside pending and running ones, and those
that are being deleted do not."""

Fill = Literal["BestFit", "LargestFirst", "LeastFree", "Balanced", "ByScore"]
"""The order in which the parts of a domain are filled: see the module
:mod:`bayplan.topology.network.packing`. With ``ByScore`` each member takes the node of the domain
that scores best."""

DomainOrder = Literal["LeastOffered", "LeastFree", "OutermostFirst", "MostUsed"]
"""Which of several domains of a layer that can hold a gang is tried first.

``LeastOffered`` is the one that leaves the fewest members' places over, where a node offers no more
than there are members (Koordinator's rule); among equals, the one with the least free.
``LeastFree`` is the one with the least free, whatever is free around it (Kueue's rule).
``OutermostFirst`` lies in the outermost domain with the least free, and so on inwards (KAI's
rule). ``MostUsed`` leaves the fewest members' places over, too, and among equals it is the one of
whose resources most is used, whatever is around it (Volcano's rule)."""


class Gather(msgspec.Struct, frozen=True):
    """Gather the members in one domain of a network layer, as a requirement or a preference.

    ``layer`` is the name of a layer, or the node label that names its domains. A preference with
    ``climb`` also holds for every layer further out, the nearest first.
    """

    layer: str
    required: bool
    climb: bool = False


class Slice(msgspec.Struct, frozen=True):
    """Place members in multiples of ``size`` in each domain of a network layer."""

    layer: str
    size: int


class SubGroup(msgspec.Struct, frozen=True):
    """Members that are gathered in a domain of their own, inside that of the gang.

    ``selector`` selects the members by label; with ``label_keys`` there is one group for each
    combination of the values of these labels. The ``size`` members of a group run together, and at
    least ``min_groups`` groups have to run. Sub-groups of one ``kind`` count together for that; by
    default each is of a kind of its own. ``parent`` names the sub-group that contains this one,
    ``topology`` the network tree of its own rules; "" stands for the gang's.
    """

    name: str
    selector: Selector = EVERYTHING
    label_keys: tuple[str, ...] = ()
    size: int = 1
    min_groups: int = 1
    gather: tuple[Gather, ...] = ()
    slices: tuple[Slice, ...] = ()
    parent: str = ""
    kind: str = ""
    topology: str = ""


class OwnedPart(msgspec.Struct, frozen=True):
    """What owns the pods of a gang, or a part of it.

    :param owner: the object, from one of its pods.
    :param number: of the part; "" where the object is one.
    """

    owner: OwnerReference
    number: str = ""


class Gang(msgspec.Struct, frozen=True):
    """Pods that run together or not at all.

    ``min_member`` is the number of members that have to be placed at once, ``roles`` the number for
    each role. ``topology`` names the network tree of ``gather`` if there are several. ``together``
    are the keys of the gangs that are placed together with this one; ``tree`` says how they are
    grouped, if not all are needed: its leaves are named by their keys. ``wait`` is the scheduling
    timeout in seconds. Without ``strict``, members are placed one by one and keep their nodes while
    they wait for the others. With ``whole``, the gang is only evicted as a whole. ``satisfied``
    says that its object reports it as complete, ``admitted`` that it does not report it as waiting
    for its queue. ``min_resources`` have to be free in the cluster
    (CPU in milli-CPU). ``owner`` is what makes its pods, again where they go; ``predecessors`` are
    the gangs, by key, whose place it takes, as in a rolling update. ``problem`` says what is wrong
    with the definition; it keeps the gang pending.
    """

    key: str
    min_member: int
    gather: tuple[Gather, ...] = ()
    slices: tuple[Slice, ...] = ()
    sub_groups: tuple[SubGroup, ...] = ()
    roles: tuple[tuple[str, int], ...] = ()
    topology: str = ""
    fill: Fill | None = None
    domain_order: DomainOrder = "LeastOffered"
    together: tuple[str, ...] = ()
    tree: tuple[SubGroup, ...] = ()
    match_policy: MatchPolicy = "once-satisfied"
    strict: bool = True
    wait: float | None = None
    whole: bool = False
    satisfied: bool = False
    admitted: bool = True
    min_resources: tuple[tuple[str, int], ...] = ()
    queue: str = ""
    owner: OwnedPart | None = None
    predecessors: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def title(self) -> str:
        """What defines it, as people write it: "PodGroup a/b", or what owns its pods."""
        namespace, _, name = self.key.partition("/")
        kind, colon, owner = name.partition(":")
        return f"{kind} {namespace}/{owner}" if colon else f"PodGroup {self.key}"


class Membership(msgspec.Struct, frozen=True):
    """A pod's membership of a gang: the gang's key, and the pod's rank and role if given.

    ``definition`` is the gang itself if the pod's own annotations define it. ``problem`` says what
    is wrong with the pod's annotations; it keeps the pod pending. ``owner_settings`` are
    labels and annotations of what owns the pod that count for it, in a gang or not. ``part`` is
    that part of it that waits in a queue by itself.
    """

    gang: str | None
    rank: int | None = None
    role: str = ""
    definition: Gang | None = None
    problem: str | None = None
    owner_settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    part: OwnedPart | None = None
