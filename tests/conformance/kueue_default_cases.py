"""What Kueue's webhooks fill in: the policies of ``configs/admission``, and who waits for a queue.

Compared are whether a job is suspended, its queue, its priority class and who makes its pods, and
of a pod its queue, its gate and its mark. What Kueue marks for itself, such as finalizers, or
labels of templates, nobody needs here: the scheduler knows the pods of a queue by what owns them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from tests.admission.evaluated_policies import mutated, watches
from tests.conformance.kind_cases import UnmodelledError

from bayplan.admission import Defaults, facts_of, mutating_policies
from bayplan.api import KINDS, ApiObject
from bayplan.api.meta import LabelSelector
from bayplan.api.objects import decode_part
from bayplan.api.selectors import Selector, compile_selector
from bayplan.dialects.kueue import ADMISSION_GATE, MANAGED_MARK, SUSPENDING_PARENT
from bayplan.dialects.queued_job_checks import PRIORITY_LABEL, QUEUE_LABEL
from bayplan.dialects.queued_jobs import is_part
from bayplan.kinds import KINDS_OF_WORKLOADS
from bayplan.kinds.paths import at
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.kueue.managed_jobs import ManagedJobs
from bayplan_plugins.queues.kueue.settings import Managed

Content = dict[str, Any]
_NAME = "kubernetes.io/metadata.name"
_REQUIREMENT = re.compile(r"([^\s=]+)(?: (in|notin) \(([^)]*)\)|=(.*))?")
_PODS = "pods that name no queue wait in the scheduler, without a gate"
_PODS_OF_JOBS = "only the scheduler knows whether what owns a pod waits in a queue"
_SELECTED_PODS = "bayplan has no podOptions"
_OWNERS = "what owns a job is known by the reference to it, and need not be there"
_NO_CONTEXT = "the case does not say that its namespace has a LocalQueue"
_FUNCTIONS = {
    "ApplyDefaultForManagedBy": "managed by",
    "ApplyDefaultForSuspend": "suspended",
    "ApplyDefaultLocalQueue": "queue",
    "ApplyDefaultWorkloadPriorityClass": "priority",
}
"""What single functions of Kueue's fill in."""


def run_default_case(given: Content, expected: Content, integration: str) -> None:
    """Run a case; an assertion tells the difference.

    :raises UnmodelledError: for what bayplan has no part for.
    """
    off = [name for name, on in given.get("feature_gates", {}).items() if not on]
    if off and off[0] != "TopologyAwareScheduling":
        raise UnmodelledError(f"bayplan has no gate {off[0]}")
    if integration == "pod":
        _run_pod_case(given, expected)
        return
    if given.get("function") == "WorkloadShouldBeSuspended":
        _should_be_suspended(given, expected)
        return
    content, wanted = given["object"], _said(expected["object"])
    says = given.get("context") or given.get("function") == "ApplyDefaultLocalQueue"
    if not says and wanted["queue"] != _said(content)["queue"]:
        raise UnmodelledError(_NO_CONTEXT)
    found = _said(_defaulted(given))
    only = [_FUNCTIONS.get(given.get("function", ""), "")]
    for key in only if only != [""] else wanted:
        assert found[key] == wanted[key], key


def _run_pod_case(given: Content, expected: Content) -> None:
    content = given["object"]
    if given["config"].get("manage_jobs_without_queue_name"):
        raise UnmodelledError(_PODS)
    if "error" in expected or any(
        (one["apiVersion"].rpartition("/")[0], one["kind"]) in KINDS_OF_WORKLOADS
        for one in content["metadata"].get("ownerReferences", ())
    ):
        raise UnmodelledError(_PODS_OF_JOBS)
    if _said_by_pod(expected["object"]) == ("", False, "") and not given.get("config", {}).get(
        "managed_jobs_namespace_selector"
    ):
        raise UnmodelledError(_SELECTED_PODS)
    assert _said_by_pod(_defaulted(given)) == _said_by_pod(expected["object"])


def _said_by_pod(content: Content) -> tuple[str, bool, str]:
    """Return what a pod says of its queue, whether it is gated, and how it is marked."""
    labels = content["metadata"].get("labels") or {}
    gates = [one["name"] for one in content["spec"].get("schedulingGates", ())]
    marked = labels.get(MANAGED_MARK[0], "")
    return labels.get(QUEUE_LABEL, ""), ADMISSION_GATE in gates, marked


def _should_be_suspended(given: Content, expected: Content) -> None:
    if "error" in expected:
        raise UnmodelledError(_OWNERS)
    content = given["object"]
    key = content["apiVersion"].rpartition("/")[0], content["kind"]
    runs = _with(content, KINDS_OF_WORKLOADS[key].suspend, False)
    assert _said(_defaulted({**given, "object": runs}))["suspended"] == expected["value"]


def _said(content: Content) -> Content:
    """Return what an object says, of which its queue depends."""
    key = content["apiVersion"].rpartition("/")[0], content["kind"]
    row = KINDS_OF_WORKLOADS.get(key)
    labels = content["metadata"].get("labels") or {}
    template = at(content, "spec.template.metadata.labels") or {}
    marks = at(content, "spec.template.metadata.annotations") or {}
    of_pods = template if content["kind"] == "Deployment" else {}
    return {
        "suspended": bool(row and row.suspend and at(content, row.suspend)),
        "queue": labels.get(QUEUE_LABEL, ""),
        "priority": labels.get(PRIORITY_LABEL, ""),
        "managed by": at(content, row.managed_by) if row and row.managed_by else None,
        "queue of pods": of_pods.get(QUEUE_LABEL, ""),
        "priority of pods": of_pods.get(PRIORITY_LABEL, ""),
        "pods wait": "" if row is None or row.suspend else marks.get(SUSPENDING_PARENT, ""),
    }


def _defaulted(given: Content) -> Content:
    """Return an object as policies and scheduler leave it."""
    content, context = given["object"], given.get("context", {})
    key = content["apiVersion"].rpartition("/")[0], content["kind"]
    namespace = content["metadata"].get("namespace", "")
    has_default = context.get("default_lq_exist") or context.get("with_default_local_queue")
    if given.get("function") == "ApplyDefaultLocalQueue" and not context:
        # The function's own test says so to all of its cases.
        has_default = True
    selector = _selector(given)
    labels = {_NAME: namespace, **_labels_of_namespace(given, namespace)}
    facts = facts_of({}, "bayplan-system", datetime.now(UTC)) | {"data": _remote(given, namespace)}
    # Each is invoked again after others have changed the object.
    for policy in mutating_policies(Defaults(queued=selector, pods=True)) * 2:
        if policy["kind"] != "MutatingAdmissionPolicy":
            continue
        if not watches(policy, key[0], KINDS[key].plural):
            continue
        if not _compiled(policy["spec"]["matchConstraints"]["namespaceSelector"]).matches(labels):
            continue
        params = facts
        if policy["spec"].get("paramKind", {}).get("kind") == "LocalQueue":
            if not has_default:
                continue
            params = {"metadata": {"name": "default"}}
        content = mutated(policy, content, {"metadata": {"name": namespace}}, params)
    if _is_held(content, given, key, _compiled(selector) if selector else None):
        content = _with(content, KINDS_OF_WORKLOADS[key].suspend, True)
    return content


def _remote(given: Content, namespace: str) -> dict[str, str]:
    """Return the facts of a cluster: the queues whose jobs run in others."""
    context = given.get("context", {})
    names = ("queues", "cluster_queues", "admission_check", "local_queues", "admission_checks")
    objects: list[Content] = []
    for name in names:
        found = context.get(name) or []
        objects += found if isinstance(found, list) else [found]
    if context.get("with_multi_kueue_admission_check"):
        queue = given["object"]["metadata"].get("labels", {}).get(QUEUE_LABEL, "")
        return {"remoteQueues": f"{namespace}/{queue}"}
    typed: dict[Any, list[ApiObject]] = {}
    for one in objects:
        kind = KINDS["kueue.x-k8s.io", one["kind"]]
        parts = {name: one.get(name, {}) for name in ("metadata", "spec")}
        typed.setdefault(kind, []).append(decode_part(kind.type, parts))
    data: dict[str, str] = facts_of(typed, "bayplan-system", datetime.now(UTC))["data"]
    return data


def _selector(given: Content) -> Content:
    """Return the namespaces whose jobs wait for queues, as a profile says it; {} for all."""
    texts = (one.get("managed_jobs_namespace_selector") for one in (given.get("config", {}), given))
    text = next(filter(None, texts), "")
    found = [_REQUIREMENT.fullmatch(one) for one in re.split(r",(?![^(]*\))", text) if one]
    entries = []
    for match in found:
        assert match is not None, text
        key, operator, several, one = match.groups()
        name = {"in": "In", "notin": "NotIn"}.get(operator, "In" if one else "Exists")
        values = several.split(",") if several else [one] if one else []
        entries.append({"key": key, "operator": name, "values": values})
    return {"matchExpressions": entries} if entries else {}


def _compiled(selector: Content) -> Selector:
    return compile_selector(decode_part(LabelSelector, selector))


def _labels_of_namespace(given: Content, name: str) -> dict[str, str]:
    known = [*given.get("objects", ()), *given.get("context", {}).get("namespaces", ())]
    named = (one for one in known if (one["kind"], one["metadata"]["name"]) == ("Namespace", name))
    return next(((one["metadata"].get("labels") or {}) for one in named), {})


def _is_held(
    content: Content, given: Content, key: tuple[str, str], namespaces: Selector | None
) -> bool:
    """Tell whether the scheduler suspends a job that names no queue."""
    config = given.get("config", {}), given
    without = any(one.get("manage_jobs_without_queue_name") for one in config)
    meta = {"metadata": content["metadata"], "spec": {}}
    row = KINDS_OF_WORKLOADS.get(key)
    if not without or row is None or not row.suspend:
        return False
    obj = decode_part(KINDS[key].type, content if content["kind"] == "Job" else meta)
    managed = ManagedJobs(Snapshot(), Managed(without, namespaces, None))
    return not is_part(obj.metadata) and managed.waits(obj)


def _with(content: Content, path: str, value: Any) -> Content:
    first, _, rest = path.partition(".")
    if not rest:
        return {**content, first: value}
    return {**content, first: _with(content.get(first) or {}, rest, value)}
