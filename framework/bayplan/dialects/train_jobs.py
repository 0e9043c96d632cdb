"""The JobSet that Kubeflow's Trainer makes of a TrainJob and the runtime that it names.

Names and fields are those of trainer.kubeflow.org/v1alpha1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["job_set_of", "patched_by", "runtime_name", "without_patches"]

Content = Mapping[str, Any]
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_NODE = "node"
"""The container of the training itself."""
_RUNTIME = "ClusterTrainingRuntime"


def runtime_name(content: Content) -> tuple[str, str]:
    """Return kind and name of the runtime of a TrainJob, as JSON."""
    reference = (content.get("spec") or {}).get("runtimeRef") or {}
    return str(reference.get("kind") or _RUNTIME), str(reference.get("name") or "")


def job_set_of(content: Content, runtime: Content) -> dict[str, Any]:
    """Return the JobSet of a TrainJob, as JSON.

    :param runtime: a TrainingRuntime or ClusterTrainingRuntime.
    """
    meta, spec = content.get("metadata") or {}, content.get("spec") or {}
    template = (runtime.get("spec") or {}).get("template") or {}
    for patch in spec.get("runtimePatches") or ():
        template = _merged(template, (patch.get("trainingRuntimeSpec") or {}).get("template") or {})
    made = dict(template.get("spec") or {})
    nodes = (spec.get("trainer") or {}).get("numNodes")
    if nodes is None:
        nodes = ((runtime.get("spec") or {}).get("mlPolicy") or {}).get("numNodes")
    made["replicatedJobs"] = [
        _trained(one, spec.get("trainer") or {}, nodes) for one in made.get("replicatedJobs") or ()
    ]
    made["suspend"] = spec.get("suspend") is True
    own = template.get("metadata") or {}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": meta.get("name", ""),
            "namespace": meta.get("namespace", ""),
            "labels": {**(own.get("labels") or {}), **(meta.get("labels") or {})},
            "annotations": {**(own.get("annotations") or {}), **(meta.get("annotations") or {})},
        },
        "spec": made,
    }


def _trained(job: Content, trainer: Content, nodes: Any) -> Content:
    """Return a replicated job with what the trainer says of the job that trains."""
    template = job.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if labels.get(_STEP) != "trainer":
        return job
    spec = dict(template.get("spec") or {})
    if nodes is not None:
        spec |= {"parallelism": nodes, "completions": nodes}
    own = {"image": trainer.get("image"), "resources": trainer.get("resourcesPerNode")}
    own = {key: value for key, value in own.items() if value}
    pods = spec.get("template") or {}
    pod = dict(pods.get("spec") or {})
    pod["containers"] = [
        {**one, **own} if one.get("name") == _NODE else one for one in pod.get("containers") or ()
    ]
    spec["template"] = {**pods, "spec": pod}
    return {**job, "template": {**template, "spec": spec}}


def _merged(own: Any, patch: Any) -> Any:
    """Return JSON with a patch; entries of lists that have names are patched by them."""
    if isinstance(own, Mapping) and isinstance(patch, Mapping):
        keys = dict.fromkeys((*own, *patch))
        return {key: _merged(own.get(key), patch.get(key)) for key in keys}
    if isinstance(own, (list, tuple)) and isinstance(patch, (list, tuple)):
        return list(_merged_lists(own, patch))
    return own if patch is None else patch


def _merged_lists(own: Any, patch: Any) -> Iterator[Any]:
    """Yield the entries of a list with a patch, as Kubernetes merges them: new ones come first."""
    named = {one["name"]: one for one in patch if isinstance(one, Mapping) and "name" in one}
    known = {one.get("name") for one in own if isinstance(one, Mapping)}
    yield from (one for name, one in named.items() if name not in known)
    for one in own:
        name = one.get("name") if isinstance(one, Mapping) else None
        yield _merged(one, named[name]) if name in named else one
    yield from (one for one in patch if not (isinstance(one, Mapping) and "name" in one))


# What admission adds --------------------------------------------------------------------------


def patched_by(content: Content, manager: str, jobs: Mapping[str, Content]) -> list[Content]:
    """Return the patches of a TrainJob, in which a manager's are these pod templates.

    :param jobs: parts of templates by the names of replicated jobs.
    """
    made = [{"name": name, "template": {"spec": {"template": part}}} for name, part in jobs.items()]
    return _with_patch(content, manager, {"replicatedJobs": made})


def without_patches(content: Content, manager: str) -> list[Content] | None:
    """Return the patches of a TrainJob without those of a manager, None if it has none."""
    for patch in (content.get("spec") or {}).get("runtimePatches") or ():
        spec = ((patch.get("trainingRuntimeSpec") or {}).get("template") or {}).get("spec") or {}
        if patch.get("manager") == manager and spec.get("replicatedJobs"):
            return _with_patch(content, manager, {})
    return None


def _with_patch(content: Content, manager: str, spec: Content) -> list[Content]:
    made = {"manager": manager, "trainingRuntimeSpec": {"template": {"spec": spec}}}
    patches = list((content.get("spec") or {}).get("runtimePatches") or ())
    names = [patch.get("manager") for patch in patches]
    if manager not in names:
        return [*patches, made]
    patches[names.index(manager)] = made
    return patches
