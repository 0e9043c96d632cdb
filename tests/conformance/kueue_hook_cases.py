"""What Kueue's webhooks refuse when a job is created: bayplan holds such a job and says why."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.kind_cases import Case, UnmodelledError
from tests.conformance.kueue_default_cases import run_default_case
from tests.conformance.kueue_job_cases import Content, as_stored, job_of

from bayplan.api import KINDS, Pod
from bayplan.api.objects import decode_part
from bayplan.dialects import membership_of
from bayplan.dialects.queued_job_checks import ELASTIC_ANNOTATION, Refusal, refusals_of
from bayplan.dialects.queued_parts import templates_of_sets
from bayplan.dialects.train_jobs import job_set_of
from bayplan.kinds import KINDS_OF_WORKLOADS, TemplateOf, templates_of
from bayplan_plugins.queues.kueue.pod_groups import pod_set_of, refusal_of

_FIELDS = "a change of the pods of what was admitted is not refused: it counts once they are made"
_OF_DEPLOYMENT = "no Deployment is read: its pods queue one by one, as their labels say"
_CHANGES = "a change of what was admitted is not refused: it counts once that is stopped"
_MOVES = (
    "immutable",
    "cannot be added",
    "cannot be removed",
    "cannot add admission gate",
    "can't be converted",
    "must not be empty in namespace",
)
"""Words of errors that are about the change, and not about what the object is then."""
_PREBUILT = "kueue.x-k8s.io/prebuilt-workload-name"
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
    if any(
        word in one.get("detail", "") for one in expected.get("errors") or () for word in _MOVES
    ):
        raise UnmodelledError(_CHANGES)
    if case["kind"] == "validate-update":
        given = {**given, "object": given["new"]}
    if case["integration"] == "deployment":
        raise UnmodelledError(_OF_DEPLOYMENT)
    gates = given.get("feature_gates", {})
    if gates.get("AdmissionGatedBy") is False or gates.get("TopologyAwareScheduling") is False:
        raise UnmodelledError("bayplan has no such gate")
    content = given["object"]
    meta = content.get("metadata", {})
    if case["integration"] == "pod":
        _pods_refused(content, expected)
        return
    if _QUEUE not in meta.get("labels", {}):
        if case["integration"] == "rayjob":
            raise UnmodelledError("nothing is asked of a job that waits for no queue")
        content = _in_queue(content)
    if meta.get("annotations", {}).get(ELASTIC_ANNOTATION) and "required-topology" in str(content):
        raise UnmodelledError("an elastic job grows within the domain that it requires")
    assert _refusals(content, given) == _wanted(expected)


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


def _pods_refused(content: Content, expected: Content) -> None:
    """Compare whether a pod is held: as a member of its group, or by what makes its Workload."""
    marks = {key for part in content["metadata"].values() if isinstance(part, dict) for key in part}
    if _PREBUILT in marks and expected.get("errors"):
        raise UnmodelledError("bayplan makes the Workload of a pod itself, whatever it is to be")
    pod = decode_part(Pod, {key: content.get(key, {}) for key in ("metadata", "spec")})
    member = membership_of(pod)
    problem = member.problem or (member.definition is not None and member.definition.problem)
    if not problem and member.gang is not None:
        problem = refusal_of([pod])
    try:
        pod_set_of(pod)
    except ValueError as exc:
        problem = problem or str(exc)
    assert bool(problem) == bool(expected.get("errors"))


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
    return {(one["type"], one["field"]) for one in expected.get("errors") or ()}
