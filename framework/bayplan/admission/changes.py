"""Policies for jobs in Kueue's queues: what their labels may say, and what may not change.

The rules are those of Kueue's webhooks. Where a rule is about what an object says by itself, it is
asked at an update only where that has changed, so that no controller is held up by what was there
before; what bayplan itself writes is not asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bayplan.admission.writing import OF_NO_JOB, annotation, label, rule, validating
from bayplan.api import KINDS, LocalQueue
from bayplan.dialects.kueue import (
    GROUP_LABEL,
    MANAGED_MARK,
    RETRIABLE,
    SUSPENDING_PARENT,
    TOTAL_ANNOTATION,
)
from bayplan.dialects.queued_job_checks import (
    DOMAIN_PATH,
    ELASTIC_ANNOTATION,
    ELASTIC_KINDS,
    GATES_ANNOTATION,
    LEAST_PODS,
    LONGEST_GATE,
    LONGEST_TIME,
    PREBUILT,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    SAME_COMPLETIONS,
    SUBDOMAIN,
    Kind,
    Why,
)
from bayplan.kinds import KINDS_OF_WORKLOADS

__all__ = ["changes_by_queue", "refused_changes"]

Content = dict[str, Any]
_MANAGED, _ = MANAGED_MARK
_BOTH = ("CREATE", "UPDATE")
_UPDATE = ("UPDATE",)
_TRUE = ("1", "t", "T", "TRUE", "true", "True")


class _Rule(NamedTuple):
    """What has to be true; otherwise a field is refused.

    ``field`` is a text of CEL in quotes, or an expression of one.
    """

    true: str
    kind: Kind
    field: str
    why: str


def refused_changes(namespace: str) -> list[Content]:
    """Return the policies that do not depend on what queues there are.

    :param namespace: bayplan's own: what its parts write is not asked.
    """
    suspendable = _suspendable()
    return [
        _of_names(namespace),
        *(_of_jobs(path, keys, namespace) for path, keys in sorted(suspendable.items())),
        _of_sizes(namespace),
        _of_parts(namespace),
        *_of_wholes(namespace),
        _of_pod_groups(namespace),
        _of_pods(namespace),
    ]


def changes_by_queue(namespace: str) -> Content:
    """Return the policy of namespaces with a LocalQueue ``default``, which is its parameter."""
    keys = [key for found in _suspendable().values() for key in found]
    policy = _policy(
        "bayplan-changes-to-no-queue",
        [*_rules(keys, _UPDATE), rule("", ("v1",), ("pods",), _UPDATE)],
        [("left-a-queue", f"{_new(QUEUE_LABEL)} == '' && {_old(QUEUE_LABEL)} != ''")],
        {},
        [_Rule("false", "Invalid value", _label_field(QUEUE_LABEL), Why.DEFAULT_QUEUE)],
        namespace,
    )
    kind = next(kind for kind in KINDS.values() if kind.type is LocalQueue)
    version = f"{kind.group}/{kind.versions[0]}"
    policy["spec"]["paramKind"] = {"apiVersion": version, "kind": kind.name}
    return policy


# Which kinds ---------------------------------------------------------------------------------

Keys = list[tuple[str, str]]


def _suspendable() -> Mapping[str, Keys]:
    """Return the kinds that queues suspend, by the path of the field."""
    found: dict[str, Keys] = {}
    for key, row in KINDS_OF_WORKLOADS.items():
        if row.suspend and key in KINDS:
            found.setdefault(row.suspend, []).append(key)
    return found


def _in_parts() -> Keys:
    """Return the kinds that are never suspended, whose pods or parts queue."""
    queued = [key for key, row in KINDS_OF_WORKLOADS.items() if row.queued]
    return [*queued, ("apps", "Deployment")]


def _rules(keys: Keys, operations: Sequence[str]) -> list[Content]:
    groups: dict[str, list[str]] = {}
    for group, name in keys:
        groups.setdefault(group, []).append(KINDS[group, name].plural)
    return [rule(group, ("*",), found, operations) for group, found in sorted(groups.items())]


# Words ---------------------------------------------------------------------------------------


def _new(name: str) -> str:
    return label("object", name)


def _old(name: str) -> str:
    return label("oldObject", name)


def _label_field(name: str) -> str:
    return f"'metadata.labels[{name}]'"


def _annotation_field(name: str) -> str:
    return f"'metadata.annotations[{name}]'"


def _policy(
    name: str,
    rules: Sequence[Content],
    conditions: Sequence[tuple[str, str]],
    variables: Mapping[str, str],
    asked: Sequence[_Rule],
    namespace: str,
) -> Content:
    """Return a policy with those of some variables that it needs."""
    own = json.dumps(f"system:serviceaccounts:{namespace}")
    used: dict[str, str] = {}
    text = "".join(one.true + one.field for one in asked)
    for key, is_ in reversed(list(variables.items())):
        if re.search(rf"\bvariables\.{key}\b", text):
            used, text = {key: is_, **used}, text + is_
    return validating(
        name,
        rules,
        [
            ("not-by-bayplan", f"!({own} in request.userInfo.?groups.orValue([]))"),
            ("not-deleted", "!has(object.metadata.deletionTimestamp)"),
            *conditions,
        ],
        used,
        [(one.true, f"{one.field} + {json.dumps(f': {one.kind}: {one.why}')}") for one in asked],
    )


def _values(of: str, prefix: str = "") -> dict[str, str]:
    """Return variables for what an object says of its queue."""
    marked = annotation(of, PREBUILT)
    found = {
        "queue": label(of, QUEUE_LABEL),
        "class": label(of, PRIORITY_LABEL),
        "time": label(of, LONGEST_TIME),
        "gates": annotation(of, GATES_ANNOTATION),
        "elastic": f"{annotation(of, ELASTIC_ANNOTATION)} == 'true'",
        "prebuilt": f"{marked} != '' ? {marked} : {label(of, PREBUILT)}",
    }
    return {f"{prefix}{name.capitalize() if prefix else name}": is_ for name, is_ in found.items()}


_OF_BOTH = {**_values("object"), **_values("oldObject", "old")}
_PREBUILT_FIELD = (
    f"'metadata.' + ({annotation('object', PREBUILT)} != '' ? 'annotations' : 'labels')"
    f" + '[{PREBUILT}]'"
)
_IN_A_QUEUE = (
    "in-a-queue",
    f"{_new(QUEUE_LABEL)} != '' || (oldObject != null && {_old(QUEUE_LABEL)} != '')",
)


# Names ---------------------------------------------------------------------------------------


def _of_names(namespace: str) -> Content:
    """Return what names of queues, gates and others have to be, of all that waits in queues."""
    keys = [*(key for found in _suspendable().values() for key in found), *_in_parts()]
    gates = "variables.gates.split(',').map(g, g.trim())"
    subdomain, path = json.dumps(f"^{SUBDOMAIN}$"), json.dumps(f"^{DOMAIN_PATH}$")
    gates_field = _annotation_field(GATES_ANNOTATION)

    def unchanged(name: str) -> str:
        old = name[0].upper() + name[1:]
        return f"(oldObject != null && variables.{name} == variables.old{old})"

    old = {name: f"oldObject == null ? '' : {of}" for name, of in _values("oldObject").items()}
    old["elastic"] = f"oldObject != null && {_values('oldObject')['elastic']}"
    variables = {
        **_values("object"),
        **{f"old{name.capitalize()}": of for name, of in old.items()},
        "names": f"variables.gates.trim() == '' || {unchanged('gates')} ? [] : {gates}",
    }
    return _policy(
        "bayplan-queue-names",
        _rules(keys, _BOTH),
        [_IN_A_QUEUE],
        variables,
        [
            _Rule(
                f"variables.queue == '' || {unchanged('queue')} || "
                f"(variables.queue.size() < 254 && variables.queue.matches({subdomain}))",
                "Invalid value",
                _label_field(QUEUE_LABEL),
                Why.SUBDOMAIN,
            ),
            _Rule(
                f"variables.prebuilt == '' || {unchanged('prebuilt')} || "
                f"(variables.prebuilt.size() < 254 && variables.prebuilt.matches({subdomain}))",
                "Invalid value",
                _PREBUILT_FIELD,
                Why.SUBDOMAIN,
            ),
            _Rule(
                f"!('{LONGEST_TIME}' in object.metadata.?labels.orValue({{}})) || "
                f"{unchanged('time')} || variables.time.matches('^0*[1-9][0-9]{{0,17}}$')",
                "Invalid value",
                _label_field(LONGEST_TIME),
                Why.SECONDS,
            ),
            _Rule(
                f"variables.names.all(g, g.matches({path}))",
                "Invalid value",
                gates_field,
                Why.DOMAIN_PATH,
            ),
            _Rule(
                f"variables.names.all(g, !g.matches({path}) || g.size() <= {LONGEST_GATE})",
                "Too long",
                gates_field,
                Why.LONGEST_GATE,
            ),
            _Rule(
                "variables.names.all(g, variables.names.filter(h, h == g).size() == 1)",
                "Invalid value",
                gates_field,
                Why.TWICE,
            ),
            _Rule(
                f"!variables.elastic || {unchanged('elastic')} || "
                f"request.kind.kind in {json.dumps(list(ELASTIC_KINDS))}",
                "Forbidden",
                _annotation_field(ELASTIC_ANNOTATION),
                Why.NOT_ELASTIC,
            ),
        ],
        namespace,
    )


# Changes -------------------------------------------------------------------------------------


def _at(of: str, path: str) -> str:
    return f"{of}.{'.'.join(f'?{step}' for step in path.split('.'))}"


def _of_jobs(path: str, keys: Keys, namespace: str) -> Content:
    """Return what may not change of jobs that are suspended by one field."""
    return _policy(
        f"bayplan-changes-{'-'.join(path.split('.')[1:]).lower()}",
        _rules(keys, _UPDATE),
        [_IN_A_QUEUE],
        {
            **_OF_BOTH,
            "waits": f"{_at('object', path)}.orValue(false)",
            "waited": f"{_at('oldObject', path)}.orValue(false)",
        },
        [*_while_running(), *_of_gates()],
        namespace,
    )


def _while_running() -> Iterator[_Rule]:
    """Yield what may not change once something runs: ``waits`` and ``waited`` say whether."""
    yield _Rule(
        "variables.waits || variables.queue == variables.oldQueue",
        "Invalid value",
        _label_field(QUEUE_LABEL),
        Why.RUNS,
    )
    yield from _of_class("variables.waits")
    yield _Rule(
        "variables.waits || variables.oldElastic || variables.prebuilt == variables.oldPrebuilt",
        "Invalid value",
        _PREBUILT_FIELD,
        Why.RUNS,
    )
    yield _Rule(
        "(variables.waits && variables.waited) || variables.time == variables.oldTime",
        "Invalid value",
        _label_field(LONGEST_TIME),
        Why.RUNS,
    )
    yield _Rule(
        "variables.elastic == variables.oldElastic",
        "Invalid value",
        _annotation_field(ELASTIC_ANNOTATION),
        Why.IMMUTABLE,
    )


def _of_class(waits: str) -> Iterator[_Rule]:
    """Yield what may not change of the class of priority."""
    field = _label_field(PRIORITY_LABEL)
    yield _Rule(
        f"{waits} || variables.oldClass != '' || variables.class == ''",
        "Invalid value",
        field,
        Why.CLASS_LATE,
    )
    yield _Rule(
        "variables.oldClass == '' || variables.class != ''",
        "Invalid value",
        field,
        Why.CLASS_GONE,
    )


def _of_gates() -> Iterator[_Rule]:
    """Yield what may not change of the controllers that hold a job: each may only let it go."""
    old = "variables.oldGates.split(',').map(g, g.trim())"
    new = "variables.gates.split(',').map(g, g.trim())"
    yield _Rule(
        f"variables.gates == '' || (variables.oldGates != '' && "
        f"(variables.gates.trim() == '' || {new}.all(g, g in {old})))",
        "Forbidden",
        _annotation_field(GATES_ANNOTATION),
        Why.NEW_GATE,
    )


def _of_sizes(namespace: str) -> Content:
    """Return what may not change of Jobs that may run with fewer pods."""
    true = json.dumps(list(_TRUE))
    return _policy(
        "bayplan-changes-of-sizes",
        _rules([("batch", "Job")], _UPDATE),
        [_IN_A_QUEUE],
        {
            "runs": "!object.spec.?suspend.orValue(false)",
            "ran": "!oldObject.spec.?suspend.orValue(false)",
        },
        [
            _Rule(
                f"!variables.ran || !('{LEAST_PODS}' in "
                "oldObject.metadata.?annotations.orValue({})) || "
                "object.spec.?parallelism.orValue(1) == oldObject.spec.?parallelism.orValue(1)",
                "Forbidden",
                "'spec.parallelism'",
                Why.PARTIAL,
            ),
            _Rule(
                "!(variables.ran && variables.runs) || "
                f"({annotation('object', SAME_COMPLETIONS)} in {true}) == "
                f"({annotation('oldObject', SAME_COMPLETIONS)} in {true})",
                "Forbidden",
                _annotation_field(SAME_COMPLETIONS),
                Why.RUNS,
            ),
        ],
        namespace,
    )


def _of_parts(namespace: str) -> Content:
    """Return what may not change of what is never suspended, once pods of it are ready."""
    parent = f"object.spec.?template.?metadata.?annotations[?'{SUSPENDING_PARENT}']"
    return _policy(
        "bayplan-changes-of-sets",
        _rules(_in_parts(), _UPDATE),
        [
            _IN_A_QUEUE,
            (
                "of-no-other-job",
                f"object.kind != 'StatefulSet' || {parent}.orValue('statefulset') == 'statefulset'",
            ),
        ],
        {**_OF_BOTH, "waits": "oldObject.?status.?readyReplicas.orValue(0) == 0"},
        [
            _Rule(
                "variables.waits || variables.queue == variables.oldQueue",
                "Invalid value",
                _label_field(QUEUE_LABEL),
                Why.RUNS,
            ),
            _Rule(
                "variables.queue != '' || variables.oldQueue == ''",
                "Invalid value",
                _label_field(QUEUE_LABEL),
                Why.QUEUE_GONE,
            ),
            *_of_class("variables.waits"),
            *_of_gates(),
        ],
        namespace,
    )


_ASKED = (
    "affinity",
    "nodeSelector",
    "overhead",
    "resourceClaims",
    "resources",
    "runtimeClassName",
    "tolerations",
    "topologySpreadConstraints",
)
"""The fields of pods, beside their containers, for which a queue has reserved quota."""


def _of_wholes(namespace: str) -> Iterator[Content]:
    """Yield what may not change of kinds whose objects are one workload each, never suspended.

    Some of their pods always run, so that nothing would ask for quota again.
    """
    for key, row in KINDS_OF_WORKLOADS.items():
        if not row.queued or row.unit:
            continue
        (pods,) = row.pods
        size, spec = pods.count[0], f"{pods.template}.spec"
        yield _policy(
            f"bayplan-changes-of-{KINDS[key].plural}",
            _rules([key], _UPDATE),
            [_IN_A_QUEUE, ("of-no-job", OF_NO_JOB)],
            {
                "pods": _at("object", spec),
                "oldPods": _at("oldObject", spec),
                "size": f"{_at('object', size)}.orValue(1)",
                "oldSize": f"{_at('oldObject', size)}.orValue(1)",
            },
            [
                _Rule(
                    "variables.size == variables.oldSize || variables.size == 0 || "
                    "variables.oldSize == 0",
                    "Invalid value",
                    f"'{size}'",
                    Why.SIZE,
                ),
                _Rule(
                    "variables.size == 0 || variables.oldSize != 0 || "
                    "object.?status.?replicas.orValue(0) == 0",
                    "Forbidden",
                    f"'{size}'",
                    Why.ENDING,
                ),
                *(_unchanged(spec, one) for one in _ASKED),
                *(_unchanged_containers(spec, one) for one in ("initContainers", "containers")),
            ],
            namespace,
        )


def _unchanged(spec: str, name: str) -> _Rule:
    return _Rule(
        f"variables.pods.?{name} == variables.oldPods.?{name}",
        "Invalid value",
        f"'{spec}.{name}'",
        Why.ASKED,
    )


def _unchanged_containers(spec: str, name: str) -> _Rule:
    asked = "map(c, [c.?resources.?requests, c.?ports])"
    return _Rule(
        f"variables.pods.?{name}.orValue([]).{asked} == "
        f"variables.oldPods.?{name}.orValue([]).{asked}",
        "Invalid value",
        f"'{spec}.{name}'",
        Why.ASKED,
    )


# Pods ----------------------------------------------------------------------------------------


def _group_of(of: str) -> str:
    marked = annotation(of, GROUP_LABEL)
    return f"{marked} != '' ? {marked} : {label(of, GROUP_LABEL)}"


_GROUP_FIELD = (
    f"'metadata.' + ({annotation('object', GROUP_LABEL)} != '' ? 'annotations' : 'labels')"
    f" + '[{GROUP_LABEL}]'"
)


def _of_pod_groups(namespace: str) -> Content:
    """Return what pods have to say of their group, and of Kueue's marks."""
    total = f"'{TOTAL_ANNOTATION}' in object.metadata.?annotations.orValue({{}})"
    subdomain = json.dumps(f"^{SUBDOMAIN}$")
    marks = (
        f"[{_new(_MANAGED)}, {_new(GROUP_LABEL)}, {annotation('object', GROUP_LABEL)}, "
        f"{annotation('object', TOTAL_ANNOTATION)}]"
    )
    old = marks.replace("object.", "oldObject.")
    return _policy(
        "bayplan-pod-groups",
        [rule("", ("v1",), ("pods",), _BOTH)],
        [
            (
                "in-a-group",
                f"{_new(_MANAGED)} != '' || {total} || [{_group_of('object')}].exists(g, g != '')",
            ),
            ("newly", f"oldObject == null || {marks} != {old}"),
        ],
        {"group": _group_of("object"), **_values("object")},
        [
            _Rule(
                f"{_new(_MANAGED)} in ['', 'true']",
                "Forbidden",
                _label_field(_MANAGED),
                Why.TRUE,
            ),
            _Rule(
                f"variables.group != '' || !({total})",
                "Required value",
                _GROUP_FIELD,
                Why.GROUP_AND_TOTAL,
            ),
            _Rule(
                f"variables.group == '' || ({total})",
                "Required value",
                _annotation_field(TOTAL_ANNOTATION),
                Why.GROUP_AND_TOTAL,
            ),
            _Rule(
                f"variables.group == '' || (variables.group.size() < 254 && "
                f"variables.group.matches({subdomain}))",
                "Invalid value",
                _GROUP_FIELD,
                Why.SUBDOMAIN,
            ),
            _Rule(
                f"variables.group == '' || !({total}) || "
                f"{annotation('object', TOTAL_ANNOTATION)}.matches('^0*[1-9][0-9]{{0,8}}$')",
                "Invalid value",
                _annotation_field(TOTAL_ANNOTATION),
                Why.PODS,
            ),
            _Rule(
                "variables.group == '' || variables.prebuilt == '' || "
                "variables.prebuilt == variables.group",
                "Invalid value",
                _PREBUILT_FIELD,
                Why.OF_GROUP,
            ),
        ],
        namespace,
    )


_WITHOUT_NODE = (
    "{0}.spec.?nodeName.orValue('') == '' || "
    "{0}.?status.?phase.orValue('') in ['Succeeded', 'Failed']"
)


def _of_pods(namespace: str) -> Content:
    """Return what may not change of pods: those that have a node run until they end."""
    gone = f"{annotation('oldObject', RETRIABLE)} == 'false'"
    return _policy(
        "bayplan-changes-of-pods",
        [rule("", ("v1",), ("pods",), _UPDATE)],
        [
            (
                "in-a-queue",
                f"{_IN_A_QUEUE[1]} || [{_group_of('oldObject')}].exists(g, g != '')",
            )
        ],
        {
            **_OF_BOTH,
            "group": _group_of("object"),
            "oldGroup": _group_of("oldObject"),
            "waits": _WITHOUT_NODE.format("object"),
            "waited": _WITHOUT_NODE.format("oldObject"),
        },
        [
            *_while_running(),
            *_of_gates(),
            _Rule(
                "variables.oldGroup == '' || variables.group == variables.oldGroup",
                "Invalid value",
                _GROUP_FIELD,
                Why.IMMUTABLE,
            ),
            _Rule(
                f"variables.group == '' || !({gone}) || "
                f"{annotation('object', RETRIABLE)} == 'false'",
                "Forbidden",
                _annotation_field(RETRIABLE),
                Why.UNRETRIABLE,
            ),
        ],
        namespace,
    )
