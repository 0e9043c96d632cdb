"""Policies that do at creation what the webhooks of other systems do, and say what cannot work.

The API server evaluates them (CEL), so that nothing has to run, or to answer, while objects are
created. Names of resources, labels and fields, and the sentences, are those of the dialects.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bayplan.admission.changes import changes_by_queue, refused_changes
from bayplan.admission.colocation import colocation_policies
from bayplan.admission.facts import FACTS
from bayplan.admission.writing import (
    OF_NO_JOB,
    OWNERS,
    annotation,
    bound,
    label,
    mutating,
    rule,
    validating,
)
from bayplan.api import KINDS, ClusterColocationProfile, LocalQueue
from bayplan.dialects.hami.requests import RequestRules
from bayplan.dialects.kai import QUEUE_LABEL as KAI_QUEUE
from bayplan.dialects.kai.shares import ASKING_ANNOTATIONS, GPU
from bayplan.dialects.kueue import (
    ADMISSION_GATE,
    DEFAULT_QUEUE,
    GROUP_LABEL,
    INDEX_OFFSET,
    MANAGED_MARK,
    MULTI_CLUSTER_CONTROLLER,
    POD_FINALIZER,
    PREFERRED_TOPOLOGY,
    REQUIRED_TOPOLOGY,
    SET_GROUP,
    SUSPENDING_PARENT,
    UNCONSTRAINED_TOPOLOGY,
)
from bayplan.dialects.queued_job_checks import PRIORITY_LABEL, QUEUE_LABEL
from bayplan.kinds import KINDS_OF_WORKLOADS, When
from bayplan.topology.network.tree import HOSTNAME

__all__ = [
    "MOVED_FROM",
    "QUEUE_OF_NAMESPACE",
    "SCHEDULER",
    "Defaults",
    "mutating_policies",
    "validating_policies",
]

SCHEDULER = "bayplan.dev/scheduler"
"""The label of a namespace, or of a pod, with the schedulerName that pods without one get."""
MOVED_FROM = "bayplan.dev/moved-from"
"""The label of a namespace with the schedulerName whose new pods bayplan gets as well."""
_OWN_CONTROLLERS = (
    "kubernetes.io/job-controller",
    "jobset.sigs.k8s.io/jobset-controller",
    "trainer.kubeflow.org/trainjob-controller",
    "kubeflow.org/training-operator",
    "kubeflow.org/mpi-operator",
    "ray.io/kuberay-operator",
    "workload.codeflare.dev/appwrapper",
)
"""Who makes the pods of jobs that say nothing else."""
QUEUE_OF_NAMESPACE = "bayplan.dev/default-queue"
"""The label of a namespace with the LocalQueue of jobs that name none."""

Content = dict[str, Any]


class Defaults(msgspec.Struct, frozen=True):
    """What pods get that do not say it themselves.

    :param namespace: bayplan's own; nothing there, nor in kube-system, is changed.
    :param scheduler: the schedulerName of pods that request one of ``resources``.
    :param profiles: Koordinator's, which say more of some pods.
    :param queued: the selector of the namespaces whose jobs wait for queues; {} for all.
    :param pods: whether pods are an integration, so that those that name no queue get one.
    """

    namespace: str = "bayplan-system"
    scheduler: str = "bayplan"
    resources: tuple[str, ...] = ()
    profiles: tuple[ClusterColocationProfile, ...] = ()
    queued: Mapping[str, Any] = msgspec.field(default_factory=dict)
    pods: bool = False


# Defaults ------------------------------------------------------------------------------------


def mutating_policies(defaults: Defaults) -> list[Content]:
    """Return the policies that fill in what objects do not say, each with its binding."""
    queues = [
        _default_queue(),
        _deployment_queue(),
        *_parts(),
        _gated_pods(defaults),
        *_suspended(),
    ]
    policies = [
        _scheduler_name(defaults),
        _hami_counts(),
        *queues,
        *colocation_policies(defaults.profiles),
    ]
    elsewhere = list(_managed_elsewhere())
    of_namespace = [_default_local_queue(), _default_queue_of_pods(defaults)]
    of_queues = {one["metadata"]["name"] for one in (*queues, *of_namespace, *elsewhere)}
    for one in (*policies, *of_namespace, *elsewhere):
        selected = _namespaces(defaults, one["metadata"]["name"] in of_queues)
        one["spec"]["matchConstraints"]["namespaceSelector"] = selected
    kind = "MutatingAdmissionPolicyBinding"
    return [
        *bound(policies, kind, {}),
        *bound(of_namespace, kind, {"paramRef": _DEFAULT_QUEUE}),
        *bound(elsewhere, kind, {"paramRef": _facts(defaults)}),
    ]


_DEFAULT_QUEUE = {"name": DEFAULT_QUEUE, "parameterNotFoundAction": "Allow"}
"""The parameter of policies of namespaces with a LocalQueue of this name; others go without."""


def _namespaces(defaults: Defaults, of_queues: bool) -> Content:
    """Return the selector of the namespaces that a policy is about.

    :param of_queues: whether it is about those alone whose jobs wait for queues.
    """
    hidden = [defaults.namespace, "kube-system"]
    kept = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": hidden}
    more = defaults.queued if of_queues else {}
    return {**more, "matchExpressions": [kept, *more.get("matchExpressions", ())]}


def _facts(defaults: Defaults) -> Content:
    """Return the reference to the facts of a cluster; without them nothing is said or done."""
    return {
        "name": FACTS,
        "namespace": defaults.namespace,
        "parameterNotFoundAction": "Allow",
    }


def _scheduler_name(defaults: Defaults) -> Content:
    resources = json.dumps(list(defaults.resources))
    asks = (
        f"{_CONTAINERS}.exists(c, c.?resources.?limits.orValue({{}})"
        ".exists(r, variables.resources.exists(known, known == r)))"
    )
    scheduler = json.dumps(defaults.scheduler)
    name = (
        f"{label('object', SCHEDULER)} != '' ? {label('object', SCHEDULER)}"
        f" : {label('namespaceObject', SCHEDULER)} != '' ? {label('namespaceObject', SCHEDULER)}"
        f" : {asks} ? variables.scheduler : ''"
    )
    named = "object.spec.?schedulerName.orValue('default-scheduler')"
    free = f"{named} == 'default-scheduler' || {named} == {label('namespaceObject', MOVED_FROM)}"
    patch = (
        "variables.name == '' || !variables.free ? [] : "
        '[JSONPatch{op: "replace", path: "/spec/schedulerName", value: variables.name}]'
    )
    return mutating(
        "bayplan-scheduler-name",
        [rule("", ("v1",), ("pods",))],
        # A DaemonSet's pods have a node already, and what names another scheduler means it.
        [
            _WITHOUT_NODE,
            ("of-no-daemon-set", f"!{OWNERS}.exists(o, o.kind == 'DaemonSet')"),
        ],
        {"free": free, "scheduler": scheduler, "resources": resources, "name": name},
        patch,
    )


def _hami_counts() -> Content:
    names = RequestRules().names
    others = [names.memory, names.percentage, names.cores]
    asks = " || ".join(f"{json.dumps(one)} in c.resources.limits" for one in others)
    without = (
        f"c.?resources.?limits.hasValue() && !({json.dumps(names.count)} in c.resources.limits)"
        f" && ({asks})"
    )
    path = names.count.replace("~", "~0").replace("/", "~1")

    def patched(field: str) -> str:
        return (
            "variables.indices.map(i, JSONPatch{op: 'add', path: '/spec/containers/' + string(i)"
            f" + '/resources/{field}/{path}', value: '1'}})"
        )

    # What is requested of an extended resource is its limit, which is copied before policies.
    return mutating(
        "bayplan-hami-counts",
        [rule("", ("v1",), ("pods",))],
        [("without-a-count", f"object.spec.containers.exists(c, {without})")],
        {
            "indices": "lists.range(object.spec.containers.size())"
            f".filter(i, [object.spec.containers[i]].exists(c, {without}))"
        },
        f"{patched('limits')} + {patched('requests')}",
    )


def _default_queue() -> Content:
    return mutating(
        "bayplan-default-queue",
        _queued(),
        _WITHOUT_QUEUE,
        # Conditions do not know the namespace, variables do.
        {"queue": label("namespaceObject", QUEUE_OF_NAMESPACE)},
        f"variables.queue == '' ? [] : {_labelled('variables.queue')}",
    )


def _default_local_queue() -> Content:
    """Return the policy that does what Kueue does in a namespace with a LocalQueue ``default``.

    The LocalQueue is its parameter: where there is none, nothing is done.
    """
    policy = mutating(
        "bayplan-default-local-queue",
        _queued(),
        _WITHOUT_QUEUE,
        {"queue": label("namespaceObject", QUEUE_OF_NAMESPACE)},
        f"variables.queue != '' ? [] : {_labelled('params.metadata.name')}",
    )
    return _of_local_queue(policy)


def _of_local_queue(policy: Content) -> Content:
    """Return a policy whose parameter is a LocalQueue."""
    kind = next(kind for kind in KINDS.values() if kind.type is LocalQueue)
    policy["spec"]["paramKind"] = {
        "apiVersion": f"{kind.group}/{kind.versions[0]}",
        "kind": kind.name,
    }
    return policy


def _default_queue_of_pods(defaults: Defaults) -> Content:
    """Return the policy that does the same with pods, where they are an integration.

    Whether a pod's owner waits in a queue only the scheduler knows, which labels the others.
    """
    policy = mutating(
        "bayplan-default-local-queue-of-pods",
        [rule("", ("v1",), ("pods",))],
        [_pods_queue(defaults), ("of-nobody", _OF_NOBODY), _NO_QUEUE, _WITHOUT_NODE],
        {},
        _labelled("params.metadata.name"),
    )
    return _of_local_queue(policy)


def _gated_pods(defaults: Defaults) -> Content:
    """Return the policy that gates pods in queues until they are admitted, as Kueue's webhook.

    So no scheduler takes them before. Pods of jobs go with their jobs, those of a DaemonSet with
    their node, those of what is never suspended wait for the queue that this names. A pod of a
    group gets a finalizer, too: the group counts it after its end, until it is replaced.
    """
    jobs = sorted({row.name for row in KINDS_OF_WORKLOADS.values() if row.suspend})
    owners = json.dumps([*jobs, "DaemonSet", "Node"])
    of_others = f"{OWNERS}.exists(o, o.?controller.orValue(false) && o.kind in {owners})"
    gates = "object.spec.?schedulingGates.orValue([])"
    name, value = MANAGED_MARK
    gate = f'{{"name": "{ADMISSION_GATE}"}}'
    gated = (
        "(has(object.spec.schedulingGates) ? "
        f'[JSONPatch{{op: "add", path: "/spec/schedulingGates/-", value: {gate}}}] : '
        f'[JSONPatch{{op: "add", path: "/spec/schedulingGates", value: [{gate}]}}])'
    )
    marked = name.replace("/", "~1")
    in_group = " || ".join(
        (f"{label('object', GROUP_LABEL)} != ''", f"{annotation('object', GROUP_LABEL)} != ''")
    )
    finalizers = "object.metadata.?finalizers.orValue([])"
    kept = (
        f"!({in_group}) || {_WAITS_WITH_ANOTHER} || "
        f"{finalizers}.exists(f, f == '{POD_FINALIZER}') ? [] : (has(object.metadata.finalizers) ? "
        f'[JSONPatch{{op: "add", path: "/metadata/finalizers/-", value: "{POD_FINALIZER}"}}] : '
        f'[JSONPatch{{op: "add", path: "/metadata/finalizers", value: ["{POD_FINALIZER}"]}}])'
    )
    return mutating(
        "bayplan-gated-pods",
        [rule("", ("v1",), ("pods",))],
        [
            ("pods-are-queued", f"{_pods_queue(defaults)[1]} || {_WAITS_WITH_ANOTHER}"),
            _WITHOUT_NODE,
            ("of-no-job", f"!{of_others}"),
            ("not-gated", f"!{gates}.exists(g, g.name == '{ADMISSION_GATE}')"),
        ],
        _QUEUED_BY_NOW,
        f'variables.queue == "" && !({_WAITS_WITH_ANOTHER}) ? [] : '
        f'[JSONPatch{{op: "add", path: "/metadata/labels/{marked}", value: "{value}"}}] + {gated}'
        f" + ({kept})",
    )


_WAITS_WITH_ANOTHER = f"{annotation('object', SUSPENDING_PARENT)} != ''"
"""Whether a pod waits with what made it, by what the policy of its kind wrote."""


def _parts() -> Iterator[Content]:
    """Yield policies that have the pods of what is never suspended wait, as Kueue's webhooks do.

    Whose pods are ready goes on as it is: another template would have them made again.
    """
    for (group, name), row in KINDS_OF_WORKLOADS.items():
        if not row.queued:
            continue
        plural = KINDS[group, name].plural
        integration = name.lower() if group == "apps" else f"{group}/{name.lower()}"
        paths = dict.fromkeys(path for pods in row.pods for path in pods.template.split(","))
        yield mutating(
            f"bayplan-waiting-pods-of-{plural}",
            [rule(group, ("*",), [plural], ("CREATE", "UPDATE"))],
            [
                ("of-no-job", OF_NO_JOB),
                (
                    "without-ready-pods",
                    "oldObject == null || oldObject.?status.?readyReplicas.orValue(0) == 0",
                ),
            ],
            _QUEUED_BY_NOW,
            *(_waiting(f"object.{path}", integration) for path in paths),
            *(_behind(*paths) if len(paths) > 1 else ()),
        )


def _waiting(template: str, integration: str) -> str:
    """Return the patch that has the pods of a template wait, if there is such a template."""
    pointer = "/" + template.removeprefix("object.").replace(".", "/")
    name = SUSPENDING_PARENT.replace("/", "~1")
    return (
        f"variables.queue == '' || !has({template}) || "
        f"{template}.?metadata.?annotations[?'{SUSPENDING_PARENT}'].orValue('') != '' ? [] : "
        f'(has({template}.metadata) ? [] : [JSONPatch{{op: "add", path: "{pointer}/metadata", '
        f"value: {{}}}}]) + ({template}.?metadata.?annotations.hasValue() ? [] : "
        f'[JSONPatch{{op: "add", path: "{pointer}/metadata/annotations", value: {{}}}}]) + '
        f'[JSONPatch{{op: "add", path: "{pointer}/metadata/annotations/{name}", '
        f'value: "{integration}"}}]'
    )


def _behind(leader: str, *workers: str) -> Iterator[str]:
    """Yield the patches that say that the indices of workers begin behind that of their leader."""
    name = INDEX_OFFSET.replace("/", "~1")
    for worker in workers:
        marks = f"object.{worker}.?metadata.?annotations.orValue({{}})"
        pointer = "/" + worker.replace(".", "/")
        yield (
            f"variables.queue == '' || !has(object.{leader}) || !has(object.{worker}) || "
            f"'{SET_GROUP}' in {marks} || '{INDEX_OFFSET}' in {marks} ? [] : "
            f'[JSONPatch{{op: "add", path: "{pointer}/metadata/annotations/{name}", value: "1"}}]'
        )


def _pods_queue(defaults: Defaults) -> tuple[str, str]:
    return "pods-are-an-integration", "true" if defaults.pods else "false"


def _deployment_queue() -> Content:
    """Return the policy that puts the pods of a Deployment into its queue, one by one, as Kueue.

    Nothing else would: no scheduler follows Deployments.
    """
    patches = []
    for name in (QUEUE_LABEL, PRIORITY_LABEL):
        given, path = label("object", name), name.replace("/", "~1")
        patches.append(
            f"({given} == '' || {given} == {label('object.spec.template', name)} ? [] : "
            f'[JSONPatch{{op: "add", path: "/spec/template/metadata/labels/{path}", '
            f"value: {given}}}])"
        )
    return mutating(
        "bayplan-deployment-queue",
        [rule("apps", ("v1",), ("deployments",), ("CREATE", "UPDATE"))],
        [
            ("of-no-job", OF_NO_JOB),
            ("in-a-queue", f"{label('object', QUEUE_LABEL)} != ''"),
            ("with-labels", "has(object.spec.template.metadata.labels)"),
        ],
        {},
        " + ".join(patches),
    )


def _labelled(queue: str) -> str:
    """Return the patch that puts an object into the queue that an expression names."""
    escaped = QUEUE_LABEL.replace("/", "~1")
    return (
        "((has(object.metadata.labels) ? [] : "
        '[JSONPatch{op: "add", path: "/metadata/labels", value: {}}]) + '
        f'[JSONPatch{{op: "add", path: "/metadata/labels/{escaped}", value: {queue}}}])'
    )


def _queued() -> list[Content]:
    """Return rules of all kinds that wait in queues, themselves or their parts."""
    found = [one for _, rules in sorted(_suspendable().items()) for one in rules]
    for key, row in KINDS_OF_WORKLOADS.items():
        if row.queued:
            found.append(rule(key[0], ("*",), [KINDS[key].plural]))
    return found


def _suspended() -> Iterator[Content]:
    """Yield a policy for each field that suspends jobs: none starts before it is admitted."""
    queued = (
        f"{label('object', QUEUE_LABEL)} != '' || "
        f"{label('namespaceObject', QUEUE_OF_NAMESPACE)} != ''"
    )
    for path, rules in sorted(_suspendable().items()):
        steps = path.split(".")
        yield mutating(
            f"bayplan-suspend-{'-'.join(steps[1:]).lower()}",
            rules,
            [("of-no-job", OF_NO_JOB), *_makes_pods(path)],
            {"queued": queued},
            f"variables.queued ? {_set(path, 'true')} : []",
        )


def _makes_pods(path: str) -> Iterator[tuple[str, str]]:
    """Yield conditions by which objects whose pods others make are left alone."""
    for row in KINDS_OF_WORKLOADS.values():
        if row.suspend == path and row.elsewhere:
            conditions = " && ".join(_cel_of(one) for one in row.elsewhere)
            yield (
                f"{row.name.lower()}-with-pods",
                f"object.kind != '{row.name}' || !({conditions})",
            )


def _cel_of(when: When) -> str:
    """Return an expression for whether a field is there, and is not empty."""
    field = f"object.{'.'.join(f'?{step}' for step in when.path.split('.'))}"
    given = f"{field}.hasValue() && {field}.value().size() > 0"
    return f"!({given})" if when.negated else f"({given})"


def _managed_elsewhere() -> Iterator[Content]:
    """Yield a policy for each field that says who makes a job's pods.

    In a queue whose jobs run in other clusters it is who sends them there, as by Kueue's webhook.
    """
    queue = "(request.namespace + '/' + variables.queue)"
    for path, rules in sorted(_rules_by("managed_by").items()):
        steps = path.split(".")
        said = f"object.{'.'.join(f'?{step}' for step in steps)}.orValue('')"
        policy = mutating(
            f"bayplan-{'-'.join(steps[1:]).lower()}",
            rules,
            [
                ("of-no-job", OF_NO_JOB),
                ("of-its-own-controller", f"{said} in {json.dumps(['', *_OWN_CONTROLLERS])}"),
            ],
            {
                **_QUEUED_BY_NOW,
                "elsewhere": f"variables.queue != '' && {_fact('remoteQueues', queue)}",
            },
            f"variables.elsewhere ? {_set(path, json.dumps(MULTI_CLUSTER_CONTROLLER))} : []",
        )
        policy["spec"]["paramKind"] = {"apiVersion": "v1", "kind": "ConfigMap"}
        yield policy


def _set(path: str, value: str) -> str:
    """Return the patches that set a field, and what it is in."""
    steps = path.split(".")
    patches, pointer, known = [], "", "object"
    for step in steps[:-1]:
        pointer, known = f"{pointer}/{step}", f"{known}.{step}"
        patches.append(
            f'(has({known}) ? [] : [JSONPatch{{op: "add", path: "{pointer}", value: {{}}}}])'
        )
    patches.append(f'[JSONPatch{{op: "add", path: "/{"/".join(steps)}", value: {value}}}]')
    return " + ".join(patches)


def _suspendable() -> Mapping[str, list[Content]]:
    """Return rules of all kinds that queues suspend, by the path of the field."""
    return _rules_by("suspend")


def _rules_by(field: str) -> Mapping[str, list[Content]]:
    """Return rules of all kinds with a path of some meaning in the table of kinds, by that path."""
    groups: dict[str, dict[tuple[str, tuple[str, ...]], list[str]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for key, row in KINDS_OF_WORKLOADS.items():
        path: str = getattr(row, field)
        if path and key in KINDS:
            kind = KINDS[key]
            groups[path][kind.group, tuple(kind.versions)].append(kind.plural)
    return {
        path: [rule(group, ("*",), plurals) for (group, _), plurals in sorted(found.items())]
        for path, found in groups.items()
    }


# Refusals and warnings ---------------------------------------------------------------------


def validating_policies(defaults: Defaults) -> list[Content]:
    """Return the policies that refuse what nobody could place, and those that only warn."""
    changes = [*refused_changes(defaults.namespace), changes_by_queue(defaults.namespace)]
    for one in changes:
        one["spec"]["matchConstraints"]["namespaceSelector"] = _namespaces(defaults, True)
    refusing = [_share_refusals(), _queued_job_refusals(), *changes[:-1]]
    warning = [_pod_warnings(), _job_warnings()]
    kind, deny = "ValidatingAdmissionPolicyBinding", {"validationActions": ["Deny"]}
    return [
        *bound(refusing, kind, deny),
        *bound(changes[-1:], kind, {**deny, "paramRef": _DEFAULT_QUEUE}),
        *bound(warning, kind, {"validationActions": ["Warn"], "paramRef": _facts(defaults)}),
    ]


def _share_refusals() -> Content:
    fraction, memory = ASKING_ANNOTATIONS
    share = "variables.given"
    has_fraction, has_memory = f"'{fraction}' in {share}", f"'{memory}' in {share}"
    devices = "gpu-fraction-num-devices"
    percentage = RequestRules().names.percentage
    wrong = (
        f"c.?resources.?limits[?{json.dumps(percentage)}]"
        ".optMap(p, !isQuantity(string(p)) || quantity(string(p)).isLessThan(quantity('0'))"
        " || quantity(string(p)).isGreaterThan(quantity('100'))).orValue(false)"
    )
    decimal = r"^\\+?([0-9]{1,12}(\\.[0-9]{0,18})?|\\.[0-9]{1,18})([eE][+-]?[0-9]{1,2})?$"
    return validating(
        "bayplan-shares",
        [rule("", ("v1",), ("pods",))],
        [
            (
                "asks-for-a-share",
                f"object.metadata.?annotations.orValue({{}}).exists(a, a in "
                f"{json.dumps([fraction, memory, devices, 'mps'])}) || {_CONTAINERS}.exists(c, "
                f"{json.dumps(percentage)} in c.?resources.?limits.orValue({{}}))",
            )
        ],
        {"given": "object.metadata.?annotations.orValue({})"},
        [
            (
                f"{has_fraction} || {has_memory} || !({share}[?'mps'].orValue('') == 'true')",
                f"'annotation mps: expected {fraction} or {memory} beside it'",
            ),
            (
                f"{has_fraction} || {has_memory} || !('{devices}' in {share})",
                f"'annotation {devices}: expected {fraction} or {memory} beside it'",
            ),
            (
                f"!({has_fraction} && {has_memory})",
                f"'annotations {fraction} and {memory}: expected one of them'",
            ),
            (
                f"!({has_fraction} || {has_memory}) || !{_CONTAINERS}.exists(c, "
                f"{json.dumps(GPU)} in c.?resources.?limits.orValue({{}}))",
                f"'annotation ' + ({has_fraction} ? '{fraction}' : '{memory}') + "
                f"': expected no limit of {GPU} in a pod that shares GPUs'",
            ),
            (
                f"!({has_fraction}) || ({share}['{fraction}'].matches('{decimal}') && "
                f"double({share}['{fraction}']) > 0.0 && double({share}['{fraction}']) < 1.0)",
                _expected(fraction, "a number above 0 and below 1", f"{share}['{fraction}']"),
            ),
            (
                f"!({has_memory}) || ({share}['{memory}'].matches('^[0-9]{{1,12}}$') && "
                f"int({share}['{memory}']) > 0)",
                _expected(memory, "a whole number of MiB, above 0", f"{share}['{memory}']"),
            ),
            (
                f"!('{devices}' in {share}) || ({share}['{devices}'].matches('^[0-9]{{1,12}}$') && "
                f"int({share}['{devices}']) >= 1 && int({share}['{devices}']) <= 1024)",
                _expected(devices, "a whole number from 1 to 1024", f"{share}['{devices}']"),
            ),
            (
                f"!{_CONTAINERS}.exists(c, {wrong})",
                f"'{percentage}: expected 0 to 100, got ' + {_CONTAINERS}.filter(c, {wrong})"
                f"[0].resources.limits[{json.dumps(percentage)}]",
            ),
        ],
    )


def _queued_job_refusals() -> Content:
    one = "variables.asked"
    topologies = [REQUIRED_TOPOLOGY, PREFERRED_TOPOLOGY, UNCONSTRAINED_TOPOLOGY]
    given = f"{json.dumps(topologies)}.filter(t, t in {one})"
    return validating(
        "bayplan-queued-jobs",
        [rule("batch", ("v1",), ("jobs",))],
        [("in-a-queue", f"'{QUEUE_LABEL}' in object.metadata.?labels.orValue({{}})")],
        {"asked": "object.spec.template.?metadata.?annotations.orValue({})"},
        [
            (
                f"{given}.size() < 2",
                f"'spec.template.metadata.annotations: Invalid value: only one of ' + "
                f"{given}.join(', ') + ' may be there'",
            ),
        ],
    )


def _pod_warnings() -> Content:
    queue = label("object", KAI_QUEUE)
    return validating(
        "bayplan-pod-warnings",
        [rule("", ("v1",), ("pods",))],
        [],
        {**_FACTS, "needs": _needs("object.spec")},
        [
            (
                f"{queue} == '' || {_fact('kaiQueues', queue)}",
                f"'waiting for Queue \"' + {queue} + '\", which does not exist' + variables.when",
            ),
            _never_on_one_node(),
        ],
        with_facts=True,
    )


def _job_warnings() -> Content:
    queue = label("object", QUEUE_LABEL)
    level = (
        f"variables.asked[?'{REQUIRED_TOPOLOGY}'].orValue("
        "variables.asked[?'kai.scheduler/topology-required-placement'].orValue(''))"
    )
    pods = "object.spec.?parallelism.orValue(1)"
    together = (
        "variables.needs.filter(n, variables.capacity.exists(c, c[0] == n.resource && "
        f"c[1] == variables.level && int(c[2]) < n.amount * {pods}))"
    )
    largest = (
        "variables.capacity.filter(c, c[0] == variables.together[0].resource && "
        "c[1] == variables.level)[0][2]"
    )
    return validating(
        "bayplan-job-warnings",
        [rule("batch", ("v1",), ("jobs",))],
        [],
        {
            **_FACTS,
            "asked": "object.spec.template.?metadata.?annotations.orValue({})",
            "level": level,
            "needs": _needs("object.spec.template.spec"),
            "together": f"variables.level == '' ? [] : {together}",
        },
        [
            (
                f"{queue} == '' || "
                + _fact(
                    "localQueues",
                    f"(object.metadata.?namespace.orValue(request.namespace) + '/' + {queue})",
                ),
                f"'waiting for LocalQueue \"' + {queue} + '\", which does not exist'"
                " + variables.when",
            ),
            (
                f"variables.level == '' || {_fact('levels', 'variables.level')}",
                "'no Topology has the level \"' + variables.level + '\" that its pods require' "
                "+ variables.when",
            ),
            (
                "variables.together.size() == 0",
                f"'will never fit: needs ' + string(variables.together[0].amount * {pods}) + ' ' + "
                "variables.together[0].resource + ' in one ' + variables.level + "
                "', the largest has '"
                f" + {largest} + variables.when",
            ),
            _never_on_one_node(),
        ],
        with_facts=True,
    )


def _never_on_one_node() -> tuple[str, str]:
    too_much = (
        "variables.needs.filter(n, variables.capacity.exists(c, c[0] == n.resource && "
        f"c[1] == '{HOSTNAME}' && int(c[2]) < n.amount))"
    )
    largest = (
        f"variables.capacity.filter(c, c[0] == {too_much}[0].resource && "
        f"c[1] == '{HOSTNAME}')[0][2]"
    )
    return (
        f"{too_much}.size() == 0",
        f"'will never fit: a pod needs ' + string({too_much}[0].amount) + ' ' + "
        f"{too_much}[0].resource + ', the largest node has ' + {largest} + variables.when",
    )


def _needs(pod: str) -> str:
    """Return an expression for what the containers of a pod need of each resource together."""
    limits = f"{pod}.containers.map(c, c.?resources.?limits.orValue({{}}))"
    names = "variables.capacity.map(c, c[0]).distinct()"
    amount = (
        f"{limits}.filter(l, r in l && isQuantity(string(l[r])) && "
        "quantity(string(l[r])).isInteger()).map(l, quantity(string(l[r])).asInteger()).sum()"
    )
    return (
        f"{names}.filter(r, {limits}.exists(l, r in l))"
        f".map(r, {{'resource': dyn(r), 'amount': dyn({amount})}})"
    )


_FACTS = {
    "capacity": "params.?data[?'capacity'].orValue('').split('\\n')"
    ".map(line, line.split(' ')).filter(c, c.size() == 3)",
    "when": "' (as of ' + params.?data[?'readAt'].orValue('?') + ')'",
}
"""Variables of policies that take the facts of a cluster."""


def _fact(name: str, text: str) -> str:
    return f"params.?data[?'{name}'].orValue('').split('\\n').exists(line, line == {text})"


def _expected(name: str, what: str, got: str) -> str:
    return (
        f"'annotation {name}: expected {what}, got \"' + "
        f"({got}.size() > 40 ? {got}.substring(0, 40) : {got}) + '\"'"
    )


_CONTAINERS = "(dyn(object.spec.?initContainers.orValue([])) + dyn(object.spec.containers))"
_OF_NOBODY = f"!{OWNERS}.exists(o, o.?controller.orValue(false))"
_QUEUED_BY_NOW = {"queue": label("object", QUEUE_LABEL)}
"""A variable sees the queue that a policy before gave an object, a condition does not."""
_WITHOUT_NODE = ("without-a-node", "object.spec.?nodeName.orValue('') == ''")
_NO_QUEUE = ("without-a-queue", f"{label('object', QUEUE_LABEL)} == ''")
_WITHOUT_QUEUE = (("of-no-job", OF_NO_JOB), _NO_QUEUE)
