"""What Kueue's webhooks refuse: policies of the API server do, or bayplan holds it and says why."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.admission.evaluated_policies import refused, watches
from tests.conformance.kind_cases import Case, UnmodelledError
from tests.conformance.kueue_default_cases import run_default_case
from tests.conformance.kueue_job_cases import Content, as_stored, job_of

from bayplan.admission import Defaults, validating_policies
from bayplan.api import KINDS, Pod
from bayplan.api.objects import decode_part
from bayplan.dialects import membership_of
from bayplan.dialects.queued_job_checks import ELASTIC_ANNOTATION, Refusal, refusals_of
from bayplan.dialects.queued_parts import templates_of_sets
from bayplan.dialects.train_jobs import job_set_of
from bayplan.kinds import KINDS_OF_WORKLOADS, TemplateOf, templates_of
from bayplan_plugins.queues.kueue.pod_groups import pod_set_of, refusal_of

_FIELDS = "another shape of the pods of a replica is not refused: they wait again with it"
_CONTAINER = re.compile(r"(ontainers)\[.*")
"""What is refused of containers, which bayplan names together."""
_GATES_THAT_CHANGE_NOTHING = (
    "ElasticJobsViaWorkloadSlices",
    "LWSImmutableGroupSize",
    "WorkloadIdentifierAnnotations",
)
"""What bayplan does is the same with and without them."""
_QUEUED_ONLY = ("raycluster", "rayjob", "rayservice", "sparkapplication", "statefulset")
"""Kinds of which Kueue asks nothing where they name no queue."""
_QUEUE = "kueue.x-k8s.io/queue-name"
_JOB_SET = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}


def run_hook_case(case: Case) -> None:
    """Run a case; an assertion tells the difference.

    :raises UnmodelledError: for what bayplan has no part for.
    """
    given, expected = case["input"], case["expected"]
    if case["kind"] in ("default", "framework-default"):
        run_default_case(given, expected, case["integration"])
        return
    if case["kind"] == "field-check":
        _fields_refused(given, expected)
        return
    off = [name for name, on in given.get("feature_gates", {}).items() if not on]
    if off := [name for name in off if name not in _GATES_THAT_CHANGE_NOTHING]:
        raise UnmodelledError(f"bayplan has no gate {off[0]}")
    new, old = given.get("new", given.get("object")), given.get("old")
    if case["integration"] != "statefulset" and any(map(_is_of_pods, expected.get("errors") or ())):
        raise UnmodelledError(_FIELDS)
    if any("schedulingGates" in one["field"] for one in expected.get("errors") or ()):
        raise UnmodelledError("templates get the gate of elastic jobs when a job starts")
    if case["integration"] == "pod":
        _pods_refused(new, old, given, expected)
        return
    labels = [(one or {}).get("metadata", {}).get("labels", {}) for one in (new, old)]
    if not any(_QUEUE in one for one in labels) and case["integration"] != "deployment":
        config = given.get("config", {})
        if case["integration"] in _QUEUED_ONLY and not config.get("manage_jobs_without_queue_name"):
            if expected.get("errors"):
                raise UnmodelledError("nothing is asked of a job that waits for no queue")
            return
        new, old = _in_queue(new), old and _in_queue(old)
    elastic = new.get("metadata", {}).get("annotations", {}).get(ELASTIC_ANNOTATION)
    if elastic and "required-topology" in str(new):
        raise UnmodelledError("an elastic job grows within the domain that it requires")
    found = refused_by_policies(new, old, given)
    if case["integration"] != "deployment":
        found |= _refusals(new, given)
    assert found == _wanted(expected)


def _is_of_pods(error: Content) -> bool:
    """Tell whether an error is about a change of the pods of a set."""
    return "immutable" in error.get("detail", "") and error["field"].startswith("spec.")


def refused_by_policies(new: Content, old: Content | None, given: Content) -> set[tuple[str, str]]:
    """Return what the API server refuses, by the policies that bayplan gives it."""
    key = new["apiVersion"].rpartition("/")[0], new["kind"]
    operation = "CREATE" if old is None else "UPDATE"
    context = given.get("context", {})
    found = set()
    for policy in validating_policies(Defaults()):
        spec = policy["spec"]
        if policy["kind"] != "ValidatingAdmissionPolicy" or "warnings" in str(policy["metadata"]):
            continue
        if not watches(policy, key[0], KINDS[key].plural, operation):
            continue
        if "paramKind" in spec and not context.get("default_lq_exist"):
            continue
        for said in refused(policy, new, old, {"metadata": {"name": "default"}}):
            field, kind, _ = said.split(": ", 2)
            found.add((kind, field))
    return found


def _fields_refused(given: Content, expected: Content) -> None:
    """Compare what is refused of a template's annotations, beside a pod that has the same."""
    if given["function"] == "ValidateImmutablePodGroupPodSpec":
        raise UnmodelledError(_FIELDS)
    template = {"metadata": given["replica_metadata"], "spec": {"containers": [{"name": "c"}]}}
    counts = {"a": given.get("pod_set", {}).get("count", 1000), "b": 1}
    specs = {
        name: {"parallelism": count, "completions": count, "template": template}
        for name, count in counts.items()
    }
    jobs = [
        {"name": name, "replicas": 1, "template": {"spec": spec}} for name, spec in specs.items()
    ]
    content = {**_JOB_SET, "metadata": {"name": "j"}, "spec": {"replicatedJobs": jobs}}
    first = "spec.replicatedJobs[0].template.spec.template.metadata"
    assert {
        (kind, field.replace(first, given["replica_path"]))
        for kind, field in _refusals(_in_queue(content), given)
        if field.startswith(first)
    } == _wanted(expected)


def _pods_refused(new: Content, old: Content | None, given: Content, expected: Content) -> None:
    """Compare what is refused of a pod, by policies, or by what makes its Workload."""
    pod = decode_part(Pod, {key: new.get(key, {}) for key in ("metadata", "spec")})
    member = membership_of(pod)
    problem = member.problem or (member.definition is not None and member.definition.problem)
    if not problem and member.gang is not None:
        problem = refusal_of([pod])
    try:
        pod_set_of(pod)
    except ValueError as exc:
        problem = problem or str(exc)
    found, wanted = (
        refused_by_policies(_with_node(new), old and _with_node(old), given),
        _wanted(expected),
    )
    assert found <= wanted
    assert bool(problem or found) == bool(wanted)


def _with_node(content: Content) -> Content:
    """Return a pod with a node if it has no gate: that is how bayplan knows that it was let go."""
    spec = content.get("spec", {})
    if "kueue.x-k8s.io/admission" in str(spec.get("schedulingGates")):
        return content
    return {**content, "spec": {**spec, "nodeName": "n"}}


def _in_queue(content: Content) -> Content:
    """Return a job with the label of a queue: no other one is looked at."""
    meta = content.get("metadata", {})
    labels = {**(meta.get("labels") or {}), _QUEUE: "queue"}
    return {**content, "metadata": {**meta, "labels": labels}}


def _refusals(content: Content, given: Content) -> set[tuple[str, str]]:
    stored = as_stored(content)
    if content["kind"] in ("LeaderWorkerSet", "StatefulSet"):
        return {(one.kind, one.field) for one in refusals_of_parts(content)}
    job = job_of(content, given.get("objects"))
    found = refusals_of(job.obj, stored, _templates(stored, given))
    # Kueue names the fields of a RayService as they are called in a RayJob.
    return {(one.kind, one.field.replace("rayClusterConfig", "rayClusterSpec")) for one in found}


def _templates(content: Content, given: Content) -> tuple[TemplateOf, ...]:
    """Return the pod templates of a job; a TrainJob's are those of its runtime."""
    if content["kind"] == "TrainJob":
        (runtime,) = (one for one in given["objects"] if "TrainingRuntime" in one["kind"])
        content = as_stored({**job_set_of(content, runtime), **_JOB_SET})
    row = KINDS_OF_WORKLOADS[content["apiVersion"].rpartition("/")[0], content["kind"]]
    return tuple(templates_of(row, content))


def refusals_of_parts(content: Content) -> Iterator[Refusal]:
    """Yield what is refused of an object whose parts queue."""
    key = content["apiVersion"].rpartition("/")[0], content["kind"]
    found = templates_of_sets(tuple(templates_of(KINDS_OF_WORKLOADS[key], content)))
    fields = {part: content.get(part, {}) for part in ("metadata", "spec", "status")}
    yield from refusals_of(decode_part(KINDS[key].type, fields), content, found)


def _wanted(expected: Content) -> set[tuple[str, str]]:
    errors = expected.get("errors") or ()
    return {
        (one["type"], _CONTAINER.sub(r"\1", one["field"]) if _is_of_pods(one) else one["field"])
        for one in errors
    }
