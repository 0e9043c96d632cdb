"""The JobSet that Kubeflow's Trainer makes of a TrainJob and the runtime that it names.

Names and fields are those of trainer.kubeflow.org/v1alpha1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.dialects.reading import entries_of

__all__ = ["job_set_of", "patched_by", "runtime_name", "without_patches"]

Content = Mapping[str, Any]
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_NODE = "node"
"""The container of the training itself."""
_RUNTIME = "ClusterTrainingRuntime"


def runtime_name(content: Content) -> tuple[str, str]:
    """Return kind and name of the runtime of a TrainJob, as JSON.

    :raises ValueError: for a TrainJob that names none.
    """
    reference = _map(_map(content, "spec"), "runtimeRef", "spec.")
    name = reference.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("spec.runtimeRef.name: is required")
    return str(reference.get("kind") or _RUNTIME), name


def _map(content: Content, key: str, where: str = "") -> Content:
    """Return the object under a key, an empty one where nothing is.

    :raises ValueError: for anything else.
    """
    value = content.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{where}{key}: expected an object, got {str(value)[:40]}")
    return value or {}


def job_set_of(content: Content, runtime: Content) -> dict[str, Any]:
    """Return the JobSet of a TrainJob, as JSON.

    :param runtime: a TrainingRuntime or ClusterTrainingRuntime.
    :raises ValueError: for what is no object, or no list of objects, where one has to be.
    """
    meta, spec = _map(content, "metadata"), _map(content, "spec")
    of_runtime = _map(runtime, "spec")
    template = _map(of_runtime, "template", "spec.")
    for patch in entries_of(spec, "runtimePatches", "spec."):
        template = _merged(template, _map(_map(patch, "trainingRuntimeSpec"), "template"))
    made = dict(_map(template, "spec", "spec.template."))
    trainer = _map(spec, "trainer", "spec.")
    nodes = trainer.get("numNodes")
    if nodes is None:
        nodes = _map(of_runtime, "mlPolicy", "spec.").get("numNodes")
    jobs = entries_of(made, "replicatedJobs", "spec.template.spec.")
    made["replicatedJobs"] = [_trained(one, trainer, nodes) for one in jobs]
    made["suspend"] = spec.get("suspend") is True
    own = _map(template, "metadata", "spec.template.")
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": meta.get("name", ""),
            "namespace": meta.get("namespace", ""),
            "labels": {**_map(own, "labels"), **_map(meta, "labels")},
            "annotations": {**_map(own, "annotations"), **_map(meta, "annotations")},
        },
        "spec": made,
    }


def _trained(job: Content, trainer: Content, nodes: Any) -> Content:
    """Return a replicated job with what the trainer says of the job that trains."""
    template = _map(job, "template")
    if _map(_map(template, "metadata"), "labels").get(_STEP) != "trainer":
        return job
    spec = dict(_map(template, "spec"))
    if nodes is not None:
        spec |= {"parallelism": nodes, "completions": nodes}
    own = {"image": trainer.get("image"), "resources": trainer.get("resourcesPerNode")}
    own = {key: value for key, value in own.items() if value}
    pods = _map(spec, "template")
    pod = dict(_map(pods, "spec"))
    pod["containers"] = [
        {**one, **own} if one.get("name") == _NODE else one for one in entries_of(pod, "containers")
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
    named = {name: one for one in patch if (name := _name_of(one)) is not None}
    known = {_name_of(one) for one in own}
    yield from (one for name, one in named.items() if name not in known)
    for one in own:
        name = _name_of(one)
        yield _merged(one, named[name]) if name in named else one
    yield from (one for one in patch if _name_of(one) is None)


def _name_of(entry: Any) -> str | None:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    return name if isinstance(name, str) else None


# What admission adds --------------------------------------------------------------------------


def patched_by(content: Content, manager: str, jobs: Mapping[str, Content]) -> list[Content]:
    """Return the patches of a TrainJob, in which a manager's are these pod templates.

    :param jobs: parts of templates by the names of replicated jobs.
    """
    made = [{"name": name, "template": {"spec": {"template": part}}} for name, part in jobs.items()]
    return _with_patch(content, manager, {"replicatedJobs": made})


def without_patches(content: Content, manager: str) -> list[Content] | None:
    """Return the patches of a TrainJob without those of a manager, None if it has none."""
    for patch in entries_of(_map(content, "spec"), "runtimePatches"):
        spec = _map(_map(_map(patch, "trainingRuntimeSpec"), "template"), "spec")
        if patch.get("manager") == manager and spec.get("replicatedJobs"):
            return _with_patch(content, manager, {})
    return None


def _with_patch(content: Content, manager: str, spec: Content) -> list[Content]:
    made = {"manager": manager, "trainingRuntimeSpec": {"template": {"spec": spec}}}
    patches = entries_of(_map(content, "spec"), "runtimePatches")
    names = [patch.get("manager") for patch in patches]
    if manager not in names:
        return [*patches, made]
    patches[names.index(manager)] = made
    return patches
