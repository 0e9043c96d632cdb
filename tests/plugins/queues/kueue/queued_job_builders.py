"""Suspended jobs in Kueue's queues, in few words, and what became of them."""

from __future__ import annotations

from typing import Any

from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue

from bayplan.api import ApiObject, Job, KueueWorkload, Pod
from bayplan.api.objects import decode_part
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.testing import Cluster

GPU = "nvidia.com/gpu"
LABEL = "kueue.x-k8s.io/queue-name"


def job(
    name: str,
    pods: int = 2,
    queue: str = "lq",
    gpu: int = 1,
    annotations: dict[str, str] | None = None,
    priority: int = 0,
    **spec: Any,
) -> Job:
    container = {"name": "c", "resources": {"limits": {GPU: gpu}}}
    template = {"spec": {"containers": [container], "priority": priority}}
    metadata = {
        "name": name,
        "namespace": "default",
        "labels": {LABEL: queue},
        "annotations": annotations or {},
    }
    given = {
        "parallelism": pods,
        "completions": pods,
        "suspend": True,
        "template": template,
        **spec,
    }
    return decode_part(Job, {"metadata": metadata, "spec": given})


def started(*objects: ApiObject, args: dict[str, Any] | None = None) -> Cluster:
    cluster = Cluster((), plugins={"Queues": args or {}})
    start_controllers(cluster.api)
    cluster.add(*objects)
    cluster.schedule()
    cluster.advance(5.0)
    return cluster


def one_queue(quota: int, **spec: Any) -> list[ApiObject]:
    return [flavor("f", **spec), cluster_queue("cq", {"f": {GPU: quota}}), local_queue("lq", "cq")]


def running(cluster: Cluster) -> set[str]:
    """Return the names of the jobs that are not suspended."""
    return {one.metadata.name for one in cluster.api.list(Job) if not one.spec.suspend}


def on_nodes(cluster: Cluster) -> dict[str, int]:
    """Return the number of pods that each Job has on nodes."""
    found: dict[str, int] = {}
    for pod in cluster.api.list(Pod):
        name = pod.metadata.labels.get("job-name")
        if pod.spec.node_name and name is not None:
            found[name] = found.get(name, 0) + 1
    return found


def workload_of(cluster: Cluster, name: str) -> KueueWorkload:
    (found,) = [
        one
        for one in cluster.api.list(KueueWorkload)
        if one.metadata.owner_references[0].name == name
    ]
    return found


def conditions(cluster: Cluster, name: str) -> dict[str, str]:
    return {one.type: one.status for one in workload_of(cluster, name).status.conditions}


# Every kind ------------------------------------------------------------------------------------


def _template(gpu: int) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: gpu}}}
    return {"spec": {"containers": [container], "restartPolicy": "Never"}}


def _job(name: str) -> dict[str, Any]:
    spec = {"parallelism": 3, "completions": 3, "template": _template(1), "suspend": True}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}


def _job_set(name: str) -> dict[str, Any]:
    groups = [
        {"name": kind, "replicas": count, "template": {"spec": {"template": _template(gpu)}}}
        for kind, count, gpu in (("driver", 1, 0), ("workers", 3, 1))
    ]
    spec = {"replicatedJobs": groups, "suspend": True}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": spec}


def _pytorch_job(name: str) -> dict[str, Any]:
    replicas = {
        "Master": {"replicas": 1, "template": _template(1)},
        "Worker": {"replicas": 2, "template": _template(1)},
    }
    spec = {"pytorchReplicaSpecs": replicas, "runPolicy": {"suspend": True}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec}


def _ray_cluster(name: str) -> dict[str, Any]:
    workers = {"groupName": "w", "replicas": 3, "maxReplicas": 3, "template": _template(1)}
    spec = {"headGroupSpec": {"template": _template(0)}, "workerGroupSpecs": [workers]}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": {**spec, "suspend": True}}


def _ray_job(name: str) -> dict[str, Any]:
    cluster = _ray_cluster(name)["spec"]
    del cluster["suspend"]
    spec = {"rayClusterSpec": cluster, "suspend": True, "shutdownAfterJobFinishes": True}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": spec}


def _kubeflow(kind: str, specs: str, version: str = "v1", **counts: int) -> Any:
    """Return what makes a job of replicas of some types, of which each asks for a GPU."""

    def make(name: str) -> dict[str, Any]:
        replicas = {
            type_: {"replicas": count, "template": _template(1)} for type_, count in counts.items()
        }
        spec = {specs: replicas, "runPolicy": {"suspend": True}}
        return {"apiVersion": f"kubeflow.org/{version}", "kind": kind, "spec": spec}

    return make


def _ray_service(name: str) -> dict[str, Any]:
    cluster = _ray_cluster(name)["spec"]
    return {"apiVersion": "ray.io/v1", "kind": "RayService", "spec": {"rayClusterConfig": cluster}}


def _train_job(name: str) -> dict[str, Any]:
    """Return a job of the runtime below, with three nodes."""
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "r"}
    spec = {"runtimeRef": reference, "trainer": {"numNodes": 3}, "suspend": True}
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": spec}


def runtime() -> dict[str, Any]:
    node = {"spec": {"template": _template(1)}}
    node["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    spec = {"template": {"spec": {"replicatedJobs": [{"name": "node", "template": node}]}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "r"},
        "spec": spec,
    }


def _spark_application(name: str) -> dict[str, Any]:
    """Return an application with a driver and two executors, each of which asks for a GPU."""
    one = {"gpu": {"name": GPU, "quantity": 1}}
    spec = {
        "type": "Python",
        "mode": "cluster",
        "image": "i",
        "mainApplicationFile": "local:///app.py",
        "sparkVersion": "3.5.3",
        "restartPolicy": {"type": "Never"},
        "driver": one,
        "executor": {**one, "instances": 2},
        "suspend": True,
    }
    return {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "spec": spec}


def _app_wrapper(name: str) -> dict[str, Any]:
    """Return an AppWrapper of a Job with a pod and one with two."""
    components = []
    for index, pods in enumerate((1, 2)):
        job = {"parallelism": pods, "completions": pods, "template": _template(1)}
        meta = {"name": f"{name}-{index}"}
        one = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": job}
        components.append({"template": one})
    spec = {"components": components, "suspend": True}
    return {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "spec": spec}


KINDS = {
    "AppWrapper": _app_wrapper,
    "SparkApplication": _spark_application,
    "Job": _job,
    "JAXJob": _kubeflow("JAXJob", "jaxReplicaSpecs", Worker=3),
    "MPIJob": _kubeflow("MPIJob", "mpiReplicaSpecs", "v2beta1", Launcher=1, Worker=2),
    "PaddleJob": _kubeflow("PaddleJob", "paddleReplicaSpecs", Master=1, Worker=2),
    "RayService": _ray_service,
    "TrainJob": _train_job,
    "TFJob": _kubeflow("TFJob", "tfReplicaSpecs", Chief=1, PS=1, Worker=1),
    "XGBoostJob": _kubeflow("XGBoostJob", "xgbReplicaSpecs", Master=1, Worker=2),
    "JobSet": _job_set,
    "PyTorchJob": _pytorch_job,
    "RayCluster": _ray_cluster,
    "RayJob": _ray_job,
}


def suspended_content(kind: str, name: str, priority_class: str = "") -> dict[str, Any]:
    """Return a job of a kind that asks for three GPUs, suspended in the queue ``lq``."""
    content = KINDS[kind](name)
    labels = {LABEL: "lq"}
    if priority_class:
        labels["kueue.x-k8s.io/priority-class"] = priority_class
    content["metadata"] = {"name": name, "namespace": "default", "labels": labels}
    return content
