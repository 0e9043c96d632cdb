"""Gangs in bayplan's own words; every ecosystem's spelling is turned into these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bayplan.api.selectors import EVERYTHING, Selector

__all__ = ["Fill", "Gang", "Gather", "MatchPolicy", "Membership", "Slice", "SubGroup"]

MatchPolicy = Literal["once-satisfied", "waiting-and-running", "only-waiting"]
"""What counts towards the minimum: pods to be placed and pods that run; only the former; or, once
the gang was complete, nothing any more."""

Fill = Literal["BestFit", "LargestFirst", "LeastFree", "Balanced"]
"""In which order a domain's parts are filled; see :mod:`bayplan.topology.network.packing`."""


@dataclass(frozen=True)
class Gather:
    """Put the members into one domain of a network layer: a must, or a preference.

    ``layer`` is a layer's name, or the node label that names its domains. A preference with
    ``climb`` holds for every layer further out as well, the nearest first.
    """

    layer: str
    required: bool
    climb: bool = False


@dataclass(frozen=True)
class Slice:
    """Place members by multiples of ``size`` in every domain of a network layer."""

    layer: str
    size: int


@dataclass(frozen=True)
class SubGroup:
    """Members that have a place of their own within the gang's.

    ``selector`` says which members, by label; with ``label_keys`` there is one such group for each
    combination of the labels' values. ``size`` members of a group run together, and at least
    ``min_groups`` groups have to. ``parent`` names the sub-group that contains this one.
    """

    name: str
    selector: Selector = EVERYTHING
    label_keys: tuple[str, ...] = ()
    size: int = 1
    min_groups: int = 1
    gather: tuple[Gather, ...] = ()
    slices: tuple[Slice, ...] = ()
    parent: str = ""


@dataclass(frozen=True)
class Gang:
    """Pods that run together or not at all.

    ``min_member`` counts the members that have to be placed at once, ``roles`` those of each
    role. ``topology`` names the network tree that ``gather`` speaks of, where there are several.
    ``together`` are the keys of the gangs that are placed as one with this one. ``wait`` is for
    how many seconds its members are waited for. With ``strict`` off, members are placed as they
    fit and hold their places. With ``whole`` the gang is only ever evicted as a whole.
    ``satisfied`` says that it was complete before, as its object tells. ``min_resources`` have to
    be free in the cluster (cpu in milli). ``problem`` says what is wrong with the definition, and
    keeps the gang pending.
    """

    key: str
    min_member: int
    gather: tuple[Gather, ...] = ()
    slices: tuple[Slice, ...] = ()
    sub_groups: tuple[SubGroup, ...] = ()
    roles: tuple[tuple[str, int], ...] = ()
    topology: str = ""
    fill: Fill | None = None
    together: tuple[str, ...] = ()
    match_policy: MatchPolicy = "once-satisfied"
    strict: bool = True
    wait: float | None = None
    whole: bool = False
    satisfied: bool = False
    min_resources: tuple[tuple[str, int], ...] = ()
    queue: str = ""
    problem: str | None = None


@dataclass(frozen=True)
class Membership:
    """A pod's place in a gang: the gang's key and, where given, the pod's rank and role in it.

    ``definition`` is the gang itself where the pod's own annotations define it.
    """

    gang: str | None
    rank: int | None = None
    role: str = ""
    definition: Gang | None = None
    problem: str | None = None
