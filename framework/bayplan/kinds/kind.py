"""What a kind of workload means to a scheduler, as data.

A *path* leads through an object's JSON, with dots: ``spec.template``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PodTemplates", "When", "WorkloadKind"]


@dataclass(frozen=True)
class When:
    """A condition on an object.

    :param path: where the value is; with ``annotation``, the name of an annotation.
    :param value: what it has to be; empty for anything that is there and is not empty.
    """

    path: str
    value: str = ""
    annotation: bool = False


@dataclass(frozen=True)
class PodTemplates:
    """A pod template of a kind, or one of each entry of a list or map.

    Pods of one role are alike. With ``each``, paths lead from the entry, except those that begin
    with ``spec.``.

    :param template: the path of the template; several with commas: the first that is there. A role
        without a template has no pods.
    :param role: the role's name; empty for the entry's own name, in lower case.
    :param each: the path of the list or map in which each entry has a template.
    :param name: the field of a list's entry that names it; a map's entries are named by their keys.
    :param count: paths of the factors of the number of pods; one that is absent is 1. A factor may
        be several paths with commas: the smallest that is there.
    :param bounds: the paths of the least and the most that the first factor may be.
    :param less: how many of these pods another role counts.
    :param least: factors of the number without which the job does not run; where the first is
        absent or 0, all are needed.
    :param left: the paths of how often the role's pods have to succeed, and how often they did: not
        more of them are needed than are left.
    :param absent: the path of a value that says, if true, that these pods do not exist.
    :param later: the conditions under each of which the pods are created only once others run, so
        that nothing may wait for them.
    :param serial: the conditions under each of which a pod is created only once the one before it
        is ready, so that they cannot be a gang.
    :param labels: the labels that tell the role's pods from others; ``{role}`` and ``{name}`` stand
        for the role and for the entry's name as it is written.
    :param pod: the names of the pods, where the kind's operator makes them itself, see
        :class:`WorkloadKind`.
    :param first: the index of the first of them.
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
    absent: str = ""
    later: tuple[When, ...] = ()
    serial: tuple[When, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    pod: str = ""
    first: int = 0


@dataclass(frozen=True)
class WorkloadKind:
    """A kind whose objects own pods, themselves or through other objects.

    :param pods: its pod templates, in the order in which roles are looked for.
    :param minimum: paths of the number of pods that it needs to run, of all roles.
    :param unit: the label of pods whose value tells its indivisible parts, each a gang; without
        it, the object is one.
    :param units: the path of the number of these parts.
    :param asked: whether it is a gang only where an annotation asks for one.
    :param suspend: the path of the value that says, if true, that it has no pods for now.
    :param labels: labels of all of its pods. In names and labels of pods, ``{object}`` stands for
        the name of the object, ``{unit}`` and ``{index}`` for the number of the part and of the pod
        in its role.
    """

    group: str
    name: str
    pods: tuple[PodTemplates, ...]
    minimum: tuple[str, ...] = ()
    unit: str = ""
    units: str = ""
    asked: bool = False
    suspend: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
