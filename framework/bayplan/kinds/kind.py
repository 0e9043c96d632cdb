"""What a kind of workload means to a scheduler, as data.

A *path* leads through an object's JSON, with dots: ``spec.template``. A step into a list of
conditions names one: ``status.conditions[Running]`` is 1 if it is true. Where entries of a list
have templates, a path leads from the entry, unless it begins with ``spec.``, ``status.`` or
``metadata.``; one that begins with ``./`` leads from the entry in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = [
    "Added",
    "Copied",
    "Counted",
    "Ends",
    "PodTemplates",
    "Segments",
    "Surge",
    "When",
    "WorkloadKind",
]


class When(msgspec.Struct, frozen=True):
    """A condition on an object.

    :param path: where the value is; with ``annotation``, the name of an annotation.
    :param value: what it has to be; empty for anything that is there and is not empty.
    :param negated: whether that must not be so.
    """

    path: str
    value: str = ""
    annotation: bool = False
    negated: bool = False


class Counted(msgspec.Struct, frozen=True):
    """How many entries of a map have one of some values."""

    path: str
    values: tuple[str, ...]


class Added(msgspec.Struct, frozen=True):
    """What an operator adds to the pods of a template that it makes.

    :param when: the condition under which it does.
    :param container: a container, if the template has none of that name.
    :param resources: the path of the container's resources, where the object states others.
    :param least: what the first container has to request for it, by resource.
    """

    when: When
    container: Mapping[str, Any] = msgspec.field(default_factory=dict)
    resources: str = ""
    least: Mapping[str, str] = msgspec.field(default_factory=dict)


class Copied(msgspec.Struct, frozen=True):
    """What an operator copies from a field of the object into the pods that it makes.

    A map is merged into what the template has, a list follows it, and anything else replaces it.

    :param to: the path in the template; one that begins with ``container.`` leads from the main
        container. One that ends with ``.*`` gets an entry of the source's ``name`` and
        ``quantity``.
    :param source: the path in the object; of several with commas, the first that is there, and
        for what is written to it the last if none is.
    :param java: whether it is an amount of memory in Java's words, such as "2g".
    """

    to: str
    source: str
    java: bool = False


class Ends(msgspec.Struct, frozen=True):
    """How an object says that it has ended, and that it ended well.

    :param good: the conditions, or states, of a success; :param bad: of a failure.
    :param state: the path of a state; without it, ``status.conditions`` tell.
    :param success: what tells a success in the state's place.
    :param reason: the path of the reason of an end that a state tells.
    :param message: the path of its message; :param texts: the messages, where it has none.
    :param unless: a condition under which no failure is the end yet.
    :param by: the roles of which the first that there is decides, once all of its pods have
        succeeded; without any, all pods do.
    """

    good: tuple[str, ...]
    bad: tuple[str, ...]
    state: str = ""
    success: When | None = None
    reason: str = ""
    message: str = ""
    texts: Mapping[str, str] = msgspec.field(default_factory=dict)
    unless: When | None = None
    by: tuple[str, ...] = ()


class PodTemplates(msgspec.Struct, frozen=True):
    """A pod template of a kind, or one of each entry of a list or map.

    Pods of one role are alike.

    :param template: the path of the template; several with commas: the first that is there. A role
        without a template has no pods.
    :param role: the role's name; empty for the entry's own name, in lower case.
    :param each: the path of the list or map in which each entry has a template.
    :param name: the field of a list's entry that names it; a map's entries are named by their keys.
    :param count: paths of the factors of the number of pods; one that is absent is 1. A factor may
        be several paths with commas: the smallest that is there.
    :param bounds: the paths of the least and the most that the first factor may be.
    :param less: how many of the last factor another role counts.
    :param least: factors of the number without which the job does not run; where the first is
        absent or 0, all are needed.
    :param left: the paths of how often the role's pods have to succeed, and how often they did: not
        more of them are needed than are left.
    :param indexed: the condition under which each index has to succeed once, and so ``done``
        counts in place of the second path of ``left``.
    :param done: the paths of lists of indexes that have ended, such as "0,2-5".
    :param absent: the path of a value that says, if true, that these pods do not exist.
    :param only: the conditions that have to hold, all of them, for them to exist.
    :param default: the template of pods whose object may leave it out.
    :param image: the path of the containers of which the first has the default's image.
    :param added: what the operator adds to the template; :param copied: what it copies into it.
    :param container: the name of the main container, by default the first.
    :param needed: whether an object without such pods is held, where it may have no empty roles.
    :param fewer: the path of annotations, and the name of the one that says how many pods of each
        equal part are needed.
    :param later: the conditions under each of which the pods are created only once others run, so
        that nothing may wait for them.
    :param serial: the conditions under each of which a pod is created only once the one before it
        is ready, so that they cannot be a gang.
    :param labels: the labels that tell the role's pods from others; ``{role}`` and ``{name}`` stand
        for the role and for the entry's name as it is written.
    :param pod: the names of the pods, where the kind's operator makes them itself, see
        :class:`WorkloadKind`.
    :param first: the index of the first of them.
    :param index: the label of pods that has their index.
    :param part: the label of pods that tells equal parts of the role, and the path of their number.
    :param whole: whether each of these parts is placed as a whole: beyond what is needed, in parts.
    :param status: the path of a list or map in which an entry of the role's name says how far the
        pods are; without it, paths of ``ready`` and ``succeeded`` lead from the object.
    :param ready: the paths of the numbers of those that are ready or have succeeded, each of which
        counts for as many pods as the factors of the number after the first; or conditions under
        each of which one more is; or entries of a map that say so.
    :param succeeded: the path of the number of those that have succeeded.
    """

    template: str
    role: str = ""
    each: str = ""
    name: str = "name"
    count: tuple[str, ...] = ()
    bounds: tuple[str, str] | None = None
    less: int = 0
    least: tuple[str, ...] = ()
    left: tuple[str, str] | None = None
    indexed: When | None = None
    done: tuple[str, ...] = ()
    absent: str = ""
    only: tuple[When, ...] = ()
    default: Mapping[str, Any] | None = None
    image: str = ""
    added: tuple[Added, ...] = ()
    copied: tuple[Copied, ...] = ()
    container: str = ""
    needed: bool = False
    fewer: tuple[str, str] | None = None
    later: tuple[When, ...] = ()
    serial: tuple[When, ...] = ()
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    pod: str = ""
    first: int = 0
    index: str = ""
    part: tuple[str, str] | None = None
    whole: bool = False
    status: str = ""
    ready: tuple[str | When | Counted, ...] = ()
    succeeded: str = ""


class Segments(msgspec.Struct, frozen=True):
    """How the pods of an indivisible part of an object are cut into segments, by index.

    :param index: the label of pods that has it; :param size: the path of the size of a segment.
    :param leader_excluded: the condition under which the first pod is in no segment.
    """

    index: str
    size: str
    leader_excluded: When


class Surge(msgspec.Struct, frozen=True):
    """Parts that a rolling update adds to an object, until all of them are new.

    :param most: the path of how many it may add; :param parts: of how many there are;
        :param updated: of how many of these are new.
    """

    most: str
    parts: str
    updated: str


class WorkloadKind(msgspec.Struct, frozen=True):
    """A kind whose objects own pods, themselves or through other objects.

    :param pods: its pod templates, in the order in which roles are looked for.
    :param minimum: paths of the number of pods that it needs to run, of all roles.
    :param some_roles: the annotation that says how many of its roles it needs to run.
    :param no_empty_roles: whether an object is held that has a role with a number of 0 pods.
    :param wraps: the path of a list in which each entry has an object as its ``template``; its pods
        are those of these objects.
    :param unit: the labels of pods, with commas, whose values tell its indivisible parts, each a
        gang; without them, the object is one.
    :param units: the path of the number of these parts.
    :param revision: that one of these labels which tells the versions of a rolling update, each of
        which takes the place of the one before.
    :param successive: whether one controller makes such objects one after the other, each of which
        takes the place of the one before.
    :param surge: where parts are while a rolling update adds some beyond that number.
    :param queued: whether each of these parts, or the object without any, has a Workload in Kueue's
        queues, although no such object is ever suspended.
    :param segments: how such a part is cut into segments.
    :param domain: the path of a label of nodes of which all pods of a gang have one value.
    :param asked: whether it is a gang only where an annotation asks for one.
    :param below: whether only the objects that it makes are gangs, each by its own row.
    :param suspend: the path of the value that says, if true, that it has no pods for now.
    :param elsewhere: the conditions under all of which it is no job of a queue, as others make its
        pods.
    :param managed_by: the path of the controller that makes its pods, if not its own.
    :param started: the field of its status that has to go so that its templates may change.
    :param ends: how it says that it has ended; None for what runs until it is deleted.
    :param on_hold: the condition under which its controller makes no pods until the object changes.
    :param clean: the path of what becomes of its pods at its end: those that run go with
        "Running", all with "All".
    :param running: the path of what says, if true, that all of its pods run.
    :param ready: the paths of the numbers of its pods that are ready, where roles do not say it.
    :param priority: the paths of the priority class of its pods; without any, it is that of the
        first role with one.
    :param labels: labels of all of its pods. In names and labels of pods, ``{object}`` stands for
        the name of the object, ``{unit}`` and ``{index}`` for the number of the part and of the pod
        in its role.
    """

    group: str
    name: str
    pods: tuple[PodTemplates, ...]
    minimum: tuple[str, ...] = ()
    some_roles: str = ""
    no_empty_roles: bool = False
    wraps: str = ""
    unit: str = ""
    units: str = ""
    revision: str = ""
    successive: bool = False
    surge: Surge | None = None
    queued: bool = False
    segments: Segments | None = None
    domain: str = ""
    asked: bool = False
    below: bool = False
    suspend: str = ""
    elsewhere: tuple[When, ...] = ()
    managed_by: str = ""
    started: str = ""
    ends: Ends | None = None
    on_hold: When | None = None
    clean: str = ""
    running: str = ""
    ready: tuple[str, ...] = ()
    priority: tuple[str, ...] = ()
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
