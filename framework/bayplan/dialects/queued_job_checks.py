"""What Kueue's webhooks refuse of a job in a queue.

Without them such a job is there; it is held, and its first problem says why.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal

import msgspec

from bayplan.api import ApiObject, Job, ObjectMeta, RayCluster, RayJob
from bayplan.api.objects import kind_of
from bayplan.api.operated import RayService, TrainJob
from bayplan.dialects.kueue import (
    MOST_SLICE_LAYERS,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    SET_GROUP,
    SLICE_LAYERS,
    SLICE_SIZE,
    SLICE_TOPOLOGY,
    UNCONSTRAINED_TOPOLOGY,
)
from bayplan.dialects.reading import is_index
from bayplan.inputs.jsontext import parse_json
from bayplan.inputs.limits import ANNOTATION
from bayplan.kinds import KINDS_OF_WORKLOADS, TemplateOf, WorkloadKind, units_of

__all__ = [
    "DOMAIN_PATH",
    "ELASTIC_ANNOTATION",
    "ELASTIC_KINDS",
    "GATES_ANNOTATION",
    "LEAST_PODS",
    "LONGEST_GATE",
    "LONGEST_TIME",
    "MOST_SETS",
    "PREBUILT",
    "PRIORITY_LABEL",
    "QUEUE_LABEL",
    "SAME_COMPLETIONS",
    "SUBDOMAIN",
    "Kind",
    "Refusal",
    "Why",
    "gates_of",
    "is_subdomain",
    "prebuilt_of",
    "refusals_of",
]

ELASTIC_ANNOTATION = "kueue.x-k8s.io/elastic-job"
"""Of jobs, with the value "true", that may grow and shrink while they run."""
GATES_ANNOTATION = "kueue.x-k8s.io/admission-gated-by"
"""Of jobs: the controllers that have to remove their names before the job may be admitted."""
_DOMAIN = "kueue.x-k8s.io/"
QUEUE_LABEL = f"{_DOMAIN}queue-name"
PRIORITY_LABEL = f"{_DOMAIN}priority-class"
"""Of jobs and pods: the name of a class of workloads."""
PREBUILT = f"{_DOMAIN}prebuilt-workload-name"
LONGEST_TIME = f"{_DOMAIN}max-exec-time-seconds"
LEAST_PODS = f"{_DOMAIN}job-min-parallelism"
"""Of a Job: the number of pods that it can run with."""
SAME_COMPLETIONS = f"{_DOMAIN}job-completions-equal-parallelism"
"""Of a Job: its completions change with its parallelism."""
ELASTIC_KINDS = ("Job", "RayCluster", "RayJob", "RayService")
"""Those whose jobs may grow and shrink while they run."""
MOST_SETS = 18
"""The number of pod sets that a Workload may have."""
LONGEST_GATE = 63
SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""The pattern of names of objects."""
DOMAIN_PATH = rf"{SUBDOMAIN}/[A-Za-z0-9/._~%!$&'()*+,;=:-]+"
"""The pattern of names of controllers, such as example.com/budget."""
_SUBDOMAIN = re.compile(SUBDOMAIN)
_DOMAIN_PATH = re.compile(DOMAIN_PATH)
_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))

Kind = Literal[
    "Invalid value", "Required value", "Forbidden", "Too long", "Too many", "Duplicate value"
]
Annotations = Mapping[str, str]


class Why(StrEnum):
    """Why a field is refused, of what policies of the API server refuse, too."""

    SUBDOMAIN = "expected a DNS subdomain"
    SECONDS = "expected a number of seconds of 1 or more"
    DOMAIN_PATH = "expected paths with a domain, such as example.com/gate"
    LONGEST_GATE = f"at most {LONGEST_GATE} bytes"
    TWICE = "names a gate twice"
    NOT_ELASTIC = "no object of this kind is elastic in a queue"
    RUNS = "cannot change while it runs"
    IMMUTABLE = "cannot change"
    CLASS_LATE = "a class of workloads cannot be added while it runs"
    CLASS_GONE = "a class of workloads cannot be removed"
    QUEUE_GONE = "cannot be removed"
    DEFAULT_QUEUE = "cannot be removed in a namespace with a LocalQueue default"
    NEW_GATE = "controllers can be added at creation alone, and then only be removed"
    PARTIAL = f"cannot change while it runs with {LEAST_PODS}"
    TRUE = 'expected "true"'
    GROUP_AND_TOTAL = "the name of a group of pods and their total number belong together"
    PODS = "expected a number of pods of 1 or more"
    OF_GROUP = "the Workload of a group of pods has the name of the group"
    UNRETRIABLE = "a group cannot become retriable again"
    SIZE = "can change only to zero and from zero in a queue"
    ENDING = "cannot change while its last pods end"
    ASKED = "cannot change in a queue"


class Refusal(msgspec.Struct, frozen=True):
    """One field that is refused, and why; ``kind`` is the word of Kubernetes' field errors."""

    kind: Kind
    field: str
    why: str

    def __str__(self) -> str:
        """Return the refusal as Kubernetes words it."""
        return f"{self.field}: {self.kind}: {self.why}"


def refusals_of(
    obj: ApiObject, content: Mapping[str, Any], templates: tuple[TemplateOf, ...]
) -> Iterator[Refusal]:
    """Yield what is refused of a job.

    :param content: the job as JSON; :param templates: its pod templates.
    """
    meta = content.get("metadata") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    yield from _of_metadata(labels, annotations)
    key = _key_of(obj)
    row = KINDS_OF_WORKLOADS.get(key)
    if row is not None and row.queued:
        yield from _of_parts(row, content, annotations)
    if key == ("sparkoperator.k8s.io", "SparkApplication"):
        yield from _of_spark(content.get("spec") or {})
    if isinstance(obj, Job):
        yield from _of_job(content.get("spec") or {}, annotations, templates)
    if isinstance(obj, RayCluster | RayJob | RayService):
        yield from _of_ray(obj, content.get("spec") or {}, annotations)
    for one in templates:
        yield from _of_template(obj, one)
    yield from _of_groups(obj, templates)


def prebuilt_of(metadata: ObjectMeta) -> str:
    """Return the name of the Workload that a job's user made for it, "" for none."""
    return _prebuilt(metadata.labels, metadata.annotations)


def _prebuilt(labels: Annotations, annotations: Annotations) -> str:
    return annotations.get(PREBUILT, labels.get(PREBUILT, ""))


# Metadata ------------------------------------------------------------------------------------


def _of_metadata(labels: Annotations, annotations: Annotations) -> Iterator[Refusal]:
    name = labels.get(QUEUE_LABEL, "")
    if name and not is_subdomain(name):
        yield Refusal("Invalid value", f"metadata.labels[{QUEUE_LABEL}]", Why.SUBDOMAIN)
    # An annotation comes before the label, which is older.
    place = "annotations" if PREBUILT in annotations else "labels"
    name = _prebuilt(labels, annotations)
    if name and not is_subdomain(name):
        yield Refusal("Invalid value", f"metadata.{place}[{PREBUILT}]", Why.SUBDOMAIN)
    longest = labels.get(LONGEST_TIME)
    if longest is not None and not (is_index(longest) and int(longest)):
        field = f"metadata.labels[{LONGEST_TIME}]"
        yield Refusal("Invalid value", field, Why.SECONDS)
    yield from _of_gates(annotations.get(GATES_ANNOTATION, ""))


def gates_of(annotations: Annotations) -> tuple[str, ...]:
    """Return the names of the controllers that keep a job from being admitted."""
    names = annotations.get(GATES_ANNOTATION, "").split(",")
    return tuple(name.strip() for name in names if name.strip())


def _of_gates(text: str) -> Iterator[Refusal]:
    field = f"metadata.annotations[{GATES_ANNOTATION}]"
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    well_named = [name for name in names if _DOMAIN_PATH.fullmatch(name)]
    if len(well_named) < len(names):
        yield Refusal("Invalid value", field, Why.DOMAIN_PATH)
    if any(len(name) > LONGEST_GATE for name in well_named):
        yield Refusal("Too long", field, Why.LONGEST_GATE)
    if len(set(names)) < len(names):
        yield Refusal("Invalid value", field, Why.TWICE)


def is_subdomain(name: str) -> bool:
    """Tell whether a text is the name of an object: a DNS subdomain."""
    return len(name) < 254 and _SUBDOMAIN.fullmatch(name) is not None


# Kinds ---------------------------------------------------------------------------------------


def _key_of(obj: ApiObject) -> tuple[str, str]:
    kind = kind_of(obj)
    return kind.group, kind.name


def _of_parts(
    row: WorkloadKind, content: Mapping[str, Any], annotations: Annotations
) -> Iterator[Refusal]:
    """Yield what is refused of an object that is never suspended, whose parts queue."""
    if annotations.get(ELASTIC_ANNOTATION) == "true":
        field = f"metadata.annotations[{ELASTIC_ANNOTATION}]"
        yield Refusal("Forbidden", field, Why.NOT_ELASTIC)
    try:
        units_of(row, content)
    except ValueError as exc:
        yield Refusal("Invalid value", row.units, str(exc))


def _of_job(
    spec: Mapping[str, Any], annotations: Annotations, templates: tuple[TemplateOf, ...]
) -> Iterator[Refusal]:
    wanted = sum(one.count for one in templates)
    least, field = annotations.get(LEAST_PODS), f"metadata.annotations[{LEAST_PODS}]"
    if least is not None:
        # A job that was admitted with its least number of pods has so many now.
        if not is_index(least) or not 0 < int(least) <= wanted:
            yield Refusal("Invalid value", field, f"expected a number from 1 to {wanted}")
        elif annotations.get(ELASTIC_ANNOTATION) == "true":
            yield Refusal("Invalid value", field, "an elastic job is admitted whole")
    same, field = annotations.get(SAME_COMPLETIONS), f"metadata.annotations[{SAME_COMPLETIONS}]"
    if same is not None and same not in _TRUE | _FALSE:
        yield Refusal("Invalid value", field, 'expected "true" or "false"')
    elif same in _TRUE:
        if spec.get("completionMode") != "Indexed":
            yield Refusal("Invalid value", field, "only an indexed job may ask for it")
        elif spec.get("completions") != spec.get("parallelism", 1):
            yield Refusal("Invalid value", "spec.completions", "expected as many as parallelism")


def _of_spark(spec: Mapping[str, Any]) -> Iterator[Refusal]:
    if spec.get("mode", "cluster") != "cluster":
        why = "only the mode cluster has its driver in a pod of the queue"
        yield Refusal("Invalid value", "spec.mode", why)
    allocation = spec.get("dynamicAllocation")
    if isinstance(allocation, Mapping) and allocation.get("enabled") is True:
        # Its executors would be more than it has quota for.
        field = "spec.dynamicAllocation.enabled"
        yield Refusal("Invalid value", field, "an application in a queue keeps its size")


def _of_ray(obj: ApiObject, spec: Mapping[str, Any], annotations: Annotations) -> Iterator[Refusal]:
    if isinstance(obj, RayJob):
        selects, own = spec.get("clusterSelector"), spec.get("rayClusterSpec")
        if selects and own:
            why = "a job in a queue makes its own cluster"
            yield Refusal("Invalid value", "spec.clusterSelector", why)
        elif not selects and not own:
            yield Refusal("Required value", "spec.rayClusterSpec", "it says what pods there are")
        if selects or not own:
            return
    at, cluster = "spec", spec
    for name in ("rayClusterSpec", "rayClusterConfig"):
        if isinstance(spec.get(name), Mapping):
            at, cluster = f"spec.{name}", spec[name]
    given = cluster.get("workerGroupSpecs")
    entries = given if isinstance(given, (list, tuple)) else ()
    groups = [one for one in entries if isinstance(one, Mapping)]
    # Beside its head a cluster needs a set for each group; a job's submitter needs one more.
    others = 2 if isinstance(obj, RayJob) and spec.get("submissionMode") == "K8sJobMode" else 1
    if len(groups) > MOST_SETS - others:
        yield Refusal("Too many", f"{at}.workerGroupSpecs", f"at most {MOST_SETS - others}")
    for index, group in enumerate(groups):
        if group.get("groupName") == "head":
            field = f"{at}.workerGroupSpecs[{index}].groupName"
            yield Refusal("Forbidden", field, '"head" is the name of the head')
    if isinstance(obj, RayJob) and spec.get("shutdownAfterJobFinishes") is not True:
        # Without it the cluster keeps its quota for ever.
        field = "spec.shutdownAfterJobFinishes"
        yield Refusal("Invalid value", field, "a job in a queue has to shut its cluster down")
    elastic = annotations.get(ELASTIC_ANNOTATION) == "true"
    if cluster.get("enableInTreeAutoscaling") is True and not elastic:
        field = f"{at}.enableInTreeAutoscaling"
        yield Refusal("Invalid value", field, f"without the annotation {ELASTIC_ANNOTATION}")


# Templates -----------------------------------------------------------------------------------


def _place(obj: ApiObject, one: TemplateOf) -> str:
    """Return where a template's annotations are, as Kubernetes writes it."""
    if isinstance(obj, TrainJob):
        return f"job[{one.name}].annotations"
    pointer = one.places.get("metadata.annotations", f"{one.pointer}/metadata/annotations")
    text, named = "", False
    for step in pointer.split("/")[1:]:
        in_brackets = step.isdecimal() or named
        text += f"[{step}]" if in_brackets else f".{step}"
        named = step.endswith("ReplicaSpecs")
    return text[1:]


def _annotations(one: TemplateOf) -> Annotations:
    found = (one.template.get("metadata") or {}).get("annotations") or {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _of_template(obj: ApiObject, one: TemplateOf) -> Iterator[Refusal]:
    own, place = _annotations(one), _place(obj, one)
    given = [
        key for key in (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, UNCONSTRAINED_TOPOLOGY) if key in own
    ]
    if len(given) > 1:
        yield Refusal("Invalid value", place, f"only one of {', '.join(given)} may be there")
    for key in (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, SLICE_TOPOLOGY):
        if key in own and not _is_qualified(own[key]):
            yield Refusal("Invalid value", f"{place}[{key}]", "expected a label of nodes")
    if own.get(UNCONSTRAINED_TOPOLOGY, "true") not in _TRUE | _FALSE:
        field = f"{place}[{UNCONSTRAINED_TOPOLOGY}]"
        yield Refusal("Invalid value", field, 'expected "true" or "false"')
    yield from _of_slices(own, place, one.count)
    if SLICE_LAYERS in own:
        yield from _of_layers(own, f"{place}[{SLICE_LAYERS}]", one.count)
    group = own.get(SET_GROUP)
    if group is None:
        return
    if group.isdecimal():
        yield Refusal("Invalid value", f"{place}[{SET_GROUP}]", "expected a name, not a number")
    if SLICE_SIZE in own or SLICE_TOPOLOGY in own or SLICE_LAYERS in own:
        yield Refusal("Forbidden", f"{place}[{SET_GROUP}]", "slices are of one pod set alone")
    if not _is_constrained(own):
        why = f"a group of pod sets needs {REQUIRED_TOPOLOGY} or {PREFERRED_TOPOLOGY}"
        yield Refusal("Forbidden", f"{place}[{SET_GROUP}]", why)


def _is_constrained(own: Annotations) -> bool:
    return REQUIRED_TOPOLOGY in own or PREFERRED_TOPOLOGY in own


def _is_qualified(text: str) -> bool:
    domain, slash, name = text.rpartition("/")
    return bool(_PART.fullmatch(name)) and (not slash or is_subdomain(domain))


def _of_slices(own: Annotations, place: str, count: int) -> Iterator[Refusal]:
    level, size, field = own.get(SLICE_TOPOLOGY), own.get(SLICE_SIZE), f"{place}[{SLICE_SIZE}]"
    if level is not None and size is None:
        yield Refusal("Required value", field, f"{SLICE_TOPOLOGY} needs it")
    if size is None:
        return
    if level is None:
        yield Refusal("Forbidden", field, f"{SLICE_TOPOLOGY} is not there")
    elif not is_index(size) or not int(size):
        yield Refusal("Invalid value", field, "expected a number of 1 or more")
    elif int(size) > count:
        yield Refusal("Invalid value", field, f"there are only {count} pods")


def _of_layers(own: Annotations, field: str, count: int) -> Iterator[Refusal]:
    """Yield what is refused of slices of slices, the outermost first."""
    for key in (SLICE_TOPOLOGY, SLICE_SIZE):
        if key in own:
            yield Refusal("Forbidden", field, f"{key} is there")
    try:
        layers = parse_json(own[SLICE_LAYERS], ANNOTATION)
    except ValueError as exc:
        yield Refusal("Invalid value", field, str(exc))
        return
    entries = layers if isinstance(layers, list) else []
    if not 0 < len(entries) <= MOST_SLICE_LAYERS or not all(map(_is_layer, entries)):
        expected = f'expected [{{"topology": ..., "size": ...}}], 1 to {MOST_SLICE_LAYERS} of them'
        yield Refusal("Invalid value", field, expected)
        return
    levels = [one.get("topology", "") for one in entries]
    sizes = [one.get("size", 0) for one in entries]
    for index, (level, size) in enumerate(zip(levels, sizes, strict=True)):
        if not _is_qualified(level):
            yield Refusal(
                "Invalid value", f"{field}[{index}].topology", "expected a label of nodes"
            )
        if level in levels[:index]:
            yield Refusal("Duplicate value", f"{field}[{index}].topology", level[:80])
        if size < 1:
            yield Refusal("Invalid value", f"{field}[{index}].size", "expected 1 or more")
        elif index and sizes[index - 1] % size:
            why = f"does not divide {sizes[index - 1]}"
            yield Refusal("Invalid value", f"{field}[{index}].size", why)
    if sizes[0] > count:
        yield Refusal("Invalid value", field, f"there are only {count} pods")


def _is_layer(entry: Any) -> bool:
    if not isinstance(entry, Mapping):
        return False
    level, size = entry.get("topology", ""), entry.get("size", 0)
    return isinstance(level, str) and type(size) is int


def _of_groups(obj: ApiObject, templates: tuple[TemplateOf, ...]) -> Iterator[Refusal]:
    groups: dict[str, list[TemplateOf]] = defaultdict(list)
    for one in templates:
        own = _annotations(one)
        if (name := own.get(SET_GROUP)) and _is_constrained(own):
            groups[name].append(one)
    for sets in groups.values():
        if len(sets) != 2:
            for one in sets:
                field = f"{_place(obj, one)}[{SET_GROUP}]"
                yield Refusal("Invalid value", field, f"a group has two pod sets, not {len(sets)}")
            continue
        if all(one.count != 1 for one in sets):
            for one in sets:
                field = f"{_place(obj, one)}[{SET_GROUP}]"
                yield Refusal("Invalid value", field, "one of the two has to have a single pod")
        asked = {
            tuple(_annotations(one).get(k) for k in (REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY))
            for one in sets
        }
        if len(asked) > 1:
            for one in sets:
                why = "both pod sets of a group have to ask for the same topology"
                yield Refusal("Invalid value", _place(obj, one), why)
