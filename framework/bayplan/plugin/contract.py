"""The contract between framework and plugins: what a class must look like, what hooks return.

The class is checked when it is loaded, each answer when the hook is called, so that every mistake
gets a message that names the plugin.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any
from weakref import WeakSet

from bayplan.api.podgroup import UnschedulableReason
from bayplan.cluster.protocol import Event, PatchAnnotations, PatchStatus
from bayplan.errors import InputError, did_you_mean
from bayplan.plugin import hookspecs
from bayplan.plugin.base import (
    LATER,
    SKIP,
    Args,
    NodeRequest,
    Normalize,
    Overdue,
    Placements,
    Preemption,
    PreFilterResult,
    Preparation,
    Reads,
    Refusal,
    Skip,
    Unit,
    Wait,
)
from bayplan.plugin.devices import NodeDevices
from bayplan.plugin.events import ClusterEvent
from bayplan.plugin.plugin import Plugin
from bayplan.queues.report import PendingJob, QueuePosition, QueueReport
from bayplan.snapshot import PodInfo
from bayplan.topology.network.tree import NetworkTree

__all__ = [
    "ANSWERS",
    "QUEUEING_ANSWERS",
    "Answer",
    "check_class",
    "finite_number",
    "hook_names",
    "hooks_of",
]

_MARK = f"{hookspecs.PROJECT}_impl"
_OPTIONS = ("hookwrapper", "wrapper", "tryfirst", "trylast", "optionalhook", "specname")


@cache
def hook_names() -> Mapping[str, tuple[str, ...]]:
    """Return every hook with the names of its arguments, in the order of a cycle."""
    names = {
        name: tuple(inspect.signature(function).parameters)
        for name, function in vars(hookspecs).items()
        if hasattr(function, f"{hookspecs.PROJECT}_spec")
    }
    return MappingProxyType(names)


def hooks_of(cls: type[Plugin[Any]]) -> list[str]:
    """Return the hooks that a plugin class implements, in the order of a cycle."""
    return [name for name in hook_names() if hasattr(getattr(cls, name, None), _MARK)]


# The class -----------------------------------------------------------------------------------


_checked: WeakSet[type[Plugin[Any]]] = WeakSet()
"""Classes that keep the contract: each is checked once, though every profile asks again."""


def check_class(name: str, cls: type[Plugin[Any]], where: str = "") -> None:
    """Check a plugin class without making one.

    :raises InputError: saying what to fix.
    """
    if cls in _checked:
        return

    def wrong(text: str) -> InputError:
        return InputError(f'plugin "{name}": {text}', where)

    for attribute, kind in (
        ("reads", Reads),
        ("by_spec", bool),
        ("locks_nodes", bool),
        ("normalize_scores", Normalize),
        ("requeue_on", ClusterEvent),
    ):
        value = getattr(cls, attribute)
        if not isinstance(value, kind):
            raise wrong(f"{attribute} has to be a {kind.__name__}, got {value!r}")
    if not isinstance(cls.gate_reads, Container | None):
        raise wrong(f"gate_reads has to be a set of types or None, got {cls.gate_reads!r}")
    model: Any = cls.Args
    if not (inspect.isclass(model) and issubclass(model, Args)):
        raise wrong(f"Args has to be a subclass of bayplan.Args, got {model!r}")
    marked = {
        attribute: function
        for attribute in dir(cls)
        if hasattr(function := inspect.getattr_static(cls, attribute), _MARK)
    }
    if not marked:
        raise wrong("implements no hook; mark methods with @hookimpl")
    known = hook_names()
    for hook, function in marked.items():
        _check_hook(hook, function, known, wrong)
    if cls.by_spec and "sign" in marked:
        raise wrong("has a sign, though by_spec says that nothing but the spec counts")
    if cls.normalize_scores is Normalize.HOOK and "normalize" not in marked:
        raise wrong("normalize_scores is Normalize.HOOK, but there is no normalize hook")
    _checked.add(cls)


def _check_hook(
    hook: str,
    function: Any,
    known: Mapping[str, tuple[str, ...]],
    wrong: Callable[[str], InputError],
) -> None:
    if hook not in known:
        raise wrong(f'there is no hook "{hook}"{did_you_mean(hook, known)}')
    options = getattr(function, _MARK)
    for option in _OPTIONS:
        if options.get(option):
            raise wrong(f"{hook} uses {option}; the profile alone decides the order of plugins")
    if inspect.iscoroutinefunction(function):
        raise wrong(f"{hook} is async; hooks are plain functions")
    arguments = known[hook]
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters[1:]:
        if parameter.name not in arguments:
            near = did_you_mean(parameter.name, arguments)
            raise wrong(
                f'{hook} takes no argument "{parameter.name}"{near}; '
                f"it can take {', '.join(arguments)}"
            )


# The answers ---------------------------------------------------------------------------------


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def finite_number(value: Any) -> bool:
    """Tell whether a plugin's answer is a finite number."""
    # A union of types takes twice as long to check.
    return isinstance(value, (float, int)) and math.isfinite(value)


def _points(value: Any) -> bool:
    return value is None or value == -math.inf or finite_number(value)


def _key(value: Any) -> bool:
    return isinstance(value, tuple) and all(finite_number(part) for part in value)


def _permit(value: Any) -> bool:
    if isinstance(value, Wait):
        return finite_number(value.seconds) and value.seconds >= 0
    return _text(value)


def _sequence_of(kind: type | tuple[type, ...]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        is_sequence = isinstance(value, Sequence) and not isinstance(value, str)
        return is_sequence and all(isinstance(one, kind) for one in value)

    return check


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _annotations(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, dict) and all(
        isinstance(part, str) for pair in value.items() for part in pair
    )


Answer = tuple[Callable[[Any], bool], str]

ANSWERS: dict[str, Answer] = {
    "concerns": (lambda v: isinstance(v, bool), "True or False"),
    "pre_enqueue": (_text, "None or a text"),
    "queue_sort": (_key, "a tuple of numbers"),
    "requeue_hint": (lambda v: isinstance(v, bool), "True or False"),
    "pre_filter": (
        lambda v: v is SKIP or isinstance(v, PreFilterResult) or _text(v),
        "None, a text, SKIP or a PreFilterResult",
    ),
    "serves": (lambda v: isinstance(v, frozenset), "a frozenset of resources"),
    "filter_node": (lambda v: isinstance(v, Refusal) or _text(v), "None, a text or a Refusal"),
    "post_filter": (
        lambda v: v is LATER or isinstance(v, Preemption) or _text(v),
        "None, a text, LATER or a Preemption",
    ),
    "may_preempt": (lambda v: v is None or isinstance(v, bool), "None, True or False"),
    "overdue": (lambda v: v is None or isinstance(v, Overdue), "None or an Overdue"),
    "request_nodes": (lambda v: v is None or isinstance(v, NodeRequest), "None or a NodeRequest"),
    "pre_score": (lambda v: v is None or isinstance(v, Skip), "None or SKIP"),
    "score_node": (finite_number, "a finite number"),
    "placement_generate": (
        lambda v: v is None or isinstance(v, Placements),
        "None or Placements",
    ),
    "placement_score": (finite_number, "a finite number"),
    "reserve": (_text, "None or a text"),
    "permit": (_permit, "None, a text or Wait(seconds)"),
    "device_score": (_points, "None, a finite number or -inf"),
    "may_give_up": (_sequence_of(PodInfo), "a sequence of PodInfos"),
    "group_status": (
        _sequence_of((PatchStatus, PatchAnnotations, Event)),
        "a sequence of PatchStatus, PatchAnnotations and Event",
    ),
    "network_tree": (lambda v: v is None or isinstance(v, NetworkTree), "None or a NetworkTree"),
    "node_devices": (
        lambda v: v is None or isinstance(v, NodeDevices),
        "None or NodeDevices",
    ),
    "queueing": (
        lambda v: all(callable(getattr(v, name, None)) for name in QUEUEING_ANSWERS),
        "a Queueing, with all of its methods",
    ),
    "pre_bind": (
        lambda v: isinstance(v, Preparation) or _text(v),
        "None, a text or a Preparation",
    ),
    "bind": (_annotations, "None or a dict of texts"),
}
"""For each hook that returns a single value: a check of the value, and its description.

Columns and iterables (filter, score, normalize, slots, remedies, relax) are checked where they
are consumed, against the nodes they belong to.
"""


QUEUEING_ANSWERS: dict[str, Answer] = {
    "queue_of": (_text, "None or a text"),
    "order": (_or_none(_key), "None or a tuple of numbers"),
    "next_queue": (_text, "None or a text"),
    "is_strict": (lambda v: isinstance(v, bool), "True or False"),
    "pods_to_place": (_or_none(_sequence_of(PodInfo)), "None or a sequence of PodInfos"),
    "actions": (_or_none(_sequence_of(str)), "None or a sequence of texts"),
    "reports": (_sequence_of(QueueReport), "a sequence of QueueReports"),
    "statuses": (
        _sequence_of((PatchStatus, PatchAnnotations)),
        "a sequence of PatchStatus and PatchAnnotations",
    ),
    "position": (lambda v: v is None or isinstance(v, QueuePosition), "None or a QueuePosition"),
    "jobs": (_or_none(_sequence_of(PendingJob)), "None or a sequence of PendingJobs"),
    "units_of_job": (_or_none(_sequence_of(Unit)), "None or a sequence of Units"),
    "unschedulable_reason": (
        lambda v: v is None or isinstance(v, UnschedulableReason),
        "None or an UnschedulableReason",
    ),
    "requeue": (lambda v: isinstance(v, bool), "True or False"),
    "keep_in_place": (_text, "None or a text"),
    "is_admitted": (lambda v: isinstance(v, bool), "True or False"),
    "admitted_without": (_text, "None or a text"),
}
"""For each method of :class:`~bayplan.plugin.queueing.Queueing`: a check, and its description."""
