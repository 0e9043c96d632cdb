"""What Kueue's webhooks refuse when a job is created: bayplan holds such a job and says why."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.kind_cases import Case, UnmodelledError
from tests.conformance.kueue_job_cases import Content, as_stored, job_of

from bayplan.api import KINDS
from bayplan.api.objects import decode_part
from bayplan.api.operated import TrainJob
from bayplan.dialects.queued_job_checks import ELASTIC_ANNOTATION, Refusal, refusals_of
from bayplan.dialects.queued_parts import templates_of_sets
from bayplan.kinds import KINDS_OF_WORKLOADS, templates_of

_NOT_QUEUED = "such pods queue as they are, and nothing of them is refused"
_BY_PODS = ("deployment", "pod")
_QUEUE = "kueue.x-k8s.io/queue-name"


def run_hook_case(case: Case) -> None:
    """Run a case; an assertion tells the difference.

    :raises UnmodelledError: for what bayplan has no part for.
    """
    if case["kind"] != "validate-create":
        raise UnmodelledError("bayplan serves no webhook: it changes and refuses no object")
    if case["integration"] in _BY_PODS:
        raise UnmodelledError(_NOT_QUEUED)
    given, expected = case["input"], case["expected"]
    gates = given.get("feature_gates", {})
    if gates.get("AdmissionGatedBy") is False or gates.get("TopologyAwareScheduling") is False:
        raise UnmodelledError("bayplan has no such gate")
    content = given["object"]
    meta = content.get("metadata", {})
    if _QUEUE not in meta.get("labels", {}):
        if case["integration"] == "rayjob":
            raise UnmodelledError("nothing is asked of a job that waits for no queue")
        content = _in_queue(content)
    if meta.get("annotations", {}).get(ELASTIC_ANNOTATION) and "required-topology" in str(content):
        raise UnmodelledError("an elastic job grows within the domain that it requires")
    assert _refusals(content, given) == _wanted(expected)


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
    if isinstance(job.obj, TrainJob):
        raise UnmodelledError("the runtime of a TrainJob is read in the cases of pod sets")
    row = KINDS_OF_WORKLOADS[content["apiVersion"].rpartition("/")[0], content["kind"]]
    found = refusals_of(job.obj, stored, tuple(templates_of(row, stored)))
    # Kueue names the fields of a RayService as they are called in a RayJob.
    return {(one.kind, one.field.replace("rayClusterConfig", "rayClusterSpec")) for one in found}


def refusals_of_parts(content: Content) -> Iterator[Refusal]:
    """Yield what is refused of an object whose parts queue."""
    key = content["apiVersion"].rpartition("/")[0], content["kind"]
    found = templates_of_sets(tuple(templates_of(KINDS_OF_WORKLOADS[key], content)))
    fields = {part: content.get(part, {}) for part in ("metadata", "spec", "status")}
    yield from refusals_of(decode_part(KINDS[key].type, fields), content, found)


def _wanted(expected: Content) -> set[tuple[str, str]]:
    return {(one["type"], one["field"]) for one in expected.get("errors") or ()}
